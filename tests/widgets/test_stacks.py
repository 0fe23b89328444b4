"""How a saved notebook keeps restarts and stalls."""

from distdl_jupyter.html import job as saved
from distdl_jupyter.jobs.reader import PageReader
from tests.html.test_job import HOSTILE, check
from tests.widgets import recorded


def page_of(story):
    seen = PageReader(story.folder)
    seen.catch_up()
    return saved.render_html(seen.view, seen.curves, seen.log, seen.spec), saved.render_text(
        seen.view, seen.curves, seen.spec
    )


def test_a_saved_notebook_keeps_the_stall():
    story = recorded.tell("running")
    story.event("stall", since=story.t - 60, ranks=[2], text=f"No progress for 1 min: rank 2 is in {HOSTILE}.")
    html, text = page_of(story)
    story.close()
    assert "No progress for 1 min" in check(html).text
    assert "No progress for 1 min: rank 2 is in" in text


def test_a_saved_notebook_keeps_the_restarts_and_the_job_that_it_goes_on_from():
    story = recorded.begin(60, max_restarts=3, resumed_from="20261120-120400-ab7qd")
    story.set_up()
    for number in range(7):
        story.event("restart", 1, reason=f"Rank 1 failed first: KeyError: '{number}'. {HOSTILE}", rank=1)
    story.close()
    html, text = page_of(story)
    said = check(html).text
    assert "continues 20261120-120400-ab7qd" in said
    assert "Restart 7. Rank 1 failed first: KeyError: '6'." in said
    assert "Restart 7. Rank 1 failed first: KeyError: '6'." in text
    assert "continues 20261120-120400-ab7qd" in text
