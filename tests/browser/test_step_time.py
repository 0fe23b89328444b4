"""Where the time of a step goes, as the page of a job shows it while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from distdl_jupyter.core.events import VERSION
from tests.browser.conftest import Book
from tests.widgets.recorded import Recording

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(600)]


def write_steps(path: Path, *, late: int, steps: int = 60) -> None:
    """Write steps of 62 ms on four ranks; the data of rank 3 comes ``late`` ms later than that of the others."""
    with path.open("a", encoding="utf-8") as file:
        for rank in range(4):
            data, wait = (3 + late, 3) if rank == 3 else (3, 3 + late)
            record = [1000 * (36 + 2 + data + wait), 1000 * data, 2000, 32, 1000 * wait]
            line = {"v": VERSION, "t": 0, "type": "steps", "attempt": 0, "rank": rank, "first": 0, "size": 1,
                    "sending": 0, "records": [record] * steps}  # fmt: skip
            file.write(json.dumps(line) + "\n")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_job_page_names_the_rank_that_the_others_wait_for(
    shared_page: Book, told: Callable[[str], Recording], *, dark: bool
) -> None:
    shared_page.theme(dark=dark)
    story = told("running")
    write_steps(story.folder.steps, late=19)
    page = shared_page.open_job(story.id)
    part = page.locator(".dd-steptime")
    finding = "Rank 3 (node-b) delays every step by 19 ms (30 %). It waits longer for its data."
    expect(page.locator(".dd-finding").get_by_role("status")).to_contain_text(finding)
    expect(page.locator(".dd-notice")).to_have_count(1)
    expect(page.locator(".dd-rate")).to_have_text("2,032 samples/s · 27 % communication and waiting")
    expect(part.locator("summary")).to_contain_text("mean of 59 steps")
    bars = part.get_by_role("img")
    expect(bars).to_have_count(4)
    assert bars.nth(0).get_attribute("aria-label") == (
        "data 3 ms, compute 36 ms, communication 3 ms, rest 2 ms, waiting for others 19 ms"
    )
    expect(part.locator(".dd-role.dd-odd")).to_have_text("waits for its data 22 ms")
    expect(part).to_contain_text("44 ms per step if rank 3 had its data")
    shared_page.picture(f"step-time-{'dark' if dark else 'light'}", page)
    assert not shared_page.errors
