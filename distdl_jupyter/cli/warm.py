"""``distdl warm``: how warm starts stand on this machine, and to switch, start and stop them."""

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
    parser.add_argument("action", nargs="?", choices=["start", "stop", "on", "off"],
                        help="start waits until the template is ready; off also stops it")  # fmt: skip
    parser.add_argument("--idle-minutes", type=float, metavar="M", help="how long an unused template keeps running")
    parser.set_defaults(run=_run)


def _run(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.warm import report, settings

    if chosen.idle_minutes is not None:
        settings.change(idle_minutes=chosen.idle_minutes)
    if chosen.action in ("on", "off"):
        settings.change(enabled=chosen.action == "on")
    done = {"start": _start, "stop": _stop, "off": _stop}.get(chosen.action, _nothing)()
    print("\n".join(report.lines()))
    return done


def _start() -> int:
    from distdl_jupyter.warm import template_client, template_files

    where = template_files.of()
    if not template_client.is_being_made(where):
        template_client.make(where)
    if template_client.wait_until_ready(where) is not None:
        return 0
    print(f"The template did not start. See the log: {where.log}")
    return 1


def _stop() -> int:
    from distdl_jupyter.warm import template_client, template_files

    template_client.stop(template_files.of())
    return 0


def _nothing() -> int:
    return 0
