"""Starts a program as a child of this process: as a new process image, or forked from this interpreter.

A supervisor that was itself forked from a warm template may fork what it starts: its creator sets ``fork``. Nothing
here knows when that is safe.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol


class Process(Protocol):
    """A child of this process, as ``subprocess.Popen`` shows it."""

    pid: int
    stdin: IO[bytes] | None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None before ``poll`` or ``wait`` has seen the end."""

    def poll(self) -> int | None:
        """Return the exit code when it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""

    def kill(self) -> None:
        """Send KILL."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is to run in a session of its own.

    ``stdin`` is subprocess.PIPE or DEVNULL, the others are descriptors.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    stdin: int
    stdout: int
    stderr: int
    directory: str | None = None


#: Forks this process into a program; None as its answer means: this one has to be started as a new interpreter.
fork: Callable[[Program], Process | None] | None = None
#: Why programs were not forked although others are, each the end of a sentence; the reader empties the list.
reasons: list[str] = []
#: What a job whose ranks were forked says of itself.
WARM = "Warm start: imports are already loaded."


def start(program: Program) -> Process:
    """Start a program in the quickest way that is safe. Raises OSError."""
    if fork is not None and (forked := fork(program)) is not None:
        return forked
    return subprocess.Popen(
        program.arguments,
        stdin=program.stdin,
        stdout=program.stdout,
        stderr=program.stderr,
        env=program.environment,
        cwd=program.directory,
        start_new_session=True,
    )
