"""What ranks use and where the time of their steps goes, as the page of a job shows it while it runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from distdl_jupyter.core.events import VERSION
from distdl_jupyter.core.resources import encode_sample
from tests.browser.conftest import Book
from tests.widgets.recorded import Recording

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(600)]

GB = 1e9


def write_samples(path: Path, seconds: int, *, until: float) -> None:
    """Write what four ranks on two hosts with GPUs used; the memory of rank 3 grows towards the limit of its host."""
    with path.open("wb") as file:
        for second in range(seconds):
            for node, host in enumerate(("gpu1", "gpu2")):
                gpus = [{"number": n, "name": "A10", "memory": 24 * GB, "ranks": [2 * node + n]} for n in range(2)]
                about = {"host": host, "cores": 8, "gpus": gpus}
                file.write(encode_sample(node, {**sample(node, second, until - seconds + second), "about": about}))


def sample(node: int, second: int, t: float) -> dict[str, Any]:
    own = {rank: (4.2 + (10.4 * second / 90 if rank == 3 else 0)) * GB for rank in (2 * node, 2 * node + 1)}
    network = (116 if node else 9) * 1e6
    disk = {"disk_read": 2e6, "disk_written": 1e6}
    memory = {"memory": sum(own.values()) - 4 * GB, "limit": 14.5 * GB}
    return {
        "t": t,
        "node": {"cpu": 180.0, **memory, **disk, "received": network, "sent": 1e6},
        "ranks": {str(rank): [82.0 + (second + rank) % 5, held] for rank, held in own.items()},
        "gpus": {str(n): [57 + (second + n) % 4, 3.1 * GB, 150.0] for n in range(2)},
    }


def test_the_job_page_shows_each_rank_and_names_the_one_that_fills_the_memory(
    shared_page: Book, told: Callable[[str], Recording]
) -> None:
    story = told("running")
    write_samples(story.folder.resources, 85, until=time.time())
    page = shared_page.open_job(story.id)
    warning = page.get_by_role("status").filter(has_text="The memory on gpu2 is")
    expect(warning).to_be_visible()
    rows = page.get_by_role("table").locator("tbody tr")
    expect(rows.nth(3)).to_contain_text("14 GB")
    expect(rows.nth(3).locator("..").locator("tr.dd-oddrow")).to_have_count(1)
    expect(rows.nth(0)).to_contain_text("3.1 GB")
    strips = page.locator(".dd-strip[role='img']")
    expect(strips).to_have_count(7)
    assert "rank 3: 14 GB, others: 4.2 GB" in str(strips.nth(1).get_attribute("aria-label"))
    strips.nth(1).locator(".dd-stripplot").hover()
    expect(strips.nth(1).locator(".dd-stripcursor")).to_be_visible()
    expect(strips.nth(1).locator(".dd-stripvalue")).not_to_contain_text("rank 3: 14")
    page.locator(".dd-resources").scroll_into_view_if_needed()
    assert not shared_page.errors


def write_steps(path: Path, *, late: int, steps: int = 60) -> None:
    """Write steps of 62 ms on four ranks; the data of rank 3 comes ``late`` ms later than that of the others."""
    with path.open("a", encoding="utf-8") as file:
        for rank in range(4):
            data, wait = (3 + late, 3) if rank == 3 else (3, 3 + late)
            record = [1000 * (36 + 2 + data + wait), 1000 * data, 2000, 32, 1000 * wait]
            line = {"v": VERSION, "t": 0, "type": "steps", "attempt": 0, "rank": rank, "first": 0, "size": 1}
            line |= {"records": [record] * steps}
            file.write(json.dumps(line) + "\n")


def test_the_job_page_names_the_rank_that_the_others_wait_for(
    shared_page: Book, told: Callable[[str], Recording]
) -> None:
    story = told("running")
    write_steps(story.folder.steps, late=19)
    page = shared_page.open_job(story.id)
    part = page.locator(".dd-steptime")
    finding = "Rank 3 (node-b) delays every step by 19 ms (30 %). It waits longer for its data."
    expect(page.locator(".dd-finding").get_by_role("status")).to_contain_text(finding)
    expect(page.locator(".dd-notice")).to_have_count(1)
    expect(page.locator(".dd-rate")).to_have_text("2,032 samples/s")  # the finding has the share, so it is there once
    expect(part.locator("summary")).to_contain_text("mean of 59 steps")
    bars = part.get_by_role("img")
    expect(bars).to_have_count(4)
    assert bars.nth(0).get_attribute("aria-label") == (
        "data 3 ms, compute 36 ms, communication 3 ms, rest 2 ms, waiting for others 19 ms"
    )
    expect(part.locator(".dd-role.dd-odd")).to_have_text("waits for its data 22 ms")
    expect(part).to_contain_text("44 ms per step if rank 3 had its data")
    assert not shared_page.errors
