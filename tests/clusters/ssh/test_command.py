"""The ssh command line, and one sentence with its remedy for each way in which it fails: all tried with a real sshd."""

import shlex
import sys

import pytest

from distdl_jupyter.clusters import environment, ssh
from distdl_jupyter.clusters.agents.agent import Host
from distdl_jupyter.clusters.ssh import SshOptions
from tests.clusters.agents.links import GPU1, log_in
from tests.hosts import needs_hosts


def test_the_command_line_is_the_same_for_every_job_and_asks_for_nothing():
    argv = ssh.build_agent_command(GPU1, "/c")
    assert argv[:4] == ["ssh", "-T", "-F", "/c"]
    for setting in ("BatchMode=yes", "StrictHostKeyChecking=yes", "PasswordAuthentication=no", "ControlPath=none",
                    "ServerAliveInterval=3", "ForwardAgent=no"):  # fmt: skip
        assert argv[argv.index(setting) - 1] == "-o"
    assert argv[-3:-1] == ["--", "me@gpu1"]


def first_lines(python, program):
    return f"{python}\n{program.encode().hex()}\n".encode()


def test_what_the_login_shell_reads_means_the_same_to_every_shell():
    words = ssh.build_agent_command(GPU1)[-1]
    assert words.count("'") == 2
    assert not set("!\n`\\") & set(words)
    assert shlex.split(words)[:3] == ["exec", "sh", "-c"]


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "csh", "tcsh"])
def test_python_begins_whatever_the_login_shell_is(shell, tmp_path):
    strange = tmp_path / "a b'c$d"
    strange.symlink_to(sys.executable)
    try:
        program = "import os\nprint('begun', os.read(0, 5))"
        done = log_in(first_lines(str(strange), program) + b"after", shell)
    except FileNotFoundError:
        pytest.skip(f"{shell} is not installed")
    assert done.stdout == b"begun b'after'\n", done.stderr


def test_a_path_below_the_home_is_found_there(tmp_path):
    (tmp_path / "py").symlink_to(sys.executable)
    environment = {"HOME": str(tmp_path), "PATH": "/bin:/usr/bin"}
    done = log_in(first_lines("~/py", "print('begun')"), env=environment)
    assert done.stdout == b"begun\n", done.stderr


def test_an_old_python_is_told_its_age(monkeypatch):
    monkeypatch.setattr(environment, "MIN_PYTHON", (9, 1))
    done = log_in(environment.build_first_input(sys.executable, "~", []))
    trouble = ssh.explain(GPU1, "", "/usr/bin/python3", done.stderr.decode(), done.returncode)
    assert trouble.kind == "old-python"
    assert "/usr/bin/python3 is older than" in trouble.reason


@pytest.mark.parametrize(
    ("said", "code", "kind", "words"),
    [
        ("ssh: connect to host gpu1 port 22: No route to host", 255, "route", "No route to host"),
        ("Permissions 0644 for '/k/id' are too open.\nme@gpu1: Permission denied (publickey).", 255, "denied",
         "chmod 600 /k/id"),
        ("This account is currently not available.", 1, "shell", "does not allow logins"),
        ("Traceback\nAttributeError: type object 'str' has no attribute 'fromhex'", 1, "old-python", "3.11"),
        ("kex_exchange_identification: read: Connection reset by peer", 255, "ssh", "Connection reset by peer"),
        ("welcome to gpu1", 3, "shell", "exited with code 3: welcome to gpu1"),
        ("", 0, "shell", "did not start the agent"),
    ],
)  # fmt: skip
def test_last_words_are_explained(said, code, kind, words):
    trouble = ssh.explain(GPU1, "", "/py", said, code)
    assert trouble.kind == kind
    assert words in f"{trouble.reason} {trouble.remedy}"
    assert trouble.remedy
    assert "{" not in str(trouble)


class TestForReal:
    """Each failure is brought about on a host of its own network namespace."""

    pytestmark = needs_hosts

    def trouble(self, lab, host=None, python="", **options):
        chosen = SshOptions(**lab.options(**options))
        connections, (trouble,) = ssh.reach_all([host or ssh.parse_hosts(chosen)[0]], chosen, python)
        assert connections == []
        assert trouble.remedy
        return trouble

    @pytest.fixture
    def lab(self, hosts_of):
        return hosts_of(1)

    def test_an_unknown_host_key(self, lab):
        lab.forget_host_key("node-a")
        trouble = self.trouble(lab)
        assert trouble.kind == "unknown-key"
        assert f"ssh -F {lab.ssh_config} node-a true" in trouble.remedy
        assert "ssh-keygen -lf" in trouble.remedy

    def test_a_changed_host_key(self, lab):
        lab.change_host_key("node-a")
        trouble = self.trouble(lab)
        assert trouble.kind == "changed-key"
        assert "ssh-keygen" in trouble.remedy
        assert "-R" in trouble.remedy

    def test_no_key_that_is_accepted(self, lab):
        (lab.folder / "authorized_keys").write_text("")
        trouble = self.trouble(lab)
        assert (trouble.kind, trouble.reason) == ("denied", "The host rejected all SSH keys.")

    def test_a_name_without_an_address(self, lab):
        assert self.trouble(lab, Host("nowhere", "nowhere")).reason == "The host name nowhere cannot be resolved."

    def test_a_port_without_sshd(self, lab, tmp_path):
        (tmp_path / "c").write_text("Port 23\n" + lab.ssh_config.read_text())
        assert self.trouble(lab, ssh_config=str(tmp_path / "c")).reason == "The host refused the connection on port 23."

    def test_a_path_without_python(self, lab):
        assert self.trouble(lab, python="/nowhere/python").reason == "Python was not found at /nowhere/python."

    def test_a_folder_that_cannot_be_written(self, lab):
        trouble = self.trouble(lab, directory="/proc/none")
        assert trouble.kind == "folder"
        assert "/proc/none" in trouble.reason

    def test_a_configuration_with_a_wrong_word(self, lab, tmp_path):
        (tmp_path / "c").write_text("Nonsense yes\n")
        assert "Bad configuration option: nonsense" in self.trouble(lab, ssh_config=str(tmp_path / "c")).reason
