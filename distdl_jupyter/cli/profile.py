"""``distdl profile``: record some steps of a running job, or show what was recorded."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import JobNotRunning
from distdl_jupyter.core.profiles import rank_numbers
from distdl_jupyter.form import arguments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from distdl_jupyter.jobs.client import Job


def add_to(commands: Any, find: Callable[[str | None], Job]) -> None:
    """Add the command; ``find`` returns a job by its id."""
    text = "profile some steps of a running job: its slowest operators, and a trace of each rank"
    one = commands.add_parser("profile", help=text, description=f"{text[0].upper()}{text[1:]}.")
    arguments.add_id(one)
    one.add_argument("--steps", type=int, default=5, metavar="N", help="number of steps (default 5, at most 50)")
    one.add_argument("--ranks", default="", metavar="0,1", help="ranks to profile (default: all)")
    one.add_argument("--kept", nargs="?", type=int, const=0, metavar="N",
                     help="show the newest profile, or the one with this number, without recording")  # fmt: skip
    one.add_argument(
        "--save", default="", metavar="FOLDER", help="copy the traces to this folder, to open in ui.perfetto.dev"
    )
    one.add_argument("--csv", action="store_true", help="print one line per operator and rank, times in seconds")
    one.add_argument("--timeout", type=float, default=120.0, metavar="S", help="seconds to wait (default 120)")
    one.set_defaults(run=lambda chosen: _profile(find(chosen.id), chosen))


def _profile(job: Job, chosen: argparse.Namespace) -> int:
    if chosen.kept is None:
        try:
            found = job.profile(chosen.steps, rank_numbers(chosen.ranks), timeout=chosen.timeout)
        except TimeoutError as error:
            raise JobNotRunning(str(error), code="profile-timeout", hint="Increase it with --timeout.") from error
    else:
        found = job.profile(kept=True, number=chosen.kept or None)
    if chosen.csv:
        print(found.to_pandas().to_csv(index=False), end="")
    else:
        print(found)
    if chosen.save:
        _tell(found.save(chosen.save))
    elif found.traces and not chosen.csv:
        _tell(list(found.traces.values()))
    return 0


def _tell(traces: list[Path]) -> None:
    count = "one trace" if len(traces) == 1 else f"{len(traces)} traces"
    print(f"{traces[0].parent} has {count}: open them at https://ui.perfetto.dev")
