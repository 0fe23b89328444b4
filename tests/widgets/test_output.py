"""What a cell leaves behind, when a program and not a person runs the notebook."""

import sys

import nbformat
import pytest
from nbclient import NotebookClient

from distdl_jupyter import attach, panel
from distdl_jupyter.core.errors import PluginUnavailable
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.widgets import output, widget
from tests.conftest import wait_for
from tests.widgets import recorded

pytestmark = pytest.mark.timeout(300)

TRAIN = """
from distdl_jupyter import submit
from distdl_jupyter.widgets import show

def train(bad=False):
    from distdl_jupyter import log
    for step in range(5):
        log(step=step, loss=1 / (step + 1))
    print("the last line", flush=True)
    if bad:
        raise ValueError("no such thing")
    return 0.25

"""


def run(*cells):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    NotebookClient(book, timeout=120, kernel_name="python3").execute()
    return book


def test_the_output_holds_the_end_when_wait_returns():
    book = run(TRAIN + 'job = submit(train, name="digits", distributed_backend="plain")\nshow(job)\njob.wait()\nNone')
    (output,) = book.cells[0].outputs
    assert set(output.data) == {"application/vnd.distdl.job+json", "text/html", "text/plain"}
    assert "Completed" in output.data["text/html"]
    assert "the last line" in output.data["text/html"]
    assert "0.25" in output.data["text/html"]
    assert "Completed" in output.data["text/plain"]
    assert output.data["application/vnd.distdl.job+json"]["version"] == 1
    assert "widgets" not in book.metadata, "none was drawn"
    assert len(nbformat.writes(book)) < 100_000


def test_a_cell_that_waits_later_writes_the_end_into_the_first_ones_output():
    book = run(
        TRAIN + 'job = submit(train, name="digits", distributed_backend="plain")\nshow(job)',
        "import time\nuntil = time.time() + 60\n"
        "while not job.view().state.ended and time.time() < until: time.sleep(0.1)\ntime.sleep(3)",
        "job.result()",
    )
    (output,) = book.cells[0].outputs
    assert "Completed" in output.data["text/html"]
    assert book.cells[2].outputs[0].data["text/plain"] == "0.25"


def test_a_front_end_that_can_draw_no_widget_of_ours_gets_the_static_page(monkeypatch):
    monkeypatch.setattr(widget, "cell_id", lambda: "vscode-notebook-cell:/home/ada/digits.ipynb#W0")
    monkeypatch.setitem(sys.modules, "anywidget", None)  # it cannot be imported
    widget._with_its_code.cache_clear()
    story = recorded.tell("completed")
    story.close()
    job = attach(story.id)
    with pytest.raises(PluginUnavailable, match=r"need anywidget") as refused:
        panel(job)
    assert "distdl-jupyter[anywidget]" in refused.value.hint
    shown = output.Shown(job, with_widget=True)
    assert set(shown._bundle(shown._read(60))) == {"application/vnd.distdl.job+json", "text/html", "text/plain"}


@pytest.mark.parametrize("kind", ["silent", "running", "starting"])
def test_a_job_that_is_removed_is_shown_as_removed(monkeypatch, kind):
    shown = []
    monkeypatch.setattr(output, "_display", lambda bundle, _id, *, update: shown.append((update, bundle)))
    with recorded.telling() as tell:
        story = tell(kind)
        output.Shown(attach(story.id), with_widget=False).start()
        JobStore().remove(story.folder)
        wait_for(lambda: len(shown) > 1, what="the last state")
    update, bundle = shown[-1]
    assert update
    assert "This job was deleted." in bundle["text/html"]
    assert "This job was deleted." in bundle["text/plain"]
    assert "%dist_attach" not in bundle["text/html"] + bundle["text/plain"]
    assert "attach(" not in bundle["text/html"] + bundle["text/plain"]
    # A thread that failed would be a warning, which is an error here.


def test_a_job_that_is_removed_just_after_its_end_keeps_what_was_known(monkeypatch):
    shown = []
    monkeypatch.setattr(output, "_display", lambda bundle, _id, *, update: shown.append(bundle))
    with recorded.telling() as tell:
        story = tell("running")
        one = output.Shown(attach(story.id), with_widget=False)
        one.start()
        story.complete()
        JobStore().remove(story.folder)
        one.waited()
    assert "This job was deleted." in shown[-1]["text/plain"]
    assert "loss" in shown[-1]["text/plain"]
