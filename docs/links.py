"""Checks the built pages: every link inside the site has its target, and nothing is loaded from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.util import logging

#: Tags that load what they name, and the attribute that names it.
LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of a tag."""
        attributes = dict(attrs)
        self.anchors.update(filter(None, (attributes.get("id"), attributes.get("name"))))
        if tag == "a" and attributes.get("href"):
            self.links.append(str(attributes["href"]))
        address = attributes.get(LOADING.get(tag, ""))
        if address and not (tag == "link" and attributes.get("rel") in ("canonical", "next", "prev")):
            self.loads.append(address)


def check(app: Any, error: Exception | None) -> None:
    """Name every broken link and everything that is loaded from elsewhere, and let the build fail."""
    if error is not None or app.builder.format != "html":
        return
    top = Path(app.outdir).resolve()
    paths = (path for path in top.rglob("*.html") if "_static" not in path.parts)
    pages = {path.resolve(): Page(path) for path in paths}
    wrong = [f"{path.relative_to(top)}: {text}" for path, page in pages.items() for text in _wrong(path, page, pages)]
    for text in wrong:
        logging.getLogger(__name__).error(text)
    if wrong:
        app.statuscode = 1


def _wrong(path: Path, page: Page, pages: dict[Path, Page]) -> list[str]:
    problems = [f"loads {address}" for address in page.loads if urlsplit(address).netloc]
    for address in [*page.links, *page.loads]:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not target.exists():
            problems.append(f"{address} is not there")
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            problems.append(f"{address} has no such place")
    return problems
