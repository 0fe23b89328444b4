"""What the program that leads an elastic job tells of its ranks, kept until the job asks for it.

It is what ``distdl_jupyter.backends.elastic.words`` says, one JSON object each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distdl_jupyter.clusters.base import Exit, Gone, Remark
from distdl_jupyter.clusters.processes import signal_name


class Told:
    """Everything that was told; ``evidence`` adds, to a rank and the signal that ended it, what is known of that."""

    def __init__(self, ranks: Iterable[int], evidence: Callable[[int, str | None], str]) -> None:
        #: Ranks that have not ended for good.
        self.open = set(ranks)
        #: Why the program has ended the job although no rank had failed.
        self.gave_up = ""
        self._evidence = evidence
        self._exits: list[Exit] = []
        self._gone: list[Gone] = []
        self._remarks: list[Remark] = []

    def hear(self, said: Mapping[str, Any]) -> None:
        """Take one thing that was told."""
        kind = said["type"]
        if kind == "note":
            self._remarks.append(Remark(said["level"], said["text"], said["code"]))
        elif kind == "gave-up":
            self.gave_up = said["text"]
        elif kind == "ended":
            exit_ = self._exit(said)
            self.open.discard(exit_.rank)
            self._exits.append(exit_)
        else:
            self._gone.append(Gone(self._exit(said), said["pid"], replaced=kind == "replaced"))

    def _exit(self, said: Mapping[str, Any]) -> Exit:
        evidence = said["evidence"] or self._evidence(said["rank"], said["signal"])
        return Exit(said["rank"], said["code"], said["signal"], evidence)

    def over(self, returncode: int) -> None:
        """Hear that the program itself has ended: so have all ranks that it did not speak of."""
        how = f"was ended by SIG{signal_name(-returncode)}" if returncode < 0 else f"ended with code {returncode}"
        evidence = f"The program that leads the elastic job {how}."
        self._exits += [Exit(rank, None, None, evidence) for rank in sorted(self.open)]
        self.open.clear()

    def exits(self) -> list[Exit]:
        """Return the ends of ranks since the last call."""
        found, self._exits = self._exits, []
        return found

    def gone(self) -> list[Gone]:
        """Return the processes that ended since the last call while the job goes on."""
        found, self._gone = self._gone, []
        return found

    def remarks(self) -> list[Remark]:
        """Return what the user was told since the last call."""
        found, self._remarks = self._remarks, []
        return found
