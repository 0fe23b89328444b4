"""A job's data on its way to its nodes, as bars: one for each source on each node, or in sum where there are many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core import words
from distdl_jupyter.presentation.schema import StagingBar

if TYPE_CHECKING:
    from distdl_jupyter.core.view import JobView

#: More bars than that are told in sum.
MAX_BARS = 8


def bars(view: JobView) -> tuple[StagingBar, ...]:
    """Return the bars of a job, none when it has no data that must travel."""
    each = tuple(
        StagingBar(one.source, one.host, 1, one.done, one.total, one.files, one.of, one.cached) for one in view.staging
    )
    return each if len(each) <= MAX_BARS else _in_sum(each)


def _in_sum(each: tuple[StagingBar, ...]) -> tuple[StagingBar, ...]:
    names = dict.fromkeys(one.source for one in each)
    return tuple(_sum(name, [one for one in each if one.source == name]) for name in names)


def _sum(name: str, same: list[StagingBar]) -> StagingBar:
    return StagingBar(
        source=name,
        host="",
        nodes=len(same),
        done=sum(one.done for one in same),
        total=sum(one.total for one in same),
        files=sum(one.files for one in same),
        of=sum(one.of for one in same),
        cached=sum(one.cached for one in same),
    )


def where(bar: StagingBar) -> str:
    """Return the node, or how many there are."""
    return bar.host or words.plural(bar.nodes, "node")


def says(bar: StagingBar) -> str:
    """Return how far it is: ``1.2 GB of 4.8 GB, 210 of 512 files, 300 MB from the cache``."""
    parts = [f"{words.size(bar.done)} of {words.size(bar.total)}"]
    if bar.of > 1:
        parts.append(f"{words.count(bar.files)} of {words.plural(bar.of, 'file')}")
    if bar.cached:
        parts.append(f"{words.size(bar.cached)} from the cache")
    return ", ".join(parts)


def share(bar: StagingBar) -> float:
    """Return how much of it is there, from 0 to 1; of nothing all is there."""
    return min(1.0, bar.done / bar.total) if bar.total else 1.0
