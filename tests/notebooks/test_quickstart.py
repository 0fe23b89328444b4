"""The quickstart as a user runs it: in a real kernel, cell by cell, with the real Horovod."""

import pytest

from distdl_jupyter import jobs
from distdl_jupyter.core.events import State
from tests.notebooks import book
from tests.notebooks.book import cell_with, shown

EPOCHS, STEPS, RANKS = 30, 22, 2

pytestmark = [pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTDL_HOME", str(home))
        return book.executed("quickstart"), home


def test_the_job_reached_the_accuracy_and_reported_every_step(executed, monkeypatch):
    _notebook, home = executed
    monkeypatch.setenv("DISTDL_HOME", str(home))
    (job,) = jobs()
    assert job.state is State.COMPLETED
    assert job.spec.distributed_backend == "horovod-gloo"
    assert [value["test_accuracy"] >= 0.95 for value in job.results()] == [True] * RANKS
    metrics = job.metrics()
    assert metrics["loss"].count() == EPOCHS * STEPS * RANKS
    assert sorted(metrics["rank"].unique()) == [0, 1]
    assert metrics["test_accuracy"].dropna().min() >= 0.95


def test_the_result_and_the_saved_cell_read_well_where_nothing_runs(executed):
    notebook, _ = executed
    assert "test_accuracy" in shown(notebook, "job.result()")
    outputs = cell_with(notebook, "%%distributed").outputs
    bundle = next(output.data for output in outputs if "application/vnd.distdl.job+json" in output.get("data", {}))
    html, text = bundle["text/html"], bundle["text/plain"]
    assert len(html) < 60_000
    for part in ("Completed", "data:image/svg+xml", "test_accuracy", "%dist_attach"):
        assert part in html
    assert "<script" not in html
    assert "Completed" in text
    assert bundle["application/vnd.distdl.job+json"]["id"] in text
