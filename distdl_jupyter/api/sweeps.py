"""Sweeps over HTTP: start, show, stop, resume, delete, and run the best trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from distdl_jupyter.api import submitting
from distdl_jupyter.api.call import Context, checked_id, delete, get, post
from distdl_jupyter.api.jobs import SourceText, row_of
from distdl_jupyter.core.options import MAX_PROCESSES
from distdl_jupyter.studies import sweep_study
from distdl_jupyter.views.job_table import JobRow
from distdl_jupyter.views.sweep import SweepPanel

if TYPE_CHECKING:
    from distdl_jupyter.studies.sweeps import Sweep


class NewSweep(SourceText, frozen=True, kw_only=True):
    """Source text as the trials of a sweep; null and "" are the defaults.

    ``parameters`` says what is varied, as a line does: ``lr=loguniform(1e-4,1e-1) width=64,128``; each is a name that
    the code uses and does not set, or a flag that it takes.
    """

    parameters: str
    trials: int | None = None
    metric: str = ""
    maximize: bool | None = None
    parallel: int | None = None
    sampler: str = ""
    pruner: str = ""
    prune_after: int | None = None
    seed: int | None = None


def _sweep(id_: str) -> Sweep:
    from distdl_jupyter.studies.sweeps import Sweep  # captures code, which a server needs for nothing else

    return Sweep(sweep_study.find(checked_id(id_)))


@post("/sweeps", status=201, action="execute", slow=True, refuses=(424, 502, 507))
def start(context: Context, body: NewSweep) -> SweepPanel:
    """Run source text many times with different values, and find the best."""
    return _sweep(submitting.start(context, body)).panel


@get("/sweeps/{id}", refuses=(404,))
def show(id_: str) -> SweepPanel:
    """Return the trials so far, their parameters, and the best."""
    return _sweep(id_).panel


@delete("/sweeps/{id}", status=204, slow=True, refuses=(404, 409, 507))
def remove(id_: str) -> None:
    """Delete an ended sweep with its trials, their logs and outputs."""
    _sweep(id_).remove()


@post("/sweeps/{id}/stop", status=202, slow=True, refuses=(404, 409, 507))
def stop(id_: str) -> SweepPanel:
    """Cancel the running trials, and start no more."""
    return _sweep(id_).stop().panel


@post("/sweeps/{id}/resume", status=201, action="execute", slow=True, refuses=(400, 404, 409, 502, 507))
def resume(id_: str) -> SweepPanel:
    """Continue a sweep that was stopped, has failed, or was ended from outside."""
    return _sweep(id_).resume().panel


@post("/sweeps/{id}/best", status=201, action="execute", slow=True, refuses=(400, 404, 410, 424, 502, 507))
def run_best(
    id_: str, *, processes: Annotated[int, Meta(ge=1, le=MAX_PROCESSES, description="processes on one node")]
) -> JobRow:
    """Start a job with the best values, on a number of processes of one node."""
    return row_of(_sweep(id_).best.run(process_count_per_node=processes))
