"""A process gets a host name of its own, as root and as anybody, and keeps who it is."""

import errno
import os
import socket
import subprocess
import sys

import pytest

from distdl_jupyter.clusters import emulated_node

needs_names = pytest.mark.skipif(not emulated_node.get_shell(), reason="this machine gives no process a host name")


def on(host, *command, **given):
    """Run a command on an emulated node and return what it printed."""
    command = [*emulated_node.get_shell(), host, *command]
    return subprocess.run(command, capture_output=True, text=True, check=True, **given).stdout.split()


@needs_names
def test_the_name_is_that_of_the_node_and_only_there():
    here = socket.gethostname()
    assert on("node-3", "uname", "-n;", "echo", "$0") == ["node-3", "/bin/sh"]
    assert socket.gethostname() == here


@needs_names
def test_whoever_may_not_do_it_directly_does_it_in_a_user_namespace_and_stays_who_they_are(tmp_path, monkeypatch):
    allowed = emulated_node._unshare
    both = emulated_node._CLONE_NEWUTS | emulated_node._CLONE_NEWUSER
    child = os.fork()
    if child == 0:
        code = 1
        try:
            monkeypatch.setattr(emulated_node, "_unshare", lambda flags: allowed(flags if flags == both else -1))
            before = os.getuid(), os.getgid()
            emulated_node.enter_namespace("node-1")
            (tmp_path / "mine").write_text("x")
            code = 0 if (os.getuid(), os.getgid(), socket.gethostname()) == (*before, "node-1") else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (tmp_path / "mine").stat().st_uid == os.getuid()


IN_OWN_NAMESPACE = ["unshare", "--user", "--map-root-user", "sh", "-c"]
NO_MORE = "echo 0 > /proc/sys/user/max_user_namespaces; echo 0 > /proc/sys/user/max_uts_namespaces"
may_set_limits = pytest.mark.skipif(
    subprocess.run([*IN_OWN_NAMESPACE, NO_MORE], check=False, capture_output=True).returncode != 0,
    reason="this machine lets no process limit its namespaces",
)


@may_set_limits
def test_where_it_is_forbidden_it_says_why_and_offers_nothing():
    program = f"{sys.executable} -m distdl_jupyter.clusters.emulated_node node-0 true"
    done = subprocess.run([*IN_OWN_NAMESPACE, f"{NO_MORE}; {program}"], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "user.max_user_namespaces" in done.stderr
    offered = "from distdl_jupyter.clusters import emulated_node; print(emulated_node.get_shell())"
    command = f"{NO_MORE}; {sys.executable} -c '{offered}'"
    assert subprocess.check_output([*IN_OWN_NAMESPACE, command], text=True).strip() == "()"


@pytest.mark.parametrize(
    ("host", "error", "cause"),
    [
        ("node-0", OSError(errno.EPERM, "Operation not permitted"), "Operation not permitted. User namespaces may be"),
        ("node-0", PermissionError(errno.EACCES, "Permission denied", "/proc/self/uid_map"), "Permission denied"),
        ("x" * 80, None, "Invalid argument"),
    ],
)
def test_the_cause_is_named_and_never_success(monkeypatch, host, error, cause):
    def refuse(_host):
        raise error

    if error is not None:
        monkeypatch.setattr(emulated_node, "enter_namespace", refuse)
    else:  # only the name is refused
        monkeypatch.setattr(emulated_node, "_unshare", lambda _flags: None)
    with pytest.raises(SystemExit) as caught:
        emulated_node.main(host, "true")
    assert cause in str(caught.value)
    assert "Success" not in str(caught.value)
