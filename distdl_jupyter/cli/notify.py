"""``distdl notify``: where messages about jobs go, and one to try it."""

from __future__ import annotations

import argparse
import getpass
import sys
from typing import Any

_TEXT = "say where messages about jobs go (a webhook of Slack, Teams, ntfy or any that takes JSON), and change it"


def add_to(commands: Any) -> None:
    """Add the command."""
    one = commands.add_parser("notify", help=_TEXT, description=f"{_TEXT[0].upper()}{_TEXT[1:]}.")
    where = one.add_mutually_exclusive_group()
    where.add_argument("--set", action="store_true", help="read the address from the terminal, unseen, or from "
                       "standard input: who has it can write there, so it is no argument")  # fmt: skip
    where.add_argument("--off", action="store_true", help="forget the address")
    one.add_argument("--for", dest="kinds", metavar="KINDS", help="what is told: end, failure, stall, nan, rule, "
                     "separated by commas")  # fmt: skip
    one.add_argument("--test", action="store_true", help="send a message now")
    one.set_defaults(run=_notify)


def _notify(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.monitoring.webhook import notifications

    address = "" if chosen.off else _asked() if chosen.set else None
    print(f"Messages go to {notifications(address, chosen.kinds, test=chosen.test)}.")
    if chosen.test:
        print("A message was sent.")
    return 0


def _asked() -> str:
    return (getpass.getpass("Address of the webhook: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
