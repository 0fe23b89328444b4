"""What a panel answers about stacks, and how a saved notebook keeps restarts and stalls."""

import json
import time

from distdl_jupyter.html import job as saved
from distdl_jupyter.jobs.client import Job
from distdl_jupyter.jobs.reader import PageReader
from distdl_jupyter.widgets.job import JobPanel
from distdl_jupyter.widgets.widget import answer
from tests.html.test_job import HOSTILE, check
from tests.widgets import recorded

CELL = "/tmp/ipykernel_9/7.py"
HVD = "/v/lib/python3.11/site-packages/horovod/torch/mpi_ops.py"


def keep(story, *, name="step", ranks=4, number=1):
    """Put stacks into a job's folder as its supervisor does: rank 2 stands elsewhere than the others."""
    head = "Current thread 0x01 (most recent call first):"
    waits = "\n".join([head, f'  File "{HVD}", line 9 in allreduce', f'  File "{CELL}", line 2 in <module>'])
    stands = "\n".join([head, f'  File "{CELL}", line 3 in {name}'])
    texts = {str(rank): {"text": stands if rank == 2 else waits, "about": {"main": "0x01"}} for rank in range(ranks)}
    code = {"sources": {CELL: {"label": "In [7]", "text": f"a\nb\n{name}(a)\n", "first_line": 1}}}
    (story.folder.path / "payload.json").write_text(json.dumps(code))
    (story.folder.path / "stacks").mkdir(exist_ok=True)
    file = story.folder.path / "stacks" / f"{number}.json"
    file.write_text(json.dumps({"t": time.time(), "why": "stall", "ranks": texts, "missing": {"5": HOSTILE}}))
    story.event("stacks", number=number, why="stall", ranks=list(range(ranks)), missing=[])
    return story


def page_of(story):
    seen = PageReader(story.folder)
    seen.catch_up()
    given = (seen.view, seen.book, seen.log, seen.spec)
    return saved.html(*given), saved.text(*given)


def test_the_page_is_told_of_stacks_and_of_why_there_are_none():
    story = keep(recorded.tell("running"))
    try:
        shown = JobPanel(Job(story.folder))
        told = answer(shown.calls, {"ask": "stacks", "given": {"number": 1}})["value"]
        assert [group["ranks"] for group in told["groups"]] == [[2], [0, 1, 3]]
        for number in (2, None, "1", -1, "../1"):
            assert answer(shown.calls, {"ask": "stacks", "given": {"number": number}})["error"]["hint"]
        assert answer(shown.calls, {"ask": "take_stacks"}) == {"value": None}
        assert json.loads(story.folder.control.read_text())["type"] == "stacks"
    finally:
        shown.close()
        story.close()


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
