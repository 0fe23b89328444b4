"""Training that hangs, fails and goes on, as a user sees it in JupyterLab: stalls, stacks, restarts, resumed jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from distdl_jupyter.jobs import client
from tests.browser import pages
from tests.browser.conftest import Book, Lab
from tests.conftest import until_gone, wait_for
from tests.widgets import recorded

pytest_plugins = ("tests.browser.static_page",)
pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

LOAD = """%load_ext distdl_jupyter
import os
os.environ["DISTDL_STALL_SECONDS"] = "5"
"""
#: Rank 1 leaves one all-reduce out and waits for something that never comes.
STUCK = """%%distributed -p 2 -b torch --name stuck -o job
import time, torch, torch.distributed as dist
from distdl_jupyter import log
dist.init_process_group("gloo")
for step in range(1000):
    log(step=step, loss=1 / (step + 1))
    while dist.get_rank() == 1 and step == 20:
        time.sleep(0.2)
    dist.all_reduce(torch.ones(1))
"""
#: Writes down how far it is, fails once in the middle, and goes on from there the next time.
STEPS = """
import os, time
from distdl_jupyter import checkpoint_dir, log
kept = checkpoint_dir() / "step.txt"
first = int(kept.read_text()) if kept.exists() else 0
print("begins at step", first, flush=True)
for step in range(first, 30):
    log(step=step, loss=1 / (step + 1))
    kept.write_text(str(step))
    time.sleep(0.1)
    if step == 12 and first == 0:
        raise RuntimeError("the shard of step 12 is damaged")
"""


def both_groups(where: Locator) -> None:
    """See the rank that differs first, with its line, and beside it the one that waits."""
    columns = where.locator(".dd-stackcol")
    expect(columns).to_have_count(2)
    expect(columns.nth(0)).to_contain_text("rank 1")
    expect(columns.nth(0)).to_contain_text("differs")
    expect(columns.nth(0)).to_contain_text("time.sleep(0.2)")
    expect(columns.nth(1)).to_contain_text("rank 0")
    expect(columns.nth(1)).to_contain_text("all_reduce")
    expect(columns.nth(1)).to_contain_text("dist.all_reduce(torch.ones(1))")


@pytest.mark.full
def test_a_stalled_job_says_who_differs_and_shows_both_stacks(desk: Callable[..., Book], lab: Lab) -> None:
    book = desk([LOAD, STUCK, "from distdl_jupyter import panel\npanel(job)"], height=1300)
    book.run_all()
    cell = book.output(1)
    line = cell.locator(".dd-stall")
    expect(line).to_contain_text(re.compile(r"No progress\. Rank 0 waits in all_reduce, .*which rank 1 has not called"))
    # One number, which counts on.
    assert len(re.findall(r"\b[0-9]+ (?:s|min)\b", line.inner_text())) == 1
    expect(cell.locator(".dd-pill").first).to_have_text("Stalled")
    row = book.sidebar().root.locator(".dd-job[data-id]").filter(has_text="stuck")
    expect(row).to_have_attribute("data-state", "stalled")
    expect(row).to_contain_text("No progress: rank 1 differs")  # as much as the narrowest list has room for
    assert "Stalled" in lab.run("ls")
    cell.get_by_role("button", name="Show stacks").click()
    both_groups(cell)
    # The notice stays, with the button that hides them again, and no frame is ours.
    expect(line).to_contain_text("which rank 1 has not called")
    expect(line.get_by_role("button", name="Hide stacks")).to_have_attribute("aria-expanded", "true")
    expect(cell.locator(".dd-stacks")).not_to_contain_text("watched")
    cell.get_by_role("button", name="Capture again").click()
    expect(cell.locator(".dd-stacks select option")).to_have_count(2)
    book.page.keyboard.press("Escape")
    expect(cell.locator(".dd-stackcol").first).to_be_hidden()

    widget = book.output(2)
    widget.get_by_role("button", name="Show stacks").click()
    both_groups(widget)

    (id_,) = [one.id for one in lab.store.list_folders() if one.read_spec().name == "stuck"]
    page = book.open_job(id_)
    expect(page.locator("tr.dd-oddrow")).to_contain_text("differs from the others")
    # A request that fails on its way is made again.
    lost: list[str] = []

    def lose(route: Route) -> None:
        lost.append(route.request.url)
        route.abort()

    book.page.route(re.compile(r"/distdl/api/jobs/[^/]+/stacks\?"), lose, times=1)
    page.get_by_role("button", name="Show stacks").click()
    both_groups(page)
    assert len(lost) == 1
    line = page.locator(".dd-stackcol").nth(0).get_by_role("button", name=re.compile("line 7|line 8"))
    expect(line.first).to_be_visible()
    calls = page.locator(".dd-collectives tbody tr").locator("visible=true")  # not in the notice as well
    expect(calls).to_have_count(2)
    assert (calls.first.bounding_box() or {"height": 0})["height"] > 15
    client.Job(lab.store.get_folder(id_)).cancel()
    pages.says(page, "Canceled")
    # What was taken is still to be read.
    expect(page.locator(".dd-stackcol")).to_have_count(2)
    assert not until_gone(id_)
    assert not book.errors


@pytest.mark.full
def test_a_failed_job_goes_on_from_its_checkpoint_with_a_button(desk: Callable[..., Book], lab: Lab) -> None:
    book = desk([LOAD, f"%%distributed -p 1 --name shards{STEPS}"])
    book.run_all()
    cell = book.output(1)
    expect(cell.get_by_role("alert")).to_contain_text("RuntimeError")
    first = next(iter(lab.store.list_folders())).id
    cell.get_by_role("button", name="Resume").click()
    fresh = wait_for(lambda: next((one for one in lab.store.list_folders() if one.id > first), None), what="a job")
    page = book.page.locator(f"#distdl-job-{fresh.id}")
    pages.says(page, "Completed")
    expect(page.locator(".dd-log")).to_contain_text("begins at step 12")
    page.get_by_role("button", name=first.rsplit("-", 1)[1]).click()
    pages.says(book.page.locator(f"#distdl-job-{first}"), "Failed")
    assert not book.errors


LIBRARY, CODE = "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", "/tmp/ipykernel_9/7.py"


def test_only_frames_of_libraries_that_follow_each_other_fold(static_page: Callable[..., Any]) -> None:
    frames = [(LIBRARY, "relu"), (CODE, "forward"), (LIBRARY, "_call_impl"), (LIBRARY, "__call__"), (CODE, "<module>")]
    stack = "\n".join(f'  File "{file}", line 2 in {name}' for file, name in frames)
    text = f"Current thread 0x01 (most recent call first):\n{stack}"
    ranks = {"0": {"text": text, "about": {"main": "0x01"}}}
    code = {"sources": {CODE: {"label": "In [7]", "text": "a\nb\n", "first_line": 1}}}
    with recorded.telling() as tell:
        story = tell("running")
        (story.folder.path / "payload.json").write_text(json.dumps(code))
        page = static_page([f"from distdl_jupyter import attach, panel\npanel(attach('{story.id}'))"]).page
        page.get_by_role("button", name="Show stacks").click()
        wait_for(story.folder.control.exists, what="the question")
        (story.folder.path / "stacks").mkdir()
        taken = {"t": story.t, "why": "request", "ranks": ranks, "missing": {}}
        (story.folder.path / "stacks" / "1.json").write_text(json.dumps(taken))
        story.event("stacks", number=1, why="request", ranks=[0], missing=[])
        column = page.locator(".dd-stackcol")
        expect(column.locator("summary")).to_have_text(["2 frames of torch"])
        expect(column.locator("b.dd-own")).to_have_text(["forward", "<module>"])
