"""One ordinary process, no communication: the same cell before it is distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdl_jupyter.backends.base import Backend, common_environment
from distdl_jupyter.backends.usage import TENSORFLOW, TORCH, Package
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.plan import Placement, Plan

if TYPE_CHECKING:
    from distdl_jupyter.core.spec import JobSpec


class PlainBackend(Backend):
    """Runs exactly one process."""

    name = "plain"
    labels = {"plain": {}}  # noqa: RUF012 - declared as ClassVar in the base class
    meets = False

    def unavailable(self, options: Any) -> str:
        """Plain Python is always there."""
        return ""

    def packages(self, options: Any) -> tuple[Package, ...]:
        """Return what one process may train with."""
        return (TORCH, TENSORFLOW)

    def plan(self, spec: JobSpec, placement: Placement, options: Any) -> Plan:
        """One rank with the common environment. Raises InvalidSpec for several processes."""
        if spec.process_count > 1:
            raise InvalidSpec(
                f"The backend plain runs one process, but the job has {spec.process_count}.",
                code="backend-one-process",
                field="distributed_backend",
                hint="Run one process, or choose a backend for several: distributed_backend=torch",
            )
        return Plan(environments=tuple(common_environment(placement, slot) for slot in placement.ranks))
