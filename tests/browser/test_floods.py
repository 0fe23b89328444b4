"""A log of 100 MB and a job that floods, in a real JupyterLab: open at the end at once, live, nothing lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Locator, expect

from tests.browser import pages
from tests.browser.conftest import Book, Lab
from tests.conftest import wait_for
from tests.widgets import recorded
from tests.widgets.recorded import Recording

pytestmark = [pytest.mark.full, pytest.mark.browser, pytest.mark.timeout(600)]

LINES, BATCH = 1_000_000, 500


@pytest.fixture
def begin(lab: Lab) -> Iterator[Callable[[], Recording]]:
    """Return a function that begins a job that runs, with the real writer."""
    begun: list[Recording] = []

    def begin_() -> Recording:
        begun.append(recorded.begin(60, lab.store, node_count=1))
        begun[-1].set_up()
        return begun[-1]

    yield begin_
    for one in begun:
        one.close()


def block(number: int, rank: int) -> str:
    """Return some lines of a rank; a block is ``BATCH`` of its lines."""
    return "\n".join(f"rank {rank} line {number * BATCH + k:8d} {'.' * 90}" for k in range(BATCH))


def flood(story: Recording, blocks: int) -> None:
    for number in range(blocks):
        for rank in range(2):
            story.line(rank, block(number, rank), after=0.001)
            story.event("metric", rank=rank, step=number, values={"loss": 1 / (number + 1)})


@contextmanager
def flooding(story: Recording) -> Iterator[None]:
    """Some 20 MB a second while it lasts."""
    stop, blocks = threading.Event(), iter(range(10**9))

    def write() -> None:
        while not stop.wait(0.01):
            story.t = time.time()
            number = next(blocks)
            for rank in range(2):
                story.line(rank, block(number, rank))
                story.event("metric", rank=rank, step=number, values={"loss": 1.0})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def texts(page: Locator) -> list[str]:
    """Return the lines that are drawn, from top to bottom."""
    found: list[str] = pages.log_body(page).evaluate(
        """(body) => [...body.querySelectorAll('.dd-ll')]
            .sort((a, b) => parseFloat(a.style.top) - parseFloat(b.style.top))
            .map((row) => row.querySelector('.dd-text').textContent)"""
    )
    return found


def newest(page: Locator) -> int:
    """Return the number of the last line of a flood that is drawn, -1 for none."""
    lines = [line for line in texts(page) if line.startswith("rank ")]
    return int(lines[-1].split()[3]) if lines else -1


def moves(page: Locator, before: int) -> None:
    wait_for(lambda: newest(page) > before, what="newer lines")


def height(page: Locator) -> int:
    return int(pages.log_body(page).evaluate("(body) => body.scrollHeight"))


def grows(page: Locator, before: int) -> None:
    pages.to_the_top(page)
    wait_for(lambda: height(page) > before, what="earlier lines")


def test_a_log_of_100_mb_opens_at_its_end_and_earlier_lines_come_when_one_scrolls_there(
    shared_page: Book, begin: Callable[[], Recording]
) -> None:
    story = begin()
    flood(story, LINES // BATCH // 2)
    story.complete()
    assert story.folder.log.stat().st_size > 100e6
    book = shared_page
    page = book.open_job(story.id)
    wait_for(lambda: "4 ranks ended with code 0" in texts(page), what="the last line")
    pages.says(page, "Completed")
    expect(page.get_by_role("table").first).to_contain_text("500,0")
    expect(pages.curves(page).first).to_be_attached()
    first = texts(page)[0]
    gap = page.locator(".dd-ll-gap")
    for _ in range(2):  # what is at hand on the server, then what is in the file alone
        grows(page, height(page))
        assert texts(page)[0] != first
    pages.to_the_top(page)
    wait_for(lambda: gap.count() or texts(page), what="the top")
    expect(pages.log_body(page)).to_be_visible()
    book.picture("flood-earlier", page)
    page.get_by_role("tab", name="Rank 1").click()
    wait_for(lambda: all("rank 1" in line for line in texts(page) if "line" in line), what="one rank")
    expect(gap).to_have_text("… earlier lines not shown here")
    gap.click()
    assert not book.errors


def test_a_page_stays_live_in_a_flood_and_what_one_looks_at_stays(
    shared_page: Book, begin: Callable[[], Recording]
) -> None:
    story = begin()
    book = shared_page
    page = book.open_job(story.id)
    pages.says(page, "Running")
    with flooding(story):
        for _ in range(3):
            moves(page, newest(page))
        pages.log_body(page).hover()
        book.page.mouse.wheel(0, -200)
        expect(page.locator(".dd-follow")).to_have_attribute("aria-pressed", "false")
        held, size = texts(page), story.folder.log.stat().st_size
        wait_for(lambda: story.folder.log.stat().st_size > size + 2e7, what="20 MB more")
        expect(page.locator(".dd-fresh")).to_contain_text("new")
        assert texts(page) == held, "rows that somebody looks at stay"
        page.locator(".dd-follow").click()
        moves(page, newest(page))
        book.picture("flood-live", page)
    story.complete()
    pages.says(page, "Completed")
    wait_for(lambda: "4 ranks ended with code 0" in texts(page), what="the last line")
    rows = book.page.evaluate("() => document.querySelectorAll('.dd-ll').length")
    assert rows < 100, "only what is in sight is in the page"
    assert not book.errors
