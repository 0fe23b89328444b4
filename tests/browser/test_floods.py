"""A log of 100 MB in a real JupyterLab: open at the end at once, and nothing lost."""

from __future__ import annotations

from contextlib import closing

import pytest
from playwright.sync_api import Locator, expect

from tests.browser import pages
from tests.browser.conftest import Book
from tests.conftest import wait_for
from tests.widgets import recorded

pytestmark = [pytest.mark.full, pytest.mark.browser, pytest.mark.timeout(600)]

LINES, BATCH = 1_000_000, 500


def texts(page: Locator) -> list[str]:
    """Return the lines that are drawn, from top to bottom."""
    found: list[str] = pages.log_body(page).evaluate(
        """(body) => [...body.querySelectorAll('.dd-ll')]
            .sort((a, b) => parseFloat(a.style.top) - parseFloat(b.style.top))
            .map((row) => row.querySelector('.dd-text').textContent)"""
    )
    return found


def height(page: Locator) -> int:
    return int(pages.log_body(page).evaluate("(body) => body.scrollHeight"))


def write_lines(story: recorded.Recording) -> None:
    """Write half a million lines of each of two ranks, and a metric with every ``BATCH`` of them."""
    for number in range(LINES // BATCH // 2):
        for rank in range(2):
            text = "\n".join(f"rank {rank} line {number * BATCH + k:8d} {'.' * 90}" for k in range(BATCH))
            story.line(rank, text, after=0.001)
            story.event("metric", rank=rank, step=number, values={"loss": 1 / (number + 1)})


def test_a_log_of_100_mb_opens_at_its_end_and_earlier_lines_come_when_one_scrolls_there(shared_page: Book) -> None:
    book = shared_page
    with closing(recorded.begin(60, book.lab.store, node_count=1)) as story:
        story.set_up()
        write_lines(story)
        story.complete()
    assert story.folder.log.stat().st_size > 100e6
    page = book.open_job(story.id)
    wait_for(lambda: "4 ranks exited with code 0" in texts(page), what="the last line")
    pages.says(page, "Completed")
    expect(page.get_by_role("table").first).to_contain_text("500,0")
    expect(pages.curves(page).first).to_be_attached()
    first = texts(page)[0]
    gap = page.locator(".dd-ll-gap")
    for _ in range(2):  # what is at hand on the server, then what is in the file alone
        before = height(page)
        pages.to_the_top(page)
        wait_for(lambda before=before: height(page) > before, what="earlier lines")
        assert texts(page)[0] != first
    pages.to_the_top(page)
    wait_for(lambda: gap.count() or texts(page), what="the top")
    expect(pages.log_body(page)).to_be_visible()
    page.get_by_role("tab", name="Rank 1").click()
    wait_for(lambda: all("rank 1" in line for line in texts(page) if "line" in line), what="one rank")
    expect(gap).to_have_text("… earlier lines not shown here")
    gap.click()
    assert not book.errors
