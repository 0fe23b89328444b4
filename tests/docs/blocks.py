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
    """One fenced block: ``python``, ``sh``, ``text``."""

    page: str
    line: int
    kind: str
    text: str


def pages() -> list[Path]:
    """Return what people wrote: not what is generated."""
    written = (path for path in DOCS.rglob("*.md") if not {"_build", "reference", "notebooks"} & set(path.parent.parts))
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(written)]


def blocks(path: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    text = path.read_text()
    name = path.relative_to(ROOT).as_posix()
    return [Block(name, text[: found.start()].count("\n") + 2, found[1], found[2]) for found in _FENCE.finditer(text)]
