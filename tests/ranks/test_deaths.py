"""Ranks and kernels that die, and what the next kernel finds."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from distdl_jupyter import add_cluster, ranks
from distdl_jupyter.core.errors import InvalidSpec, JobFailed, JobNotFound, JobNotRunning
from distdl_jupyter.core.events import State
from distdl_jupyter.jobs import client
from distdl_jupyter.ranks import session
from distdl_jupyter.worker.rank_socket import NOTES
from tests.conftest import wait_for

KERNEL = """
import sys
from distdl_jupyter import ranks
session = ranks.start(process_count_per_node=2, distributed_backend="torch")
print(session.id, flush=True)
def tell(event):
    print(type(event).__name__, flush=True)
session.run('''import time, pathlib
print("begun")
while not pathlib.Path(GO).exists(): time.sleep(0.02)
print("went on", rank)
done = "whole"'''.replace("GO", repr(sys.argv[1])), on_event=tell, label="In [4]")
"""


def killed(signal_name):
    return (
        "import os, signal, time\nprint('last words')\n"
        f"if rank == 1: os.kill(os.getpid(), signal.{signal_name})\ntime.sleep(600)"
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os, time\nprint('last words')\nif rank == 1: os._exit(3)\ntime.sleep(600)", "exit code 3"),
        (killed("SIGKILL"), "ended by SIGKILL"),
        pytest.param(killed("SIGSEGV"), "ended by SIGSEGV", marks=pytest.mark.full),
        pytest.param(
            "import ctypes, time\nprint('last words')\nif rank == 1: ctypes.string_at(0)\ntime.sleep(600)",
            "ended by SIGSEGV", marks=pytest.mark.full,
        ),
    ],
)  # fmt: skip
def test_a_rank_that_dies_ends_the_session_with_its_reason(started, told, code, said):
    session = started()
    begin = time.monotonic()
    with pytest.raises(JobFailed) as caught:
        session.run(code, on_event=told)
    assert time.monotonic() - begin < 30
    assert caught.value.rank == 1
    assert f"Rank 1 of 2 failed first: {said}" in str(caught.value)
    assert "Start new ones with %dist_ranks start, or ranks.start()." in str(caught.value)
    assert told.text(1).startswith("last words\n")
    state = session.state()
    assert state == "ended"
    assert said in state.reason
    with pytest.raises(JobFailed, match=said):
        session.run("1")
    assert session.job.wait(30).state.value == "failed"
    with pytest.raises(JobFailed, match=said):
        session.run("1")


def test_the_trace_of_a_crash_is_in_the_log(started):
    session = started(1, "plain")
    with pytest.raises(JobFailed):
        session.run("import ctypes\ndef deep(): ctypes.string_at(0)\ndeep()")
    session.job.wait(30)
    log = "\n".join(map(str, session.job.logs(0)))
    assert "Fatal Python error: Segmentation fault" in log
    assert "in deep" in log


@pytest.mark.fault("rank", "named by the next cell")
@pytest.mark.full
def test_ranks_that_no_kernel_could_meet_end_with_the_reason():
    job = client.launch(session.build_draft(), distributed_backend="plain")
    (job.folder.path / NOTES).touch()  # no folder can be made there
    view = job.wait(60).view()
    assert view.state is State.FAILED
    assert view.reason.startswith("Cannot write the address of rank 0: File exists")


def test_a_rank_that_is_killed_between_cells_is_named_by_the_next_one(started):
    session = started()
    os.kill(session.run("import os\nos.getpid()").values[1], signal.SIGKILL)
    with pytest.raises(JobFailed, match="Rank 1 of 2 failed first: ended by SIGKILL"):
        session.run("1")


def test_a_rank_outside_of_the_cell_that_dies_ends_the_session_too(started, told):
    session = started()
    pid = session.run("import os\nos.getpid()").values[1]

    def tell(event):
        told(event)
        if isinstance(event, ranks.Output):
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(JobFailed, match="Rank 1 of 2 failed first: ended by SIGKILL"):
        session.run("import time\nprint('begun')\ntime.sleep(600)", on=[0], on_event=tell)


@pytest.mark.fault("supervisor", "a session of ranks is reported as lost")
def test_a_supervisor_that_is_killed_ends_the_session_as_lost(started):
    session = started()
    parent = session.run("import os\nos.getppid()").values[0]
    os.kill(parent, signal.SIGKILL)
    with pytest.raises(JobNotRunning, match="The ranks are lost") as caught:
        session.run("import time\ntime.sleep(600)")
    assert session.job.view().reason_code == "supervisor-killed"
    assert "distdl rerun" not in str(caught.value), "ranks are started with %dist_ranks"
    assert session.state() == "ended"


@pytest.mark.fault("viewers", "a cell on ranks continues; the next kernel finds it and all variables")
def test_a_kernel_that_is_killed_leaves_the_cell_running_and_the_next_one_finds_it(tmp_path):
    go = tmp_path / "go"
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL, str(go)], stdout=subprocess.PIPE, text=True)
    try:
        id_ = kernel.stdout.readline().strip()
        assert kernel.stdout.readline().strip() == "Output"
        found = ranks.find_session()
        assert found.id == id_
        assert found.state() == "busy"
        with pytest.raises(ranks.RanksBusy, match=rf"busy with In \[4\] of another kernel \(process {kernel.pid}\)"):
            found.run("1")
        assert f"process {kernel.pid}" in found.state().reason
    finally:
        kernel.kill()
        kernel.wait()
        kernel.stdout.close()
    with pytest.raises(ranks.RanksBusy, match=r"busy with In \[4\], started by a kernel that has exited"):
        wait_for(lambda: found.run("1"))
    assert found.state().reason == "The ranks are busy with In [4], started by a kernel that has exited."
    go.touch()
    wait_for(lambda: found.state() == "idle")
    assert dict(found.run("done").values) == {0: "whole", 1: "whole"}
    assert [str(line) for line in found.job.logs(1)] == ["begun", "went on 1"]
    found.stop()
    assert ranks.find_session() is None


def test_two_kernels_take_turns(shared):
    other = ranks.find_session(shared.id)
    assert dict(shared.run("x = rank + 1").values) == {0: None, 1: None}
    assert dict(other.run("x").values) == {0: 1, 1: 2}
    assert dict(shared.run("x").values) == {0: 1, 1: 2}


def test_stop_ends_the_job_as_completed_and_leaves_nothing(started):
    session = started()
    session.run("import threading, time\nthreading.Thread(target=time.sleep, args=(0.01,)).start()")
    session.stop()
    assert session.job.state.value == "completed"
    assert session.state() == "ended"
    assert session.state().reason == "The ranks were stopped."
    with pytest.raises(JobNotRunning, match="The ranks were stopped"):
        session.run("1")
    session.stop()
    assert not list((session.job.folder.path / "serving").glob("rank-*"))


def test_stopping_busy_ranks_cancels_them(started, told):
    session = started(stop_grace_seconds=20)
    other = ranks.find_session(session.id)

    def stop():
        wait_for(lambda: told.text(0))
        other.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(JobNotRunning, match="The ranks were canceled"):
        session.run("import time\nprint('begun')\ntime.sleep(600)", on_event=told)
    thread.join()
    assert session.job.state.value == "canceled"


def test_restart_gives_fresh_ranks_with_the_same_options(started):
    session = started(environment_variables={"COLOUR": "blue"})
    session.run("x = 1")
    before = session.id
    assert session.restart() is session
    assert session.id != before
    answer = session.run("import os\n('x' in globals(), os.environ['COLOUR'])")
    assert dict(answer.values) == {0: (False, "blue"), 1: (False, "blue")}


def test_current_is_the_newest_that_lives(started):
    assert ranks.find_session() is None
    first, second = started(1, "plain"), started(1, "plain")
    assert ranks.find_session().id == second.id
    second.stop()
    assert ranks.find_session().id == first.id
    assert ranks.find_session(only=second.id) is None


def test_a_job_is_not_a_session():
    job = client.submit(print).wait()
    with pytest.raises(JobNotFound, match="is not a session of ranks"):
        ranks.find_session(only=job.id)


def test_unsupported_clusters_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    add_cluster(
        "cloud",
        "azureml",
        subscription_id="01234567-89ab-cdef-0123-456789abcdef",
        resource_group="group",
        workspace="team",
        compute="pool",
        environment="e",
    )
    with pytest.raises(InvalidSpec, match="A session of ranks cannot run on cloud"):
        ranks.start(process_count_per_node=2, target="cloud")
    with pytest.raises(InvalidSpec, match="idle_timeout_seconds applies only to a"):
        client.submit(print, idle_timeout=3)
    assert client.jobs() == []
