"""``distdl stacks``: where the ranks of a job stand, side by side."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import JobNotRunning
from distdl_jupyter.form import arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.jobs.client import Job


def add_to(commands: Any, find: Callable[[str | None], Job]) -> None:
    """Add the command; ``find`` returns a job by its id."""
    text = "show the stack traces of all ranks of a job side by side"
    one = commands.add_parser("stacks", help=text, description=f"{text[0].upper()}{text[1:]}.")
    arguments.add_id(one)
    one.add_argument("--kept", nargs="?", type=int, const=0, metavar="N",
                     help="show the newest captured stack traces, or those with this number, without capturing new "
                         "ones")  # fmt: skip
    one.add_argument("--whole", action="store_true", help="print every thread of every rank in Python's format")
    one.add_argument("--timeout", type=float, default=10.0, metavar="S", help="seconds to wait (default 10)")
    one.set_defaults(run=lambda chosen: _stacks(find(chosen.id), chosen))


def _stacks(job: Job, chosen: argparse.Namespace) -> int:
    if chosen.kept is None:
        try:
            taken = job.stacks(chosen.timeout)
        except TimeoutError as error:
            raise JobNotRunning(str(error), code="stacks-timeout", hint="Increase it with --timeout.") from error
    else:
        taken = job.stacks(kept=True, number=chosen.kept or None)
    print(taken)
    if chosen.whole:
        for one in taken.ranks.values():
            print(f"\nrank {one.rank}, pid {one.pid} on {one.host or 'this machine'}\n{one.text.rstrip()}")
    return 0
