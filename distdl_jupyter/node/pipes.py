"""The agent's private folder on this host: named pipes of the ranks, the lifeline, the socket of the relay.

Ranks that a launcher starts connect their output to the named pipes; every rank watches the lifeline ``alive``, which
ends when the agent does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from distdl_jupyter.node import run_dir

SOCKET = "shell"


class Pipes:
    """The folder of a run of the job, until it is closed. Raises OSError."""

    def __init__(self, job: str) -> None:
        self.folder = run_dir.make(job, SOCKET)
        self._lifeline = run_dir.lifeline(self.folder)

    def _fifo(self, name: str, flags: int) -> int:
        path = self.folder / name
        os.mkfifo(path, 0o600)
        return os.open(path, flags | os.O_CLOEXEC)

    def for_rank(self, rank: int) -> tuple[int, int]:
        """Return the reading ends of a rank's output and error output, which never end by themselves."""
        # With a writer of its own the pipe does not end before the first rank has opened it, nor after the last.
        out, err = (self._fifo(f"rank-{rank}.{name}", os.O_RDWR | os.O_NONBLOCK) for name in ("out", "err"))
        return out, err

    def write_variables(self, variables: Sequence[Any]) -> None:
        """Write down what each rank wants in its environment, for ranks whose launcher gives all the same."""
        path = self.folder / "ranks.json"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:  # noqa: PTH123
            json.dump(list(variables), file)

    def serving(self, rank: int) -> dict[str, Any]:
        """Return where a rank that stays is met: ``socket`` and ``token`` (see ``worker.serving.listener``).

        Raises OSError while it does not listen.
        """
        found = json.loads((self.folder / f"rank-{rank}.json").read_text(encoding="utf-8"))
        return dict(found)

    def close(self) -> None:
        """Let go of the lifeline, so that ranks that still live end themselves, and remove the folder."""
        os.close(self._lifeline)
        run_dir.remove(self.folder)
        run_dir.sweep()
