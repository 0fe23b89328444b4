"""``distdl prune``: delete ended jobs by their age and number."""

from __future__ import annotations

import argparse
from typing import Any

_RULE = (
    "With both --older and --keep a job goes only when it is older and not among the newest. A job that has not ended, "
    "here or on another host, and one of another user stay. The exit code is 1 when a job could not be deleted."
)


def add_to(commands: Any) -> None:
    """Add the command."""
    text = "delete ended jobs that are older than an age and not among the newest"
    one = commands.add_parser("prune", help=text, description=f"{text[0].upper()}{text[1:]}. {_RULE}")
    one.add_argument("--older", metavar="AGE", help="only what ended longer ago than this: 30d, 12h, 4w or 90min")
    one.add_argument("--keep", type=int, metavar="N", help="never one of the newest N of all jobs")
    one.add_argument("--dry-run", action="store_true", help="say what would be deleted, and delete nothing")
    one.set_defaults(run=_prune)


def _prune(chosen: argparse.Namespace) -> int:
    from distdl_jupyter import retention

    done = retention.prune(chosen.older, chosen.keep, dry_run=chosen.dry_run)
    print(done)
    return 1 if done.failed else 0
