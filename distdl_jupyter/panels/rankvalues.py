"""The values that a cell's ranks give back: a list or dict as any, shown with equal ones folded.

What is shown is the text that each rank made of its own value, so that nothing is compared or formatted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from distdl_jupyter.panels import rankcell
from distdl_jupyter.ranks.view import spans


class Text(Protocol):
    """IPython's pretty printer, as far as it is used."""

    def text(self, obj: str) -> object:
        """Write."""


class _Shown:
    """Shows texts by rank; ``_texts`` is set by those who make it."""

    _texts: Mapping[int, str]

    def _repr_pretty_(self, printer: Text, cycle: bool) -> None:  # noqa: FBT001 - IPython's protocol
        printer.text(as_text(folded(self._texts)))

    def _repr_html_(self) -> str:
        return rankcell.values(folded(self._texts))


class Values(_Shown, list[Any]):
    """The value of every rank, in order of rank."""

    def __init__(self, values: Sequence[Any], texts: Mapping[int, str]) -> None:
        super().__init__(values)
        self._texts = texts


class ValuesOf(_Shown, dict[int, Any]):
    """The values of some ranks, by rank."""

    def __init__(self, values: Mapping[int, Any], texts: Mapping[int, str]) -> None:
        super().__init__(values)
        self._texts = texts


def folded(texts: Mapping[int, str]) -> list[tuple[tuple[int, ...], str]]:
    """Return (ranks, text) with equal texts folded, in order of their first rank."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(texts):
        groups.setdefault(texts[rank], []).append(rank)
    return [(tuple(ranks), text) for text, ranks in groups.items()]


def as_text(groups: Sequence[tuple[Sequence[int], str]]) -> str:
    """Return lines such as ``[0-3] 0.25``; further lines of a value stand below its first."""
    heads = [f"[{spans(ranks)}]" for ranks, _ in groups]
    width = max(map(len, heads), default=0)
    lines = []
    for head, (_, text) in zip(heads, groups, strict=True):
        first, *more = text.split("\n")
        lines += [f"{head:<{width}} {first}", *(f"{'':<{width}} {line}" for line in more)]
    return "\n".join(lines)
