"""A cell's text as the form sees it: the magic line on top, and the code below it. Pure text.

The cell's text stays the truth: the form reads its line and writes it back, and changes nothing below it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: The magics that run a cell as a job; the first is the one that is written.
MAGICS = ("%%distributed", "%%distdl")
#: The magic that runs it as many jobs, with other values of some names.
SWEEP = "%%sweep"
_MAGIC = re.compile(r"(%%\S*)[ \t]*(.*)")


@dataclass(frozen=True, slots=True)
class CellText:
    """``magic`` is the cell magic with its signs ("" without one), ``line`` what follows it, ``body`` all below.

    ``first_line`` is the cell's number of line 1 of ``body``.
    """

    magic: str
    line: str
    body: str
    first_line: int

    @property
    def ours(self) -> bool:
        """Whether the cell already runs as a job, or as the trials of a sweep."""
        return self.magic in (*MAGICS, SWEEP)

    @property
    def foreign(self) -> str:
        """The magic of somebody else on top of the cell, "" without one: a cell can have only one."""
        return "" if self.ours else self.magic


def split(text: str) -> CellText:
    """Return the parts of a cell's text. Empty lines above a magic do not count, as in IPython."""
    body = text.lstrip("\n")
    above = len(text) - len(body)
    first, _, rest = body.partition("\n")
    found = _MAGIC.fullmatch(first)
    if found is None:
        return CellText("", "", text, 1)
    return CellText(found[1], found[2].strip(), rest, above + 2)


def joined(magic_line: str, body: str) -> str:
    """Return the text of the cell with this line on top."""
    return f"{magic_line}\n{body}"
