"""HTTP API for sweeps: show, stop, resume and delete them, and run the best trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from distdl_jupyter.api.call import checked_id, delete, get, post
from distdl_jupyter.api.jobs import row_of
from distdl_jupyter.core.options import MAX_PROCESSES
from distdl_jupyter.studies import sweep_study
from distdl_jupyter.views.job_table import JobRow
from distdl_jupyter.views.sweep import SweepPanel

if TYPE_CHECKING:
    from distdl_jupyter.studies.sweeps import Sweep


def sweep(id_: str) -> Sweep:
    """Return the handle of a sweep by its full id. Raises JobNotFound."""
    from distdl_jupyter.studies.sweeps import Sweep  # captures code, which a server needs only here

    return Sweep(sweep_study.find(checked_id(id_)))


@get("/sweeps/{id}", refuses=(404,))
def show(id_: str) -> SweepPanel:
    """Return the trials so far, their parameters, and the best."""
    return sweep(id_).panel


@delete("/sweeps/{id}", status=204, slow=True, refuses=(404, 409, 507))
def remove(id_: str) -> None:
    """Delete an ended sweep with its trials, their logs and outputs."""
    sweep(id_).remove()


@post("/sweeps/{id}/stop", status=202, slow=True, refuses=(404, 409, 507))
def stop(id_: str) -> SweepPanel:
    """Cancel the running trials and start no more."""
    return sweep(id_).stop().panel


@post("/sweeps/{id}/resume", status=201, action="execute", slow=True, refuses=(400, 404, 409, 502, 507))
def resume(id_: str) -> SweepPanel:
    """Resume a sweep that was stopped, has failed or was killed."""
    return sweep(id_).resume().panel


@post("/sweeps/{id}/best", status=201, action="execute", slow=True, refuses=(400, 404, 410, 424, 502, 507))
def run_best(
    id_: str, *, processes: Annotated[int, Meta(ge=1, le=MAX_PROCESSES, description="processes on one node")]
) -> JobRow:
    """Start a job with the best values, on a number of processes of one node."""
    return row_of(sweep(id_).best.run(process_count_per_node=processes))
