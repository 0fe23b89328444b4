"""A question to ranks whose host cannot be reached but through a folder that all share: a file asks, files answer.

The question is ``stacks.ask`` with a number; each rank's ``rank-N.answer`` holds that number and the ``stacks.Answer``.
Whoever started a rank on its host carries the question to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from distdl_jupyter.host.stacks import Asking

#: The file that asks.
QUESTION = "stacks.ask"
Write = Callable[[Path, Any], None]


class Errand:
    """Carries questions to ranks of this host; ``write`` writes a file that appears whole. It never waits."""

    def __init__(self, folder: Path, ranks: Iterable[int], write: Write) -> None:
        self._folder = folder
        self._ranks = list(ranks)
        self._write = write
        self._number = number(folder)
        self._asking: Asking | None = None

    @property
    def asked(self) -> bool:
        """Whether there is a question that was not there before; it is taken by this."""
        found = number(self._folder)
        new, self._number = found != self._number, found
        return new and found > 0

    @property
    def busy(self) -> bool:
        """Whether answers are awaited."""
        return self._asking is not None and not self._asking.done

    def look(self) -> None:
        """Ask when that is wanted, and write down what has come."""
        if self.asked:
            self.ask(self._number)
        if self._asking is not None:
            for rank, answer in self._asking.answers().items():
                self._write(self._folder / f"rank-{rank}.answer", {"number": self._number, **answer.to_json()})

    def ask(self, question: int) -> None:
        """Ask the ranks; ``look`` writes down what they say."""
        self._number, self._asking = question, Asking(self._folder, self._ranks)


def number(folder: Path) -> int:
    """Return the number of the question that was asked last, 0 before the first."""
    try:
        return int(json.loads((folder / QUESTION).read_text(encoding="utf-8"))["number"])
    except (OSError, ValueError, TypeError, LookupError):
        return 0
