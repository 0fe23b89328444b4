"""``distdl notify``: where messages about jobs go, and one to try it."""

from __future__ import annotations

import argparse
import getpass
import sys
from typing import Any

_TEXT = "show or change where messages about jobs are sent through Apprise"


def add_to(commands: Any) -> None:
    """Add the command."""
    one = commands.add_parser("notify", help=_TEXT, description=f"{_TEXT[0].upper()}{_TEXT[1:]}.")
    where = one.add_mutually_exclusive_group()
    where.add_argument("--set", action="store_true", help="read the address from the terminal without echo, "
        "or from standard input; it is a secret, so it cannot be an argument")  # fmt: skip
    where.add_argument("--off", action="store_true", help="delete the address")
    one.add_argument("--for", dest="kinds", metavar="KINDS", help="events to send: end, failure, stall, nan, rule, "
        "separated by commas")  # fmt: skip
    one.add_argument("--test", action="store_true", help="send a test message now")
    one.set_defaults(run=_notify)


def _notify(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.tracking.messages import notifications

    address = "" if chosen.off else _asked() if chosen.set else None
    known = notifications(address, chosen.kinds, test=chosen.test)
    print(f"Messages are sent to {known}.")
    if chosen.test:
        print("Test message sent.")
    return 0


def _asked() -> str:
    return (
        getpass.getpass("Address, for example slack://... or jsons://HOST/PATH: ")
        if sys.stdin.isatty()
        else sys.stdin.readline()
    ).strip()
