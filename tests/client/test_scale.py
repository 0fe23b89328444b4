"""``scale`` with real jobs on this machine."""

import _thread
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from distdl_jupyter import client, jobs, scale, scaling, scaling_study
from distdl_jupyter.cli import main
from distdl_jupyter.core.errors import InvalidSpec, JobFailed, JobNotFound
from distdl_jupyter.core.state import State
from distdl_jupyter.monitoring import settings
from tests.client import scaled
from tests.conftest import wait_for
from tests.monitoring.endpoint import Endpoint

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"processes": []}, "processes"), ({"processes": [1, 1]}, "processes"), ({"processes": [0, 2]}, "processes"),
        ({"processes": [1, 2], "nodes": 2}, "nodes"), ({"processes": [1, 2], "nodes": [1]}, "nodes"),
        ({"seconds": 0}, "seconds"), ({"np": 4}, "np"), ({"nnodes": 2}, "nnodes"), ({"backend": "torch"}, "backend"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_said_before_anything_is_started(distdl_home, given, field):
    with pytest.raises(InvalidSpec) as refused:
        scale(scaled.sleeps, **given)
    assert refused.value.field == field
    assert not jobs()


def test_a_function_that_trains_nothing_or_fails_is_told(distdl_home):
    with pytest.raises(InvalidSpec, match="too few steps to be measured"):
        scale(scaled.returns, [1], backends="plain")
    assert (scaling().facts.state, scaling().panel.summary[:17]) == (State.FAILED, "0 of 1 measured, ")
    assert "too few steps" in scaling().facts.problem
    with pytest.raises(JobFailed, match="no such file of data"):
        scale(scaled.fails, [1], backends="plain")
    assert scaling().facts.state is State.FAILED
    with pytest.raises(JobNotFound, match="There is no scaling study xxxxx"):
        scaling("xxxxx")


def test_the_numbers_of_a_line_are_read():
    assert scaling.numbers("1,2, 4") == [1, 2, 4]
    with pytest.raises(InvalidSpec, match="'1,b' are no numbers of processes"):
        scaling.numbers("1,b")


SCRIPT = """
from tests.client.scaled import sleeps
sleeps(0.02)
"""


@pytest.mark.full
def test_a_script_is_measured_from_a_terminal(distdl_home, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(Path.cwd())
    (tmp_path / "train.py").write_text(f"import sys\nsys.path.insert(0, {str(Path.cwd())!r})\n{SCRIPT}")
    words = ["scale", "--processes", "1,2", "--seconds", "1", "-b", "torch", str(tmp_path / "train.py")]
    assert main(words) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].startswith("Scaling of train (")
    assert lines[1].startswith("2 processes reach ")
    assert len(lines) == 2 + 1 + 4 + 2
    assert main(["scale", "--show", scaling().id]) == 0
    assert capsys.readouterr().out == said.out
    assert main([*words[:1], "--csv", *words[1:]]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("backend,processes,nodes,rate,error,own")


@pytest.mark.full
def test_twice_the_processes_bring_twice_the_samples_where_nothing_is_shared(distdl_home, capsys):
    found = scale(scaled.sleeps, [1, 2], (0.05,), backends=["torch", "horovod-gloo"], seconds=2)
    assert [(one.backend, one.processes, one.batch) for one in found.points] == [
        ("torch", 1, 8), ("torch", 2, 16), ("horovod-gloo", 1, 8), ("horovod-gloo", 2, 16),
    ]  # fmt: skip
    for one in found.points:
        assert 0.05 < one.own < 0.1
        assert 0.6 < found.efficiency(one) < 1.2
    assert found.forecast(4).rate > 1.2 * found.points[1].rate
    assert "torch, 2 processes, run 1: " in capsys.readouterr().err
    assert {job.state for job in jobs()} == {State.CANCELED}
    # Every process finds the same in the folders of the runs, and nothing but that.
    again = scaling(found.id)
    assert again.points == found.points
    assert again.facts == found.facts
    assert (again.facts.state, again.facts.done, again.facts.size) == (State.COMPLETED, 4, 4)
    assert again.panel.mode == "weak"
    assert {row.group.id for row in client.rows()} == {found.id}
    assert all(row.group.value > 0 for row in client.rows())
    jobs()[0].remove()
    assert scaling(found.id).facts.runs == found.facts.runs - 1


@pytest.mark.full
def test_what_was_measured_until_an_interrupt_is_kept_and_nothing_is_left_running(distdl_home):
    def interrupt():
        wait_for(lambda: len(jobs()) > 2, 120, what="the runs of the second number of processes")
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        scale(scaled.sleeps, [1, 2], (0.02,), backends="torch", seconds=1)
    assert {job.state for job in jobs()} == {State.CANCELED}
    assert "measured. distdl_jupyter.scaling(" in scaling.stopped()
    found = scaling_study.find(over=True)
    assert (found.facts.state, found.facts.size) == (State.CANCELED, 2)
    assert found.points[0].processes == 1


@pytest.mark.full
def test_a_driver_that_is_killed_leaves_what_was_measured_and_no_run(distdl_home, monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    endpoint = Endpoint()
    settings.change(webhook=endpoint.address)
    code = ("from distdl_jupyter import scale\nfrom tests.client import scaled\n"
            "scale(scaled.sleeps, [1, 2], (0.02,), backends='torch', seconds=1)")  # fmt: skip
    driver = subprocess.Popen([sys.executable, "-c", code], cwd=Path.cwd())
    try:
        wait_for(lambda: len(jobs()) == 3 and jobs()[0].folder.steps.exists(), 120, what="steps of the third run")
    finally:
        driver.kill()
        driver.wait()
    newest = jobs()[0].wait(30)
    assert (newest.state, newest.view().reason) == (State.CANCELED, "The process that measured it has ended.")
    found = scaling_study.find(over=True)
    assert (found.facts.state, found.points[0].processes) == (State.CANCELED, 1)
    assert len(jobs()) == found.facts.runs == 3
    wait_for(lambda: endpoint.posts, what="the message that its driver could not send")
    said = json.loads(endpoint.posts[0][2])
    assert (said["job"], said["name"], said["state"]) == (found.id, "Scaling of sleeps", "canceled")
    endpoint.close()
