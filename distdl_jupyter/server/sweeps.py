"""Sweeps over HTTP. All of it is ``sweeps``' and ``sweep_study``'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.server import submitting
from distdl_jupyter.server.base import Handler, answers, checked_id, executes
from distdl_jupyter.server.jobs import row_of
from distdl_jupyter.server.schema import BestOfSweep, NewSweep
from distdl_jupyter.studies import sweep_study
from distdl_jupyter.views.job_table import JobRow
from distdl_jupyter.views.schema import SweepPanel

if TYPE_CHECKING:
    from distdl_jupyter.studies.sweeps import Sweep


def _sweep(id_: str) -> Sweep:
    from distdl_jupyter.studies.sweeps import Sweep  # with what captures code, which a server needs for nothing else

    return Sweep(sweep_study.find(checked_id(id_)))


class Sweeps(Handler):
    """All sweeps."""

    @answers(SweepPanel, status=201, body=NewSweep, refuses=(424, 502, 507))
    @executes
    async def post(self, body: NewSweep) -> SweepPanel:
        """Run source text many times with different values, and find the best."""
        id_ = await submitting.started(self, body)
        return await self.run_in_thread(lambda: _sweep(id_).panel)


class SweepById(Handler):
    """One sweep."""

    @answers(SweepPanel, refuses=(404,))
    async def get(self, id_: str) -> SweepPanel:
        """Return the trials so far, their parameters, and the best."""
        return await self.run_in_thread(lambda: _sweep(id_).panel)

    @answers(status=204, refuses=(404, 409, 507))
    async def delete(self, id_: str) -> None:
        """Delete an ended sweep with its trials, their logs and outputs."""
        await self.slowly(lambda: _sweep(id_).remove())


class StopSweep(Handler):
    """The request to end a sweep."""

    @answers(SweepPanel, status=202, refuses=(404, 409, 507))
    async def post(self, id_: str) -> SweepPanel:
        """Cancel the running trials, and start no more."""
        return await self.slowly(lambda: _sweep(id_).stop().panel)


class ResumeSweep(Handler):
    """The request to go on with a sweep."""

    @answers(SweepPanel, status=201, refuses=(400, 404, 409, 502, 507))
    @executes
    async def post(self, id_: str) -> SweepPanel:
        """Continue a sweep that was stopped, has failed, or was ended from outside."""
        return await self.slowly(lambda: _sweep(id_).resume().panel)


class RunBestOfSweep(Handler):
    """The request to run the best trial as a job of its own."""

    @answers(JobRow, status=201, body=BestOfSweep, refuses=(400, 404, 410, 424, 502, 507))
    @executes
    async def post(self, id_: str, body: BestOfSweep) -> JobRow:
        """Start a job with the best values, on a number of processes of one node."""
        return await self.slowly(lambda: row_of(_sweep(id_).best.run(process_count_per_node=body.processes)))
