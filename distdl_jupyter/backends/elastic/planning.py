"""How an elastic job is planned: which options fit, and how the program that leads it is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.plan import Launcher, Placement
from distdl_jupyter.core.words import plural

if TYPE_CHECKING:
    from distdl_jupyter.core.spec import JobSpec

_PROGRAM = "distdl_jupyter.backends.elastic"
#: Clusters with elastic jobs.
_CLUSTERS = ("local", "ssh")
#: Variables of a rank that say once and for all what changes here whenever processes come and go.
FIXED = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


class Options(Protocol):
    """The options of the backend that matter here."""

    @property
    def controller(self) -> str:
        """How ranks are coordinated: gloo or mpi."""

    @property
    def min_process_count(self) -> int | None:
        """With how few processes the job goes on."""

    @property
    def host_discovery(self) -> str:
        """The file or script that says which hosts there are, "" for none."""

    @property
    def elastic_timeout_seconds(self) -> float:
        """How long processes may take to meet."""


def check(spec: JobSpec, options: Options) -> None:
    """Raise InvalidSpec when an elastic job cannot be as it is asked for."""
    if options.controller != "gloo":
        raise InvalidSpec("An elastic job runs on horovod-gloo: MPI ends all processes when one fails.",
                          field="distributed_backend", hint="Choose distributed_backend='horovod-gloo'.")  # fmt: skip
    if spec.cluster not in _CLUSTERS:
        raise InvalidSpec(
            f"{spec.compute_target} has no elastic Horovod jobs; they run on this machine and on SSH hosts.",
            field="elastic",
            hint="Leave elastic out, and set max_restarts and min_node_count: all processes start anew from "
            "checkpoint_dir(), on the nodes that are left.",
        )  # fmt: skip
    if spec.kind == "ranks":
        raise InvalidSpec("Ranks that stay between cells are not replaced.", field="elastic", hint="Leave elastic out.")
    if not 1 <= least(spec, options) <= spec.process_count:
        raise InvalidSpec(
            f"min_process_count is {options.min_process_count}, but the job has at most "
            f"{plural(spec.process_count, 'process')}.", field="min_process_count",
            hint=f"It takes a number from 1 to {spec.process_count}.",
        )  # fmt: skip
    if not options.elastic_timeout_seconds > 0:
        raise InvalidSpec("elastic_timeout_seconds takes a number above zero.", field="elastic_timeout_seconds")
    discovery = _discovery(spec, options)
    if discovery and not os.access(discovery, os.R_OK):
        raise InvalidSpec(f"host_discovery names {discovery}, which cannot be read.", field="host_discovery",
                          hint="It takes a file of lines HOST:SLOTS, or a script that prints them.")  # fmt: skip


def least(spec: JobSpec, options: Options) -> int:
    """Return with how few processes the job goes on: as said, else those of ``min_node_count``, else all."""
    if options.min_process_count is not None:
        return options.min_process_count
    return (spec.min_node_count or spec.node_count) * spec.process_count_per_node


def launcher(spec: JobSpec, placement: Placement, options: Options) -> Launcher:
    """Return the program that leads the job."""
    terms = (placement.address, str(placement.ports[0]), str(least(spec, options)),
             f"{options.elastic_timeout_seconds:g}")  # fmt: skip
    return Launcher(
        ("{python}", "-P", "-m", _PROGRAM, *terms), _says_it_elsewhere, tells=True, discovery=_discovery(spec, options)
    )


def _discovery(spec: JobSpec, options: Options) -> str:
    if not options.host_discovery:
        return ""
    return str(Path(spec.working_directory or ".") / Path(options.host_discovery).expanduser())


def _says_it_elsewhere(_text: str) -> None:
    return None
