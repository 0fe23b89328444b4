"""The panel of a job's seven steps: true while it runs and for ever, safe, and without a script."""

import threading
import time

import pytest

from distdl_jupyter import attach, submit, timeline
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.core.view import JobView
from distdl_jupyter.saved import timeline as saved
from distdl_jupyter.views.job_page import job_steps
from tests.conftest import wait_for
from tests.widgets import recorded


def slow(path):
    import pathlib

    while not pathlib.Path(path).exists():
        time.sleep(0.05)


@pytest.fixture
def shown(monkeypatch):
    """What is written to the notebook, in order."""
    written = []
    monkeypatch.setattr("IPython.display.publish_display_data", lambda data, **more: written.append((data, more)))
    yield written
    wait_for(lambda: not [one for one in threading.enumerate() if one.name.startswith("distdl-timeline")])


def test_it_follows_a_real_job_to_its_end(tmp_path, shown):
    job = submit(slow, (str(tmp_path / "go"),), name="steps")
    told = timeline(job)
    told._ipython_display_()
    wait_for(lambda: told.steps[5].state == "now", what="training")
    assert told.steps[6].state == "next"
    (tmp_path / "go").touch()
    job.wait(60)
    last, more = shown[-1]  # what a cell that waits leaves behind
    assert more["update"]
    assert len({more["transient"]["display_id"] for _, more in shown}) == 1
    assert "Completed" in last["text/html"]
    assert [step.state for step in told.steps] == ["done", "unused", "done", "unused", "done", "done", "done"]
    assert sum(step.seconds or 0.0 for step in told.steps) < job.view().elapsed(time.time()) + 5
    assert "steps" in last["text/plain"].splitlines()[0]
    assert len(last["text/plain"].splitlines()) == 8


def test_a_job_that_is_removed_ends_it(shown):
    with recorded.telling() as tell:
        story = tell("starting")
        timeline(attach(story.id))._ipython_display_()
        JobStore().remove(story.folder)
        wait_for(lambda: not [one for one in threading.enumerate() if one.name.startswith("distdl-timeline")])
    data, more = shown[-1]
    assert more["update"]
    assert story.id in data["text/plain"]
    assert "deleted" in data["text/plain"]


def test_an_ended_job_is_written_once(shown):
    job = submit(int, name="steps").wait(60)
    timeline(job)._ipython_display_()
    ((data, more),) = shown
    assert not more["update"]
    assert data["text/html"] == timeline(job)._repr_html_()


def test_names_from_a_job_are_text():
    spec = JobSpec(id="20261121-024912-k3f9x", name="<script>x</script>", created=100.0)
    view = JobView.of(spec)
    view.apply({"v": 1, "t": 100.0, "type": "phase", "phase": "capture", "detail": "<b>\x1b[31m", "seconds": 0.0})
    page = saved.html(view, job_steps(view, spec, 101.0))
    assert "<script" not in page
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert "\x1b" not in saved.text(view, job_steps(view, spec, 101.0))
    assert "class=" not in page
    assert len(page) < 20_000
