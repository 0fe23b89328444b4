"""Gathering the stacks of all ranks: ask the run, wait some seconds without blocking, keep and tell them.

Whoever asks while an answer is awaited shares it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import stacks
from distdl_jupyter.core.words import date_and_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.clusters.base import Run
    from distdl_jupyter.core.rank import RankView
    from distdl_jupyter.core.stacks import Taken
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.host.stacks import Answer
    from distdl_jupyter.supervisor.ledger import Ledger


class Gathering:
    """The stacks of one run. ``silent`` says for how many seconds a rank has given no sign, None where it never has."""

    def __init__(self, folder: JobFolder, run: Run, ledger: Ledger, silent: Callable[[int], float | None]) -> None:
        self._folder = folder
        self._run = run
        self._ledger = ledger
        self._silent = silent
        self._why = ""
        self._until = 0.0
        self._answers: dict[int, Answer] = {}
        self._ended: dict[int, str] = {}
        #: What was taken last, and why.
        self.last: Taken | None = None

    @property
    def busy(self) -> bool:
        """Whether answers are awaited."""
        return bool(self._why)

    def ask(self, why: str) -> None:
        """Ask all ranks, unless answers are awaited already: the graver reason is the one that is told then."""
        if self.busy:
            self._why = why if self._why == "asked" else self._why
            return
        self._why, self._until = why, time.monotonic() + self._run.stacks_seconds
        self._answers = {}
        if not self._run.no_stacks():
            self._run.ask_stacks()

    def tick(self) -> Taken | None:
        """Take in answers; when all have come, or nobody waits any longer, keep and tell them and return them."""
        if not self.busy:
            return None
        self._answers.update(self._run.stacks())
        missing = [rank for rank in self._living() if rank.rank not in self._answers]
        if missing and not self._run.no_stacks() and time.monotonic() < self._until:
            return None
        why, self._why = self._why, ""
        self.last = self._keep(why)
        return self.last

    def _living(self) -> list[RankView]:
        return [rank for rank in self._ledger.view.ranks if rank.status != "ended"]

    def _keep(self, why: str) -> Taken:
        number = max([*stacks.numbers(self._folder), *(one.number for one in self._ledger.view.stacks)], default=0) + 1
        data, code = self._data(why), stacks.payload(self._folder)
        with contextlib.suppress(OSError):  # a full disk: who stands where is told all the same
            _write(self._folder, number, data)
        taken = stacks.taken(number, data, code)
        self._ledger.write("stacks", number=number, why=why, ranks=sorted(taken.ranks), missing=sorted(taken.missing))
        return taken

    def _data(self, why: str) -> dict[str, Any]:
        answered = {rank: one for rank, one in self._answers.items() if one.text}
        found = {str(rank): self._of(rank, one) for rank, one in sorted(answered.items())}
        missing = {str(one.rank): self._reason(one) for one in self._ledger.view.ranks if one.rank not in answered}
        texts = [(one["text"], one["about"]) for one in found.values()]
        lines = stacks.sources(self._folder, stacks.payload(self._folder), texts)
        clean = self._ledger.redactor.data(lines)
        return {"t": round(time.time(), 3), "why": why, "ranks": found, "missing": missing, "sources": clean}

    def _of(self, rank: int, answer: Answer) -> dict[str, Any]:
        view, silent = self._ledger.view.ranks[rank], self._silent(rank)
        return {
            "text": answer.text,
            "host": view.host,
            "pid": answer.about.get("pid"),
            "state": answer.state,
            "step": view.last_step,
            "silent": None if silent is None else round(silent, 1),
            "about": answer.about,
        }

    def _reason(self, rank: RankView) -> str:
        if rank.status == "ended":
            return "Its process has ended." if rank.ended is None else f"It ended at {date_and_clock(rank.ended)}."
        if (answer := self._answers.get(rank.rank)) is not None:
            return answer.missing
        return self._run.no_stacks() or "It has not answered in time."


def _write(folder: JobFolder, number: int, data: dict[str, Any]) -> None:
    """Write a file that only its owner reads and that appears whole."""
    path = stacks.path(folder, number)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    with open(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:  # noqa: PTH123
        json.dump(data, file)
    hidden.replace(path)
