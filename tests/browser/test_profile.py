"""A profile of a running job, as the job's page asks for it, says how far it is, and shows it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Book
from tests.conftest import wait_for
from tests.widgets.recorded import Recording

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(600)]

#: Name, kind, calls and own microseconds in five steps.
ROWS = [("gloo:all_reduce", "communication", 10, 60_000), ("aten::mm", "compute", 60, 150_000),
        ("aten::convolution_backward", "compute", 20, 40_000), ("aten::add_", "compute", 400, 9_000),
        ("Optimizer.step#SGD.step", "python", 5, 2_500)]  # fmt: skip


def keep(folder: Path, number: int) -> None:
    """Keep a profile of five steps of 62 ms on four ranks, as a supervisor does; rank 3 multiplies for longer."""
    found: list[dict[str, Any]] = []
    for rank in range(4):
        rows = [
            [name, kind, calls, own * (1.4 if rank == 3 and name == "aten::mm" else 1.0)]
            for name, kind, calls, own in ROWS
        ]
        facts = {"rank": rank, "host": f"node-{'ab'[rank // 2]}", "first": 3, "steps": 5, "seconds": 0.31}
        found.append({**facts, "operators": rows, "gpu": False})
    at = folder / "profiles" / str(number)
    at.mkdir(parents=True)
    (at / "profile.json").write_text(json.dumps({"t": 1.7e9, "steps": 5, "ranks": found, "missing": {}}))
    for rank in range(4):
        (at / f"rank-{rank}.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [%d]}' % rank))


def test_steps_are_recorded_from_the_page(shared_page: Book, told: Callable[[str], Recording]) -> None:
    story = told("running")
    page = shared_page.open_job(story.id)
    page.get_by_role("button", name="Profile", exact=True).click()
    part = page.get_by_role("region", name="Profile", exact=True)
    part.get_by_label("Steps to record").fill("99")
    part.get_by_role("button", name="Record").click()
    expect(part.get_by_role("status")).to_have_text("A profile has 1 to 50 steps.")
    part.get_by_label("Steps to record").fill("5")
    part.get_by_role("button", name="Record").click()
    expect(part.get_by_role("status")).to_have_text("Waiting for the ranks")
    control = story.folder.control
    wait_for(lambda: control.exists() and '"profile"' in control.read_text(), 60, "the request")
    asked = {"number": 1, "steps": 5, "ranks": [0, 1, 2, 3]}
    story.event("profile", **asked, status="recording", recorded=2)
    expect(part.get_by_role("status")).to_have_text("Recording step 3 of 5")
    keep(story.folder.path, 1)
    story.event("profile", **asked, status="done", recorded=5)
    expect(part.get_by_role("status")).to_contain_text("5 steps of")
    expect(part.locator("tbody tr").first).to_contain_text("aten::mm")
    expect(part.locator("tbody tr").first.locator("td").last).to_have_text("42")  # of rank 3, the last column
    with shared_page.page.expect_download() as download:
        part.get_by_role("link", name="rank 2").click()
    assert json.loads(gzip.decompress(Path(download.value.path()).read_bytes())) == {"traceEvents": [2]}
    assert download.value.suggested_filename.endswith("-profile-1-rank-2.json.gz")
    assert not shared_page.errors
