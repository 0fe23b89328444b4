"""A saved notebook in a stranger's browser: the static page is readable on any ground, at any width, trusted or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser

from distdl_jupyter.html.job import render_html as saved_page
from tests.browser.conftest import ARTIFACTS, Lab, new_book
from tests.browser.pages import too_faint
from tests.widgets.stories import STORIES, fold, spec_of

pytestmark = pytest.mark.browser

RANKS = Path(__file__).parents[2] / "notebooks" / "ranks.ipynb"


def page_of(name: str) -> str:
    spec = spec_of()
    return saved_page(*fold(spec, STORIES[name]()), spec, "{'test_accuracy': 0.978}" if name == "completed" else "")


@pytest.mark.full
def test_on_a_page_of_any_colour_and_width(chromium: Browser) -> None:
    page = chromium.new_page(viewport={"width": 1100, "height": 900})
    parts = "".join(f"<div class='story' style='margin-bottom:24px'>{page_of(name)}</div>" for name in STORIES)
    page.set_content(f"<!doctype html><body style='margin:12px'>{parts}")
    ARTIFACTS.mkdir(exist_ok=True)
    for ground, ink in (("#ffffff", "#000"), ("#111111", "#eee")):
        page.evaluate("(colours) => Object.assign(document.body.style, colours)", {"background": ground, "color": ink})
        assert too_faint(page, ".story *") == []
        for width in (1100, 820, 480, 340):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for picture in page.locator("img").all():
                assert picture.evaluate("e => e.complete && e.naturalWidth") == 430
                box = picture.bounding_box()
                assert box is not None
                assert box["x"] + box["width"] <= width
        page.screenshot(path=ARTIFACTS / f"static-{ground[1:]}.png", full_page=True)
    page.locator("summary").first.click()
    assert page.get_by_text("rank 3: ended by SIGTERM, after 2.1 s").first.is_visible()
    page.close()


def saved(lab: Lab, name: str, stories: list[str]) -> Path:
    """Write a notebook as a stranger gets it: with outputs, those of cells on ranks too, and signed by nobody here."""
    book: Any = nbformat.read(RANKS, as_version=4)
    for number, story in enumerate(stories):
        output = nbformat.v4.new_output("display_data", {"text/html": page_of(story), "text/plain": story})
        cell = nbformat.v4.new_code_cell("%%distributed", execution_count=number + 1, outputs=[output])
        book.cells.insert(number, cell)
    path = lab.root / name
    nbformat.write(book, path)
    return path


def test_in_a_notebook_that_is_not_trusted_in_both_themes(lab: Lab, chromium: Browser) -> None:
    stories = ["completed", "failed"]
    name = saved(lab, "stranger.ipynb", stories).name
    book = new_book(chromium, lab, 1000, 2600, 1)
    book.open(name)
    assert json.loads((lab.root / name).read_text())["cells"][0]["metadata"].get("trusted") is None
    outputs = [book.output(number).locator(".jp-RenderedHTML") for number in range(len(stories))]
    for dark in (False, True):
        book.theme(dark=dark)
        assert outputs[0].locator("img").evaluate("e => e.complete && e.naturalWidth") == 430
        said = outputs[0].inner_text()
        assert "Completed" in said
        assert "min to max" not in said, "letters of the picture stand in the page"
        assert book.page.locator(".dd-rankcell pre").count() > 0
        assert too_faint(book.page, ".jp-RenderedHTML *") == []
    assert not book.errors
    book.page.context.close()
