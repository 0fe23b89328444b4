"""Progress on a terminal and in a log."""

from __future__ import annotations

import io
import os

from distdl_jupyter.environment.horovod import ConsoleProgress


def test_a_log_gets_one_line_per_step() -> None:
    stream = io.StringIO()
    progress = ConsoleProgress(stream)
    for text in ("fetching", "compiling: 1 %", "compiling: 2 %", "compiling: 3 %", "importing"):
        progress(text)
    progress.end()
    assert stream.getvalue().splitlines() == ["fetching", "compiling: 1 %", "importing"]


def test_a_long_step_shows_life_in_a_log() -> None:
    stream = io.StringIO()
    progress = ConsoleProgress(stream, every_seconds=0.0)
    for text in ("compiling: 1 %", "compiling: 2 %"):
        progress(text)
    assert stream.getvalue().splitlines() == ["compiling: 1 %", "compiling: 2 %"]


def test_a_terminal_gets_one_line_that_is_rewritten() -> None:
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        progress = ConsoleProgress(terminal)
        progress("compiling: 1 %")
        progress("compiling: 2 %")
        progress.end()
        printed = ""
        while not (printed.endswith("\r\x1b[K") and "2 %" in printed):
            printed += os.read(master, 4096).decode()
    os.close(master)
    assert "\n" not in printed
    assert printed.replace("\r\x1b[K", "|") == "|compiling: 1 %|compiling: 2 %|"
