"""A template, supervisor or rank that is killed or used at the wrong moment."""

import contextlib
import os
import signal
import socket
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from distdl_jupyter import submit
from distdl_jupyter.clusters.environment import select_for_local_ranks
from distdl_jupyter.core.events import State
from distdl_jupyter.node import processes
from distdl_jupyter.warm import start as warm_start
from tests.conftest import wait_for
from tests.faults.jobs import found_supervisor_of
from tests.starting import revive
from tests.warm.conftest import assert_warm, cold_reason, is_warm

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux")]


def waits(seconds=120, environment=None):
    import subprocess

    child = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
    print("running", flush=True)
    time.sleep(seconds)
    return child


def started(kwargs=None, **options):
    job = submit(waits, kwargs=kwargs, **{"distributed_backend": "torch", "process_count_per_node": 2, **options})
    wait_for(lambda: sum(str(line) == "running" for line in job.logs()) == job.spec.process_count, what="the ranks")
    return job


def test_ranks_carry_the_mark_and_their_names_and_the_supervisor_does_not(distdl_home):
    job = started()
    assert_warm(job)
    pids = [rank.pid for rank in job.view().ranks]
    assert set(pids) <= set(processes.find_job_pids({processes.MARK: job.id}))
    for rank, pid in enumerate(pids):
        line = psutil.Process(pid).cmdline()
        assert line[1:4] == ["-P", "-m", "distdl_jupyter.worker"]
        assert line[4].strip() == f"(rank {rank} of {job.id})"
        assert warm_start.FILLER not in psutil.Process(pid).environ()
    own = found_supervisor_of(job)
    assert processes.MARK not in own.environ()
    assert psutil.Process(own.ppid()).ppid() == warm_start.get_status(warm_start.get_template_files())["pid"]
    job.cancel(now=True)
    assert job.wait(60).state is State.CANCELED


def killed():
    """Kill the template, and say whether none is there: what it has learned may have made it begin anew."""
    if said := warm_start.get_status(warm_start.get_template_files()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(said["pid"], signal.SIGKILL)
    return not warm_start.has_template(warm_start.get_template_files())


@pytest.mark.fault("supervisor", "a template that is killed harms no job")
def test_a_killed_template_harms_no_job_and_the_next_one_starts_cold(distdl_home):
    job = started()
    old = warm_start.get_status(warm_start.get_template_files())["pid"]
    wait_for(killed)
    folder = warm_start.get_template_files().socket.parent
    folder.chmod(0o755)  # the next template closes it to others
    after = submit(abs, (-3,), distributed_backend="plain")
    assert after.result(timeout=120) == 3
    assert not is_warm(after)
    assert "no warm template was running" in cold_reason(after)
    assert not job.state.ended
    job.cancel(now=True)
    job.wait(60)
    assert revive()["pid"] != old
    assert folder.stat().st_mode & 0o777 == 0o700
    last = submit(abs, (-3,), distributed_backend="plain")
    assert last.result(timeout=120) == 3
    assert_warm(last)


@pytest.mark.full
def test_the_template_holds_no_lock_and_no_secret(distdl_home, monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "a-secret-of-the-submitter")
    warm_start.stop(warm_start.get_template_files())
    pid = revive()["pid"]
    job = started(environment_variables={"OTHER_SECRET": "a-secret-of-the-job"})
    assert_warm(job)
    assert not [t for t in targets(pid) if "/jobs/" in t]
    for one in (pid, found_supervisor_of(job).pid):
        for file in ("environ", "cmdline"):
            assert b"a-secret" not in Path(f"/proc/{one}/{file}").read_bytes()
    assert b"a-secret" not in b"".join(
        p.read_bytes() for p in warm_start.get_templates_folder().rglob("*") if p.is_file()
    )
    for rank in job.view().ranks:
        assert not [t for t in targets(rank.pid) if t.endswith(("/lock", "events.jsonl", "log.jsonl", ".sock"))]
    job.cancel(now=True)
    job.wait(60)


def targets(pid):
    return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]


def test_a_request_that_is_given_up_starts_nothing(distdl_home, tmp_path):
    with socket.socket(socket.AF_UNIX) as connection, open(tmp_path / "lock", "wb") as file:
        connection.connect(str(warm_start.get_template_files().socket))
        request = {
            "type": "start",
            "folder": str(tmp_path),
            "inherited": dict(os.environ),
            "secrets": {},
            "environment": select_for_local_ranks(os.environ),
            "state": warm_start.read_inherited_state(),
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        }
        warm_start.send(connection, request, (file.fileno(), file.fileno()))
        answer = warm_start.receive(connection)[0]
        assert "accepted" in answer, answer
        pid = answer["accepted"]
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    assert not (tmp_path / "events.jsonl").exists()


def test_invalid_requests_at_the_socket_end_nothing(distdl_home):
    pid = warm_start.get_status(warm_start.get_template_files())["pid"]
    for content in (None, b"", b"{", b"{}", b"[]"):
        with socket.socket(socket.AF_UNIX) as connection, tempfile.TemporaryFile() as file:
            connection.connect(str(warm_start.get_template_files().socket))
            file.write(content or b"")
            file.seek(0)
            socket.send_fds(connection, [b"."], [] if content is None else [file.fileno()])
            connection.shutdown(socket.SHUT_WR)
            connection.recv(10)
    assert warm_start.get_status(warm_start.get_template_files())["pid"] == pid


def test_another_users_process_is_refused_at_both_ends(distdl_home, monkeypatch):
    """The other user is made by telling this process that it is somebody else: one machine's tests have one user."""
    monkeypatch.setattr("distdl_jupyter.warm.start.os.getuid", lambda: 12345)
    assert warm_start.get_status(warm_start.get_template_files()) is None


@pytest.mark.skipif(os.getuid() != 0, reason="takes root to become somebody else")
def test_a_connection_of_another_user_is_not_answered(distdl_home):
    folder = warm_start.get_template_files().socket.parent
    assert oct(folder.stat().st_mode)[-3:] == "700"
    assert oct(warm_start.get_template_files().socket.stat().st_mode)[-3:] == "600"
    pid = warm_start.get_status(warm_start.get_template_files())["pid"]
    connection = socket.socket(socket.AF_UNIX)
    child = os.fork()
    if child == 0:
        code = 9
        try:
            where = os.open(folder, os.O_RDONLY)  # opened as root: the folder alone would keep it out
            os.fchdir(where)
            os.chmod(warm_start.get_template_files().socket.name, 0o666)
            os.setresuid(65534, 65534, 65534)
            connection.connect(warm_start.get_template_files().socket.name)
            warm_start.send(connection, {"type": "status"})
            code = 0 if connection.recv(100) == b"" else 1
        except OSError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    connection.close()
    warm_start.get_template_files().socket.chmod(0o600)
    assert warm_start.get_status(warm_start.get_template_files())["pid"] == pid


def test_an_unused_template_ends(own_home):
    warm_start.start_template(warm_start.get_template_files())
    assert warm_start.wait_until_ready(warm_start.get_template_files()) is not None
    warm_start.change_settings(idle_minutes=0.001)
    wait_for(lambda: not warm_start.has_template(warm_start.get_template_files()), what="the end of the template")
    assert "it was not used for a while" in warm_start.get_template_files().log.read_text()
    assert not warm_start.get_template_files().socket.exists()


def test_a_template_ends_with_its_socket_and_with_its_data_directory(own_home):
    import shutil

    for remove in (warm_start.get_template_files().socket.unlink, lambda: shutil.rmtree(own_home)):
        warm_start.start_template(warm_start.get_template_files())
        said = warm_start.wait_until_ready(warm_start.get_template_files())
        remove()
        wait_for(
            lambda pid=said["pid"]: (
                psutil.pid_exists(pid) is False or not warm_start.has_template(warm_start.get_template_files())
            )
        )


def test_there_is_at_most_one_template(own_home):
    for _ in range(3):
        warm_start.start_template(warm_start.get_template_files())
    first = warm_start.wait_until_ready(warm_start.get_template_files())
    wait_for(lambda: len(templates(own_home)) == 1, what="the end of the others")
    assert templates(own_home) == [first["pid"]]


def templates(home):
    found = psutil.process_iter(["cmdline", "environ"])
    made = [process for process in found if "distdl_jupyter.warm.template" in (process.info["cmdline"] or ())]
    return [process.pid for process in made if (process.info["environ"] or {}).get("DISTDL_HOME") == str(home)]
