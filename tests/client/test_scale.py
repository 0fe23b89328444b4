"""``scale`` with real jobs on this machine."""

import pytest

from distdl_jupyter import jobs, scale
from distdl_jupyter.core.errors import InvalidSpec, JobFailed
from distdl_jupyter.core.state import State
from tests.client import scaled

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"processes": []}, "processes"), ({"processes": [1, 1]}, "processes"), ({"processes": [0, 2]}, "processes"),
        ({"processes": [1, 2], "nodes": 2}, "nodes"), ({"processes": [1, 2], "nodes": [1]}, "nodes"),
        ({"seconds": 0}, "seconds"),
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
