"""Persistent ranks as a table: what they do, their processes and memory. For a notebook and for a terminal."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING

from distdl_jupyter.core import humanize
from distdl_jupyter.core.resources import ResourceReader
from distdl_jupyter.views import table

if TYPE_CHECKING:
    from distdl_jupyter.ranks import Ranks

_NONE = "No ranks are running. Start two with %dist_ranks start -p 2, then start a cell with %%ranks to run it on them."


class RanksTable:
    """Shows itself; ``known`` says that this kernel has talked to the ranks, else they are from before.

    ``ended`` says how the kernel's own ranks ended ("" when they did not).
    """

    def __init__(self, ranks: Ranks | None, *, known: bool = True, ended: str = "") -> None:
        self._sentence = f"{ended} {_NONE}".strip() if ranks is None else _sentence(ranks, known=known)
        self._rows = [] if ranks is None else _rows(ranks)

    def __repr__(self) -> str:
        return "\n".join([self._sentence, *([table.text(self._rows)] if self._rows else [])])

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._sentence)}</p>{table.html(self._rows) if self._rows else ''}"


def _sentence(ranks: Ranks, *, known: bool) -> str:
    spec = ranks.job.spec
    alive = "is" if ranks.size == 1 else "are"
    before = "" if known else ", started earlier"
    since = humanize.duration(max(0.0, time.time() - spec.created))
    who = f"{humanize.plural(ranks.size, 'rank')} {alive} running{before}, for {since}"
    on = "" if spec.cluster == "local" else f" on {spec.compute_target}"
    started = f"{who}: {spec.distributed_backend}{on}, job {humanize.short_id(ranks.id)}."
    return " ".join(filter(None, (started, _doing(ranks), _limits(ranks))))


def _doing(ranks: Ranks) -> str:
    from distdl_jupyter.ranks.request import last_cell

    state, last = ranks.state(), last_cell(ranks.job.folder.log)
    if state == "busy":
        return (
            f"{last.label} runs on them, for {humanize.duration(time.time() - last.begun)}." if last else state.reason
        )
    if state == "idle":
        return f"They are idle{f'; the last cell was {last.label}' if last else ''}."
    return state.reason


def _limits(ranks: Ranks) -> str:
    """Return what ends them without anybody's doing."""
    spec, parts = ranks.job.spec, []
    if spec.idle_timeout_seconds is not None:
        parts.append(f"after {humanize.duration(spec.idle_timeout_seconds)} without a cell")
    if spec.max_run_duration_seconds is not None:
        parts.append(f"{humanize.duration(spec.max_run_duration_seconds)} after their start")
    return f"They stop {' and '.join(parts)}." if parts else ""


def _rows(ranks: Ranks) -> list[tuple[str, ...]]:
    """Return the rows of the table, its head first; without ranks that are known there is none."""
    found = ranks.job.view().ranks
    if ranks.job.spec.cluster == "local":
        rows = [(str(one.rank), str(one.pid or ""), _memory(one.pid) if one.pid else "") for one in found]
        return [("Rank", "Process", "Memory"), *rows]
    used = _measured(ranks)
    there = [(str(one.rank), one.host, str(one.pid or ""), used.get(one.rank, "")) for one in found]
    return [("Rank", "Host", "Process", "Memory"), *there]


def _measured(ranks: Ranks) -> dict[int, str]:
    """Return the memory of ranks on other machines, as far as their agents have measured it."""
    samples = ResourceReader(ranks.job.folder.resources).all()
    newest = {rank: use.memory for sample in samples for rank, use in sample.ranks.items()}
    return {rank: humanize.size(memory) for rank, memory in newest.items() if memory is not None}


def _memory(pid: int) -> str:
    """Return the memory of a process that is its own, "" when it is gone."""
    import psutil

    try:
        return humanize.size(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error:
        return ""
