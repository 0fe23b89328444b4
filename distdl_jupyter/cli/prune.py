"""``distdl prune``: delete ended jobs by their age and number."""

from __future__ import annotations

import argparse
from typing import Any

_RULE = (
    "With both --older and --keep, a job is deleted only if it is older and not among the newest N. Jobs that have not "
    "ended, here or on another host, and jobs of other users are kept. The exit code is 1 if a job could not be "
    "deleted."
)


def add_to(commands: Any) -> None:
    """Add the command."""
    text = "delete old ended jobs"
    one = commands.add_parser("prune", help=text, description=f"{text[0].upper()}{text[1:]}. {_RULE}")
    one.add_argument("--older", metavar="AGE", help="only jobs that ended longer ago than this: 30d, 12h, 4w or 90min")
    one.add_argument("--keep", type=int, metavar="N", help="keep the newest N of all jobs")
    one.add_argument("--dry-run", action="store_true", help="list the jobs that would be deleted, and delete nothing")
    one.set_defaults(run=_prune)


def _prune(chosen: argparse.Namespace) -> int:
    from distdl_jupyter.jobs import retention

    done = retention.prune(chosen.older, chosen.keep, dry_run=chosen.dry_run)
    print(done)
    return 1 if done.failed else 0
