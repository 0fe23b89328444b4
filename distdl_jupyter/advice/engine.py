"""The rules in the order of what they cost when ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distdl_jupyter.advice import machines, rented, training
from distdl_jupyter.advice.model import Advice, Case, PastJob, Request, Rule

if TYPE_CHECKING:
    from distdl_jupyter.azure import VmSize

#: Costliest first: what cannot start, what wastes machines, what wastes the run, what is good to know.
RULES: tuple[Rule, ...] = (
    machines.retired_size,
    machines.one_machine,
    machines.more_processes_than_gpus,
    rented.may_be_taken_away,
    rented.no_time_limit,
    training.settings_search,
    training.small_job,
    training.learning_rate,
    machines.more_processes_than_cores,
    machines.open_local_disk,
)


def advise(request: Request, catalogue: Sequence[VmSize], history: Sequence[PastJob] = ()) -> list[Advice]:
    """Return what is worth saying about ``request``, costliest first; [] when all is well."""
    case = Case(request, catalogue, history)
    return [advice for rule in RULES if (advice := rule(case)) is not None]
