"""``distdl queue``: list the jobs that wait, or change their order."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.jobs.client import Job


def add_to(commands: Any, find: Callable[[str], Job]) -> None:
    """Add the command; ``find`` gives a job for its id."""
    text = "list queued jobs with their position and what they wait for, or change their order"
    one = commands.add_parser("queue", help=text, description=f"{text[0].upper()}{text[1:]}.")
    one.add_argument("--first", metavar="ID", help="start this job before your other queued jobs")
    one.add_argument("--priority", nargs=2, metavar=("N", "ID"), help="change the priority of this job")
    one.add_argument("--move", nargs=2, metavar=("CLUSTER", "ID"), help="start this job on another cluster")
    one.add_argument("--json", action="store_true", help="print the queue as JSON")
    one.set_defaults(run=lambda chosen: _queue(chosen, find))


def _queue(chosen: argparse.Namespace, find: Callable[[str], Job]) -> int:
    from distdl_jupyter.core.humanize import short_id
    from distdl_jupyter.core.options import ABOUT
    from distdl_jupyter.form.arguments import value_of
    from distdl_jupyter.jobs import job_queue

    if chosen.first or chosen.priority:
        number, id_ = chosen.priority or (None, chosen.first)
        job = find(id_)
        wanted = None if number is None else ABOUT["priority"].check(value_of(number), "priority")
        print(f"{job.name} {short_id(job.id)} has priority {job_queue.prioritize(job.id, wanted)}")
        return 0
    if chosen.move:
        target, id_ = chosen.move
        job = find(id_).move(target)
        print(f"{job.name} {short_id(job.id)} will start on {target}")
        return 0
    found = job_queue.queue()
    print(json.dumps(dataclasses.asdict(found), indent=1) if chosen.json else found)
    return 0
