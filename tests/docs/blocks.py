"""The code blocks of README, CONTRIBUTING and the site's pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"(?ms)^```(\w+)\n(.*?)^```$")


@dataclass(frozen=True)
class Block:
    """One fenced block (``python``, ``sh``, ``text``) and the heading that it is under."""

    page: str
    line: int
    kind: str
    text: str
    heading: str = ""


def pages() -> list[Path]:
    """Return what people wrote: not what is generated."""
    written = (path for path in DOCS.rglob("*.md") if not {"_build", "reference", "notebooks"} & set(path.parent.parts))
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(written)]


def blocks(path: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    text = path.read_text()
    name = path.relative_to(ROOT).as_posix()
    headings = [(match.start(), match[1]) for match in re.finditer(r"(?m)^## (.*)$", text)]
    fenced = []
    for match in _FENCE.finditer(text):
        line = text[: match.start()].count("\n") + 2
        above = [heading for start, heading in headings if start < match.start()]
        fenced.append(Block(name, line, match[1], match[2], above[-1] if above else ""))
    return fenced
