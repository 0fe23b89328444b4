"""Experiment trackers of a job: how far they have come, and where their pages are."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path

from distdl_jupyter.core import tracking
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.server.base import Handler, answers
from distdl_jupyter.server.jobs import attached
from distdl_jupyter.server.schema import TrackerList, TrackerRow


class TrackersOfJob(Handler):
    """The trackers of one job."""

    @answers(TrackerList, refuses=(404,))
    async def get(self, id_: str) -> TrackerList:
        """Return the progress of each tracker of a job, and the address of its run."""
        return await self.run_in_thread(_rows, id_)


def _rows(id_: str) -> TrackerList:
    folder = attached(id_).folder.path
    return TrackerList(tuple(map(functools.partial(_row, folder), tracking.of_job(folder))))


def _row(folder: Path, record: tracking.TrackerRecord) -> TrackerRow:
    command = _command(folder, record) if record.run and not record.url else ""
    return TrackerRow(
        record.tracker, record.title, record.run, record.place, record.url, command, record.trouble, record.done
    )


def _command(job: Path, record: tracking.TrackerRecord) -> str:
    """Return the command that shows a run that is kept on this machine, "" where there is none."""
    if record.tracker == "tensorboard":
        # All of the job where ranks have written event files of their own.
        has_own = next(job.glob("outputs/**/events.out.tfevents.*"), None) is not None
        folder = job if has_own else tracking.folder_of(job, "tensorboard")
        return f"tensorboard --logdir {shlex.quote(str(folder))}"
    if record.tracker == "mlflow":
        from distdl_jupyter.tracking import settings, trackers

        try:
            return f"mlflow ui --backend-store-uri {shlex.quote(trackers.mlflow_address(settings.read()))}"
        except DistDLError:
            return ""
    return ""
