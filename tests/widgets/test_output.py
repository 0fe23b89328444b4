"""What a cell leaves behind, when a program and not a person runs the notebook."""

import nbformat
import pytest
from nbclient import NotebookClient

from distdl_jupyter import attach
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.jobs import output as job_output
from distdl_jupyter.jobs.output import JobOutput
from tests.conftest import wait_for
from tests.widgets import recorded

pytestmark = pytest.mark.timeout(300)

TRAIN = """
from distdl_jupyter import submit
from distdl_jupyter.jobs.output import show

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


@pytest.fixture
def displayed(monkeypatch):
    """What was displayed: each bundle, and whether it updated an output."""
    bundles = []
    publish = lambda data, *, transient, update: bundles.append((update, data))  # noqa: E731
    monkeypatch.setattr("IPython.display.publish_display_data", publish)
    return bundles


def test_a_front_end_without_extensions_gets_a_page_that_is_redrawn(monkeypatch, displayed):
    monkeypatch.setattr(job_output, "has_extension", lambda: False)
    with recorded.telling() as tell:
        story = tell("running")
        output = JobOutput(attach(story.id))
        output.start()
        assert "744" in displayed[0][1]["text/html"]
        story.train(800)
        wait_for(lambda: "792" in displayed[-1][1]["text/html"], what="what came later")
        story.complete()
        wait_for(lambda: "Completed" in displayed[-1][1]["text/html"], what="the end")
        wait_for(lambda: output._is_settled, what="the end of its thread")


@pytest.mark.parametrize("kind", ["silent", "running", "starting"])
def test_a_job_that_is_removed_is_shown_as_removed(displayed, kind):
    with recorded.telling() as tell:
        story = tell(kind)
        JobOutput(attach(story.id)).start()
        JobStore().remove(story.folder)
        wait_for(lambda: len(displayed) > 1, what="the last state")
    update, bundle = displayed[-1]
    assert update
    assert "This job was deleted." in bundle["text/html"]
    assert "This job was deleted." in bundle["text/plain"]
    assert "%dist_attach" not in bundle["text/html"] + bundle["text/plain"]
    assert "attach(" not in bundle["text/html"] + bundle["text/plain"]
    # A thread that failed would be a warning, which is an error here.


def test_a_job_that_is_removed_just_after_its_end_keeps_what_was_known(displayed):
    with recorded.telling() as tell:
        story = tell("running")
        one = JobOutput(attach(story.id))
        one.start()
        story.complete()
        JobStore().remove(story.folder)
        one.draw_final_page()
    assert "This job was deleted." in displayed[-1][1]["text/plain"]
    assert "loss" in displayed[-1][1]["text/plain"]
