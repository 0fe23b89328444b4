"""The agent starts, carries, signals and ends real processes."""

import pytest

from tests.host.driver import is_alive, until

WAIT = "import time; print('up', flush=True); time.sleep(600)"


@pytest.fixture
def ready(agent, tmp_path):
    """An agent with a job."""
    one = agent().beat()
    one.prepare(tmp_path)
    return one


def test_output_and_exit_of_each_process_come_apart(ready):
    code = "import os, sys; print('out', os.environ['X']); print('err', file=sys.stderr); sys.exit(int(sys.argv[1]))"
    one = ready.python(code, process=0, out=1, err=2, environment={"X": "a"}, arguments=["0"])
    two = ready.python(code, process=1, out=3, err=4, environment={"X": "b"}, arguments=["7"])
    pids = ready.start(one, two)["pids"]
    assert set(pids) == {"0", "1"}
    assert ready.exit(0) == {"type": "exit", "process": 0, "code": 0, "signal": None, "evidence": ""}
    assert ready.exit(1)["code"] == 7
    assert [ready.text(channel) for channel in (1, 2, 3, 4)] == ["out a\n", "err\n", "out b\n", "err\n"]
    assert ready.closed == {1, 2, 3, 4}


def test_a_process_has_the_agents_own_version_first_and_the_marks(ready):
    code = (
        "import os; print(os.environ['DISTDL_JOB_ID'], os.environ['DISTDL_PIPES'], os.environ['PYTHONPATH'], sep='\\n')"
    )
    ready.start(ready.python(code, environment={"PYTHONPATH": "/somewhere"}))
    ready.exit(0)
    job, run, paths = ready.text(1).splitlines()
    assert (job, run) == (ready.job, str(ready.run))
    assert paths.split(":")[1:] == ["/somewhere"]


def test_the_end_leaves_nothing(ready):
    pids = ready.start(ready.python(WAIT))["pids"]
    until(lambda: "up" in ready.text(1))
    assert ready.ask("alive")["alive"] == 1
    assert ready.ask("end", keep=False)["ended"] == 1
    assert ready.wait() == 0
    assert not is_alive(pids["0"])
    assert not ready.run.exists()
    assert not ready.folder.exists()
