"""``distdl warm``: show the state of warm starts on this machine, and switch, start and stop them."""

from __future__ import annotations

import argparse
from typing import Any


def add_to(commands: Any) -> None:
    """Add the command to the parser's commands."""
    parser = commands.add_parser(
        "warm",
        help="show the state of warm starts, turn them on or off, start or stop the template process",
        description="A template process keeps the imports of earlier jobs loaded, so that jobs on this machine start "
        "faster. Without an action, show its state.",
    )
    parser.add_argument(
        "action",
        nargs="?",
        choices=["start", "stop", "on", "off"],
        help="start waits until the template is ready; off also stops it",
    )
    parser.add_argument("--idle-minutes", type=float, metavar="M", help="how long an unused template keeps running")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from distdl_jupyter.warm import report, start, template_files

    if options.idle_minutes is not None:
        template_files.change_settings(idle_minutes=options.idle_minutes)
    if options.action in ("on", "off"):
        template_files.change_settings(enabled=options.action == "on")
    files = template_files.of()
    if options.action in ("stop", "off"):
        start.stop(files)
    elif options.action == "start":
        if not start.is_being_made(files):
            start.make(files)
        if start.wait_until_ready(files) is None:
            print(f"The template did not start. See the log: {files.log}\n" + "\n".join(report.lines()))
            return 1
    print("\n".join(report.lines()))
    return 0
