"""``distdl resources``: what each rank of a job uses."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.form import arguments
from distdl_jupyter.node.resources import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.jobs.client import Job


def add_to(commands: Any, find: Callable[[str | None], Job]) -> None:
    """Add the command; ``find`` returns a job by its id."""
    text = "show the resource use of each rank: CPU, memory, GPU, and the disk and network of its machine"
    one = commands.add_parser("resources", help=text, description=f"{text[0].upper()}{text[1:]}.")
    arguments.add_id(one)
    one.add_argument("--csv", action="store_true", help="print all samples, one line per rank and second")
    one.add_argument("-f", "--follow", action="store_true", help="refresh every second until the job has ended")
    one.set_defaults(run=lambda chosen: _resources(find(chosen.id), chosen))


def _resources(job: Job, chosen: argparse.Namespace) -> int:
    if chosen.csv:
        job.resources().to_pandas().to_csv(sys.stdout, index=False)
        return 0
    print(job.resources())
    while chosen.follow and not job.state.ended:
        time.sleep(SECONDS)
        print(f"\n{job.resources()}", flush=True)
    return 0
