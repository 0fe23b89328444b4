"""One ordinary process without communication."""

from __future__ import annotations

from typing import Any

from distdl_jupyter.backends.base import TENSORFLOW, TORCH, Backend, JobPackage, build_common_environment
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.plan import Placement, Plan
from distdl_jupyter.core.spec import JobSpec


class PlainBackend(Backend):
    """Runs exactly one process."""

    name = "plain"
    labels = {"plain": {}}  # noqa: RUF012 - declared as ClassVar in the base class
    communicates = False

    def unavailable(self, options: Any) -> str:
        """Return "": Python is always available."""
        return ""

    def packages(self, options: Any) -> tuple[JobPackage, ...]:
        """Return the frameworks that a process may use."""
        return (TORCH, TENSORFLOW)

    def plan(self, spec: JobSpec, placement: Placement, options: Any) -> Plan:
        """Return the plan of one rank. Raises InvalidSpec for several processes."""
        if spec.process_count > 1:
            raise InvalidSpec(
                f"The backend plain runs one process, but the job has {spec.process_count}.",
                code="backend-one-process",
                field="distributed_backend",
                hint="Run one process, or choose a backend for several: distributed_backend=torch",
            )
        return Plan(environments=tuple(build_common_environment(placement, slot) for slot in placement.ranks))
