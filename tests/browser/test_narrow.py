"""Narrow layouts and a change of the theme in JupyterLab: nothing is cut, covered or unreadable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Book
from tests.conftest import wait_for
from tests.widgets.recorded import Recording

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


def widths(book: Book, *pixels: int) -> Iterator[None]:
    """Make the window so wide, one after the other."""
    try:
        for width in pixels:
            book.page.set_viewport_size({"width": width, "height": 768})
            yield
    finally:
        book.page.set_viewport_size({"width": 1440, "height": 980})


def in_sight(bar: Locator) -> bool:
    """Whether no tab of a bar is cut at its sides; a third line of tabs may be scrolled to."""
    return bool(
        bar.evaluate(
            """(bar) => {
                const edge = bar.getBoundingClientRect();
                const within = ({ left, right }) => left >= edge.left && right <= edge.right + 1;
                return [...bar.children].every((tab) => within(tab.getBoundingClientRect()));
            }"""
        )
    )


def test_no_label_of_a_curve_covers_another_one(shared_page: Book, told: Callable[[str], Recording]) -> None:
    page = shared_page.open_job(told("completed").id)
    plot = page.locator(".dd-plot.dd-fitted").first
    for _ in widths(shared_page, 1500, 1366, 1000, 740, 600):
        expect(plot.locator(".xtick text").first).to_be_visible()
        wait_for(
            lambda: plot.evaluate("(e) => Math.abs(e.querySelector('.main-svg').clientWidth - e.clientWidth) < 30"),
            what="the curve in its width",
        )
        labels = plot.evaluate(
            "(plot) => [...plot.querySelectorAll('.xtick text, .ytick text, .xtitle, .textpoint text')]"
            ".filter((text) => text.textContent)"
            ".map((text) => [text.textContent, text.getBoundingClientRect().toJSON()])"
        )
        assert {"step", "0"} < {text for text, _ in labels}
        covered = [(one, other) for (one, a), (other, b) in combinations(labels, 2) if _touch(a, b)]
        assert covered == []


def _touch(one: dict[str, float], other: dict[str, float]) -> bool:
    return (
        one["left"] < other["right"]
        and other["left"] < one["right"]
        and one["top"] < other["bottom"] - 3  # The lines' boxes are a little higher than their letters.
        and other["top"] < one["bottom"] - 3
    )


@pytest.mark.parametrize("width", [250, 280, 380])
def test_a_narrow_sidebar_cuts_no_count(shared_page: Book, told: Callable[[str], Recording], width: int) -> None:
    told("running")
    told("completed")
    told("failed")
    stalled = told("running")
    stalled.event("stall", since=stalled.t, ranks=[1], text="No progress: rank 1 stands in Cell [2], line 8.")
    bar = shared_page.sidebar()
    expect(bar.root.get_by_text("No progress: rank 1 differs")).to_be_visible()
    bar.widen(width)
    summary = bar.summary("local")
    expect(summary).to_have_text("idle")
    # As it is while jobs hold cores and wait for them; and the longest that a cluster says.
    for text in ("1 job, 1 queued", "12 jobs, 24 queued", "2 of 4 nodes up, 8 of 16 GPUs"):
        summary.evaluate("(element, text) => { element.textContent = text; }", text)
        assert summary.evaluate("(element) => element.scrollWidth - element.clientWidth") <= 0
        name = bar.cluster("local").locator(".dd-cluster-name")
        assert name.evaluate("(element) => element.scrollWidth - element.clientWidth") <= 0
        assert bar.cut_off() <= 0
    cut = bar.root.evaluate(
        "(bar) => [...bar.querySelectorAll('.dd-job:not([data-state=lost]) *, .dd-cluster-head *')]"
        ".filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth)"
        ".filter((e) => getComputedStyle(e).textOverflow === 'ellipsis').map((e) => e.textContent)"
        ".filter((text) => !text.startsWith('test-'))"  # jobs of other tests, with the long names of their notebooks
    )
    assert cut == []
    # What kind of cluster it is can be read as a whole, or is left out.
    kind = bar.cluster("local").locator(".dd-cluster-kind")
    words = kind.evaluate(
        "(kind) => { const range = document.createRange(); range.selectNodeContents(kind);"
        " const [text, box] = [range.getBoundingClientRect(), kind.getBoundingClientRect()];"
        " return text.top >= box.bottom || text.right <= box.right + 1; }"
    )
    assert words


def test_a_narrow_page_shows_the_job_s_name_and_no_metric_in_part(
    shared_page: Book, told: Callable[[str], Recording]
) -> None:
    page = shared_page.open_job(told("completed").id)
    for _ in widths(shared_page, 1000, 740, 600):
        title = page.locator(".dd-head .dd-title")
        expect(title).to_have_text("digits")
        tabs = page.locator(".dd-metrics")
        expect(tabs.locator("button")).to_have_count(3)
        assert (title.bounding_box() or {"width": 0})["width"] >= 40
        assert tabs.evaluate("(tabs) => tabs.scrollWidth - tabs.clientWidth") <= 0
        edge = tabs.bounding_box()
        assert edge is not None
        for tab in tabs.locator("button").all():
            box = tab.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= edge["x"] + edge["width"] + 0.5
            bottom = edge["y"] + edge["height"]
            assert box["y"] + box["height"] <= bottom + 0.5 or box["y"] >= bottom - 0.5  # A third line is scrolled to.
        assert in_sight(page.locator(".dd-pagetabs"))
        page.get_by_role("tab", name="Log", exact=True).click()
        assert in_sight(page.locator(".dd-log .dd-tabs"))
        page.get_by_role("tab", name="Overview").click()
        page.get_by_role("button", name="Table").click()
        values = page.get_by_role("region", name="Values as a table")
        expect(values).to_be_visible()
        # A click may have scrolled the page.
        edge, below = tabs.bounding_box(), values.bounding_box()
        assert edge is not None
        assert below is not None
        assert below["y"] >= edge["y"] + edge["height"] - 1
        page.get_by_role("button", name="Table").click()
