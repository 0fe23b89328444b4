"""``scale`` with real jobs on this machine."""

from pathlib import Path

import pytest

from distdl_jupyter import jobs, scale, scaling
from distdl_jupyter.cli import main
from distdl_jupyter.core.errors import InvalidSpec, JobFailed
from distdl_jupyter.core.state import State
from tests.client import scaled

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
    with pytest.raises(JobFailed, match="no such file of data"):
        scale(scaled.fails, [1], backends="plain")


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
    assert said.out.startswith("2 processes reach ")
    assert len(said.out.splitlines()) == 1 + 1 + 4 + 1
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
