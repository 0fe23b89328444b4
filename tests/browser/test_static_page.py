"""A saved notebook in a stranger's browser: the static page is readable on any ground, at any width, trusted or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, Page

from distdl_jupyter.panels import snapshot
from tests.browser.conftest import ARTIFACTS, PATIENCE, Book, Lab
from tests.panels.stories import STORIES, fold, spec_of

pytestmark = pytest.mark.browser

#: Contrast of each piece of text against the ground that it really stands on (WCAG 2.2), lowest first.
CONTRASTS = """root => {
  const parse = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const over = ([r, g, b, a = 1], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
  const linear = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.getClientRects().length) continue;
    const below = ground(element);
    const ink = over(parse(getComputedStyle(element).color), below);
    const [a, b] = [luminance(ink), luminance(below)].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), node.data.trim()]);
  }
  return found.sort((x, y) => x[0] - y[0]).slice(0, 3);
}"""


def page_of(name: str) -> str:
    spec = spec_of()
    return snapshot.html(*fold(spec, STORIES[name]()), spec, "{'test_accuracy': 0.978}" if name == "completed" else "")


def readable(page: Page, selector: str) -> None:
    for element in page.locator(selector).all():
        lowest = element.evaluate(CONTRASTS)
        assert lowest
        assert lowest[0][0] >= 4.5, lowest


@pytest.mark.parametrize("ground", ["#ffffff", "#111111"])
@pytest.mark.parametrize("width", [1100, 820, 480, 340])
def test_on_a_page_of_any_colour_and_width(chromium: Browser, ground: str, width: int) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 900}, device_scale_factor=1.5)
    parts = "".join(f"<div class='story' style='margin-bottom:24px'>{page_of(name)}</div>" for name in STORIES)
    ink = "#eee" if ground == "#111111" else "#000"
    page.set_content(f"<!doctype html><body style='margin:12px;background:{ground};color:{ink}'>{parts}")
    readable(page, ".story")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for picture in page.locator("img").all():
        assert picture.evaluate("e => e.complete && e.naturalWidth") == 430
        box = picture.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
    page.locator("summary").first.click()
    assert page.get_by_text("rank.py").first.is_visible()
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"static-{ground[1:]}-{width}.png", full_page=True)
    page.close()


def saved(lab: Lab, name: str, stories: list[str]) -> Path:
    """Write a notebook as a stranger gets it: with outputs, and signed by nobody here."""
    cells = []
    for number, story in enumerate(stories):
        output = nbformat.v4.new_output("display_data", {"text/html": page_of(story), "text/plain": story})
        cells.append(nbformat.v4.new_code_cell("%%distributed", execution_count=number + 1, outputs=[output]))
    book: Any = nbformat.v4.new_notebook(cells=cells)
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = lab.root / name
    nbformat.write(book, path)
    return path


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_in_a_notebook_that_is_not_trusted(lab: Lab, chromium: Browser, theme: str) -> None:
    lab.set_theme(theme)
    stories = ["completed", "failed"]
    name = saved(lab, f"stranger-{theme[-5:].strip().lower()}.ipynb", stories).name
    context = chromium.new_context(viewport={"width": 1000, "height": 1400}, device_scale_factor=1.5)
    context.set_default_timeout(PATIENCE * 1000)
    book = Book(context.new_page(), lab)
    book.open(name)
    outputs = book.page.locator(".jp-RenderedHTML")
    outputs.nth(len(stories) - 1).wait_for()
    assert json.loads((lab.root / name).read_text())["cells"][0]["metadata"].get("trusted") is None
    book.picture(f"static-lab-{theme[-5:].strip().lower()}")
    first = outputs.first
    assert first.locator("img").evaluate("e => e.complete && e.naturalWidth") == 430
    said = first.inner_text()
    assert "Completed" in said
    assert "min to max" not in said, "letters of the picture stand in the page"
    readable(book.page, ".jp-RenderedHTML")
    book.page.evaluate("async () => { await window.jupyterapp.shell.currentWidget.sessionContext.shutdown(); }")
    context.close()
