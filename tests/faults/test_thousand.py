"""A thousand ranks on 125 nodes, played: whatever ends the job, it has ended within seconds, and says why.

The agents are real processes that speak for many nodes each, over the real transport (``tests.supervisor.simulated``).
"""

from pathlib import Path

import pytest

from distdl_jupyter import add_cluster, submit
from distdl_jupyter.core.events import State
from tests import plugin
from tests.conftest import crowded, wait_for
from tests.supervisor import simulated

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

NODES, PER_NODE = 125, 8
FAILS, SILENT = 437, 17
#: Seconds on a machine of its own.
SECONDS = 10.0


@pytest.fixture(autouse=True)
def played(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    plugin.install(tmp_path, monkeypatch, Path(simulated.__file__).read_text(), simulated.POINTS)
    yield
    plugin.forget()


def begin(**options):
    add_cluster("rack", "simulated", **options)
    return submit(print, node_count=NODES, process_count_per_node=PER_NODE, compute_target="rack",
                  distributed_backend="torch")  # fmt: skip


def end_of(job, timeout=400.0):
    wait_for(lambda: job.view().state.ended, timeout, "the end")
    return job.view()


@pytest.mark.fault(
    "many",
    "1,000 ranks on 125 nodes, played by 4 processes: the job ends within 10 s of them, every value and point is there",
)
def test_a_thousand_ranks_end_and_nothing_is_missing():
    job = begin(seconds=10.0)
    view = end_of(job)
    assert (view.state, view.reason) == (State.COMPLETED, "")
    assert job.results() == [20] * NODES * PER_NODE
    assert view.metrics["loss"].count == 20 * NODES * PER_NODE
    assert view.ended - min(rank.ended for rank in view.ranks) < SECONDS * crowded()
    steps = job.time()
    assert {row.rank for row in steps.rows} == set(range(NODES * PER_NODE))


@pytest.mark.fault("rank", "one of 1,000 that raises is named as the first; all others have ended within 10 s")
def test_the_one_of_a_thousand_that_fails_is_named():
    view = end_of(begin(seconds=20.0, fails=FAILS))
    assert view.state is State.FAILED
    assert (view.failure.rank, view.failure.what) == (FAILS, "KeyError: 'label'")
    assert f"Rank {FAILS} of 1000 failed first" in view.reason
    assert view.ended - view.failure.when < SECONDS * crowded()
    assert all(rank.status == "ended" for rank in view.ranks)


@pytest.mark.fault("rank", "one node of 125 that falls silent is named; the job has ended within 10 s of that")
def test_a_lost_node_of_125_is_named():
    view = end_of(begin(seconds=40.0, falls_silent=SILENT))
    assert view.state is State.FAILED
    assert (view.failure.kind, view.failure.rank // PER_NODE) == ("lost", SILENT)
    assert f"node-{SILENT:03}" in view.reason
    assert view.ended - view.failure.when < SECONDS * crowded()


@pytest.mark.fault("many", "1,000 ranks, played by 4 processes, that are canceled have ended within 10 s")
def test_a_thousand_ranks_are_canceled():
    job = begin(seconds=120.0)
    wait_for(lambda: job.view().state is State.RUNNING, 400, "training")
    job.cancel()
    view = end_of(job)
    assert view.state is State.CANCELED
    assert view.ended - view.stop.sent < SECONDS * crowded()
    assert all(rank.status == "ended" for rank in view.ranks)
