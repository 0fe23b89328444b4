"""What a job's tasks wrote down on their nodes, read here: how ranks ended, what lives, a launcher's last words."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.base import Exit
from distdl_jupyter.core.errors import LaunchFailed

if TYPE_CHECKING:
    from pathlib import Path

    from distdl_jupyter.clusters.slurm.commands import JobState

#: Reads which rank ended first from a launcher's words: (rank, exit code, signal number).
FirstExit = Callable[[str], tuple[int, int | None, int | None] | None]


#: What srun prints of a task that ended by a signal (strsignal(3)), as far as it is no name.
_SIGNALS = {"Killed": "KILL", "Terminated": "TERM", "Interrupt": "INT", "Hangup": "HUP", "Aborted": "ABRT",
            "Segmentation fault": "SEGV", "Bus error": "BUS", "Out Of Memory": "KILL"}  # fmt: skip


def as_srun_says(rank: int, how: str, evidence: str) -> Exit:
    """Return the end of a rank whose task wrote nothing down: ``how`` is "Killed" or "Exited with exit code 3"."""
    code = re.search(r"exit code (\d+)", how)
    if code is not None:
        why = evidence or "It could not begin on its node; what was printed there stands in the log."
        return Exit(rank, int(code[1]) or 1, None, why)
    name = next((name for word, name in _SIGNALS.items() if how.startswith(word)), "KILL")
    return Exit(rank, None, name, evidence or ("Slurm's task on the node was killed." if name == "KILL" else ""))


def end_of(path: Path) -> str:
    """Return the last words of a file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 20_000))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def unexplained(state: JobState) -> str:
    """Return what can be said of a rank's end when neither its task nor Slurm says why."""
    return (
        f"Slurm ended the job as {state.state}{f' ({state.reason})' if state.reason else ''} before the rank said how."
    )


def read(path: Path) -> dict[str, Any]:
    """Return what a task wrote down, {} before."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def alive_in(run: Path) -> list[tuple[str, int]]:
    """Return (node, pid) of the processes that the tasks of a job told last."""
    return [one for path in run.glob("*.alive") for one in _alive(path)]


def _alive(path: Path) -> list[tuple[str, int]]:
    word = read(path)
    return [(str(word.get("node")), int(pid)) for pid in word.get("pids") or ()]


def numbers(text: str) -> list[int]:
    """Return the numbers of "0,2-4"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        with contextlib.suppress(ValueError):
            found.extend(range(int(first), int(last or first) + 1))
    return found


def reader_of(name: str | None) -> FirstExit | None:
    """Return the function that a handle names. Raises LaunchFailed."""
    if not name:
        return None
    module, _, function = name.partition(":")
    try:
        found: FirstExit = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise LaunchFailed(f"What reads the launcher's words, {name}, is not here any more.") from error
    return found
