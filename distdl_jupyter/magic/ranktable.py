"""Persistent ranks as a table: what they do, their processes and memory. For a notebook and for a terminal."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING

from distdl_jupyter.core import humanize
from distdl_jupyter.views import table

if TYPE_CHECKING:
    from distdl_jupyter.ranks import Ranks

_HEAD = ("Rank", "Process", "Memory")
_NONE = "No ranks are alive. %dist_ranks start -p 2 starts two, and %%ranks on top of a cell runs it on them."


class RanksTable:
    """Shows itself; ``known`` says that this kernel has talked to the ranks, else they are from before.

    ``ended`` says how the kernel's own ranks ended ("" when they did not).
    """

    def __init__(self, ranks: Ranks | None, *, known: bool = True, ended: str = "") -> None:
        self._sentence = f"{ended} {_NONE}".strip() if ranks is None else _sentence(ranks, known=known)
        self._rows = [] if ranks is None else _rows(ranks)

    def __repr__(self) -> str:
        return "\n".join([self._sentence, *([table.text([_HEAD, *self._rows])] if self._rows else [])])

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._sentence)}</p>{table.html([_HEAD, *self._rows]) if self._rows else ''}"


def _sentence(ranks: Ranks, *, known: bool) -> str:
    spec = ranks.job.spec
    alive = "is" if ranks.size == 1 else "are"
    before = "" if known else " from before"
    since = humanize.duration(max(0.0, time.time() - spec.created))
    who = f"{humanize.plural(ranks.size, 'rank')} {alive} alive{before}, for {since}"
    return f"{who}: {spec.distributed_backend}, job {humanize.short_id(ranks.id)}. {_doing(ranks)}"


def _doing(ranks: Ranks) -> str:
    from distdl_jupyter.ranks.viewlast import last_cell

    state, last = ranks.state(), last_cell(ranks.job.folder.log)
    if state == "busy":
        return (
            f"{last.label} runs on them, for {humanize.duration(time.time() - last.begun)}." if last else state.reason
        )
    if state == "idle":
        return f"They wait for a cell{f'; the last was {last.label}' if last else ''}."
    return state.reason


def _rows(ranks: Ranks) -> list[tuple[str, str, str]]:
    pids = [(rank.rank, rank.pid) for rank in ranks.job.view().ranks]
    return [(str(rank), "" if pid is None else str(pid), "" if pid is None else _memory(pid)) for rank, pid in pids]


def _memory(pid: int) -> str:
    """Return the memory of a process that is its own, "" when it is gone."""
    import psutil

    try:
        return humanize.size(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error:
        return ""
