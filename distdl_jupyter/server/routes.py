"""All addresses of the API in one table, for the server and for the OpenAPI file.

``{id}`` stands for one part of a path, ``{path}`` for the rest of it.
"""

from __future__ import annotations

import re

from distdl_jupyter.server.azure import Azure, AzureByCode, AzureOut, AzureSubscriptions
from distdl_jupyter.server.base import Handler, Nothing
from distdl_jupyter.server.choices import Choices
from distdl_jupyter.server.clusters import CheckOfCluster, ClusterByName, Clusters
from distdl_jupyter.server.compare import Compare
from distdl_jupyter.server.events import Events
from distdl_jupyter.server.form import Form
from distdl_jupyter.server.jobs import (
    CancelJob,
    CheckOfJob,
    CheckpointsOfJob,
    EnvironmentOfJob,
    ForkJob,
    JobById,
    JobResult,
    Jobs,
    MoveJob,
    PriorityOfJob,
    QueueOfJobs,
    RerunJob,
    ResumeJob,
    TimeOfJob,
)
from distdl_jupyter.server.lazy_routes import BASE
from distdl_jupyter.server.log import JobCurve, JobLog, JobMetrics
from distdl_jupyter.server.outputs import OutputFile, Outputs
from distdl_jupyter.server.pictures import JobPicture
from distdl_jupyter.server.plugins import Advise, Plugins, VmSizes
from distdl_jupyter.server.profile import JobProfiles, ProfileTrace
from distdl_jupyter.server.resources import JobResources
from distdl_jupyter.server.stacks import JobStacks
from distdl_jupyter.server.sweeps import ResumeSweep, RunBestOfSweep, StopSweep, SweepById, Sweeps
from distdl_jupyter.server.tracking import TrackersOfJob

ROUTES: tuple[tuple[str, type[Handler]], ...] = (
    ("/clusters", Clusters),
    ("/clusters/{name}", ClusterByName),
    ("/clusters/{name}/check", CheckOfCluster),
    ("/choices", Choices),
    ("/jobs", Jobs),
    ("/jobs/{id}", JobById),
    ("/jobs/{id}/cancel", CancelJob),
    ("/jobs/{id}/priority", PriorityOfJob),
    ("/jobs/{id}/move", MoveJob),
    ("/jobs/{id}/rerun", RerunJob),
    ("/jobs/{id}/resume", ResumeJob),
    ("/jobs/{id}/checkpoints", CheckpointsOfJob),
    ("/jobs/{id}/fork", ForkJob),
    ("/jobs/{id}/environment", EnvironmentOfJob),
    ("/jobs/{id}/resources", JobResources),
    ("/jobs/{id}/stacks", JobStacks),
    ("/jobs/{id}/profile", JobProfiles),
    ("/jobs/{id}/profile/{number}/trace", ProfileTrace),
    ("/jobs/{id}/time", TimeOfJob),
    ("/jobs/{id}/tracking", TrackersOfJob),
    ("/jobs/{id}/check", CheckOfJob),
    ("/jobs/{id}/pictures/{number}", JobPicture),
    ("/jobs/{id}/result", JobResult),
    ("/jobs/{id}/log", JobLog),
    ("/jobs/{id}/curve", JobCurve),
    ("/jobs/{id}/metrics", JobMetrics),
    ("/jobs/{id}/outputs", Outputs),
    ("/jobs/{id}/outputs/{path}", OutputFile),
    ("/queue", QueueOfJobs),
    ("/compare", Compare),
    ("/sweeps", Sweeps),
    ("/sweeps/{id}", SweepById),
    ("/sweeps/{id}/stop", StopSweep),
    ("/sweeps/{id}/resume", ResumeSweep),
    ("/sweeps/{id}/best", RunBestOfSweep),
    ("/vm-sizes", VmSizes),
    ("/advice", Advise),
    ("/plugins", Plugins),
    ("/form", Form),
    ("/azure", Azure),
    ("/azure/sign-in", AzureByCode),
    ("/azure/sign-out", AzureOut),
    ("/azure/subscriptions", AzureSubscriptions),
    ("/events", Events),
)


def handlers() -> list[tuple[str, type[Handler]]]:
    """Return the patterns with their handlers; what matches none of them is answered 404 as JSON."""
    return [*((_pattern(path), handler) for path, handler in ROUTES), (rf"{BASE}(?:/.*)?", Nothing)]


def _pattern(path: str) -> str:
    return BASE + re.sub(r"\{(\w+)\}", _group, path)


def _group(found: re.Match[str]) -> str:
    return rf"(?P<{argument(found[1])}>{'.+' if found[1] == 'path' else '[^/]+'})"


def argument(part: str) -> str:
    """Return the name under which a handler is given a part of the path: Python has a use for ``id`` already."""
    return "id_" if part == "id" else part
