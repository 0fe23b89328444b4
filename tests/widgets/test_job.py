"""The job panel without a browser: its traits, and the page that other front ends show."""

import time

import ipywidgets
import pytest

from distdl_jupyter import attach, panel
from distdl_jupyter.core.series import MetricStore
from distdl_jupyter.jobs import output
from distdl_jupyter.jobs.reader import JobReader
from tests.conftest import wait_for
from tests.widgets import recorded


@pytest.fixture
def tell():
    """Return a function that writes a recorded job into the test's own data directory."""
    with recorded.telling() as tell_:
        yield tell_


@pytest.fixture
def shown():
    """Return a function that makes the panel of a job."""
    panels = []

    def shown_(story):
        panels.append(panel(attach(story.id)))
        return panels[-1]

    yield shown_
    for each in panels:
        each.close()


@pytest.fixture
def vscode(monkeypatch):
    """A front end without extensions of JupyterLab."""
    monkeypatch.setattr(output, "get_cell_id", lambda: "vscode-notebook-cell:/home/ada/digits.ipynb#W0")


def test_traits_have_the_state_of_the_job_and_can_be_observed(tell, shown):
    story = tell("running")
    view = shown(story)
    wait_for(lambda: view.state, what="the state")
    assert (view.job_id, view.state, view.progress, view.failure) == (story.id, "running", 744 / 1200, None)
    assert list(view.metrics) == ["loss", "accuracy", "lr"]
    assert 0 < view.metrics["loss"] < 1
    seen = []
    view.observe(lambda change: seen.append(change["new"]), "progress")
    story.t = time.time()
    story.train(800, 0.0)
    wait_for(lambda: seen and seen[-1] == 792 / 1200, what="what came later")


def test_the_kernel_reads_a_job_only_once_a_program_uses_a_trait(tell, shown, monkeypatch):
    readers, read = [], JobReader.read_once
    monkeypatch.setattr(JobReader, "read_once", lambda self, *args: readers.append(self.folder.id) or read(self, *args))
    unused, observed = shown(tell("running")), shown(tell("running"))
    time.sleep(0.6)
    assert (unused.job_id == observed.job_id, readers) == (False, [])
    states = []
    observed.observe(lambda change: states.append(change["new"]), "state")
    assert (observed.state, set(readers)) == ("running", {observed.job_id})


def test_a_failure_is_a_trait(tell, shown):
    view = shown(tell("failed"))
    wait_for(lambda: view.failure, what="the failure")
    assert (view.state, view.failure["rank"]) == ("failed", 2)
    assert "KeyError" in view.failure["error_type"]


def test_the_extension_draws_a_panel_by_the_id_of_its_job(tell, shown):
    view = shown(tell("running"))
    assert (view._view_module, view._view_name, view.redrawn) == ("distdl-jupyter", "job", False)
    wait_for(lambda: view.state, what="the state")
    assert view.value == "", "the kernel draws nothing that nobody sees"


def test_other_front_ends_show_a_page_that_is_redrawn_also_in_a_box(tell, shown, vscode):
    story = tell("running")
    view = shown(story)
    assert ipywidgets.HBox([view]).children == (view,)
    assert (view._view_module, view._view_name) == ("@jupyter-widgets/controls", "HTMLView")
    wait_for(lambda: "744" in view.value, what="the page")
    story.t = time.time()
    story.train(800, 0.0)
    wait_for(lambda: "792" in view.value, what="what came later")
    story.complete()
    wait_for(lambda: "Completed" in view.value, what="the end")


def test_a_page_whose_server_does_not_know_the_job_lets_the_kernel_draw_it(tell, shown):
    view = shown(tell("completed"))
    wait_for(lambda: view.state, what="the state")
    view.set_state({"redrawn": True})
    wait_for(lambda: "Completed" in view.value, what="the page")


def test_the_page_of_a_job_that_is_deleted_says_so(tell, shown, vscode):
    story = tell("running")
    view = shown(story)
    wait_for(lambda: "744" in view.value, what="the page")
    story.complete()
    attach(story.id).remove()
    wait_for(lambda: "This job was deleted." in view.value or "Completed" in view.value, what="the end")


def test_a_panel_whose_thread_breaks_says_so_in_the_kernels_log(tell, shown, vscode, monkeypatch, caplog):
    story = tell("running")
    monkeypatch.setattr(MetricStore, "apply", lambda self, event: 1 / 0)
    shown(story)
    wait_for(lambda: "has stopped" in caplog.text, what="the sentence")
    assert story.id in caplog.text
    assert "ZeroDivisionError" in caplog.text
