"""Experiment trackers of a job: how far they have come, and where their pages are."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

from distdl_jupyter.core import tracking
from distdl_jupyter.server.base import Handler, answers
from distdl_jupyter.server.jobs import attached
from distdl_jupyter.server.lazy_routes import VIEW
from distdl_jupyter.server.schema import TrackerList, TrackerRow

_PROXY = "jupyter_server_proxy"


class TrackersOfJob(Handler):
    """The trackers of one job."""

    @answers(TrackerList, refuses=(404,))
    async def get(self, id_: str) -> TrackerList:
        """Say how far each tracker of a job has come, and where its page is."""
        return await self.run_in_thread(_rows, id_)


def _rows(id_: str) -> TrackerList:
    return TrackerList(tuple(map(functools.partial(_row, id_), tracking.of_job(attached(id_).folder.path))))


def _row(id_: str, record: tracking.TrackerRecord) -> TrackerRow:
    view, why = "", ""
    if record.run and not record.url and record.tracker != "wandb":
        why = _missing(record.tracker)
        view = "" if why else _view(id_, record)
    return TrackerRow(
        record.tracker, record.title, record.run, record.place, record.url, view, why, record.trouble, record.done
    )


def _view(id_: str, record: tracking.TrackerRecord) -> str:
    if record.tracker == "tensorboard":
        return f"{VIEW[1:]}/{id_}/tensorboard/"
    return f"{VIEW[1:]}/mlflow/#/experiments/{record.experiment}/runs/{record.run}"


def _missing(tracker: str) -> str:
    missing = [name for name in (tracker, _PROXY) if find_spec(name) is None]
    return f"Opening it here needs a package: pip install 'distdl-jupyter[{tracker}]'." if missing else ""


def pages() -> list[tuple[str, Any, dict[str, Any]]]:
    """Return the patterns of trackers' pages with their handler; none without jupyter-server-proxy."""
    if find_spec(_PROXY) is None:
        return []
    from distdl_jupyter.server.trackerpages import TrackerPages

    return [
        (rf"{VIEW}/[\w-]+/tensorboard(/.*)", TrackerPages, {"state": {}}),
        (rf"{VIEW}/mlflow(/.*)", TrackerPages, {"state": {}}),
    ]
