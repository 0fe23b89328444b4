"""What a page subscribes to over its WebSocket, and the messages that the server sends.

A subscription says everything that a page shows and replaces the subscription before it; the server sends messages
until the next one (``live.messages`` has the messages about a job).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import field

from distdl_jupyter.api.call import CALLS, ApiError, Call
from distdl_jupyter.api.clusters import Cluster
from distdl_jupyter.live.messages import (
    CurveMessage,
    Deleted,
    Heartbeat,
    JobMessage,
    JobSubscription,
    LogMessage,
    ResourcesMessage,
    Welcome,
)
from distdl_jupyter.views.job_table import JobRow
from distdl_jupyter.views.wire import Request


class Subscription(Request, frozen=True):
    """All that a page shows. ``job`` has a ``JobSubscription`` by the id of the job.

    ``number`` comes back with the ``Welcome``: messages before it belong to an earlier subscription.
    """

    number: int = 0
    jobs: bool = False
    clusters: bool = False
    job: dict[str, JobSubscription] = field(default_factory=dict)
    jobs_key: str = ""
    clusters_key: str = ""


@dataclass(frozen=True, slots=True)
class JobsMessage:
    """Rows of the list of jobs that are new or have changed; ``whole`` replaces the list. The counts are of all jobs.

    A study has a row as well, whose id is that of its group.
    """

    rows: tuple[JobRow, ...]
    removed: tuple[str, ...]
    whole: bool
    total: int
    active: int
    failed: int
    key: str
    type: Literal["jobs"]


@dataclass(frozen=True, slots=True)
class ClustersMessage:
    """All clusters."""

    clusters: tuple[Cluster, ...]
    key: str
    type: Literal["clusters"]


@dataclass(frozen=True, slots=True)
class Refused:
    """A subscription that is not valid; the connection ends."""

    error: ApiError
    type: Literal["refused"]


Message = (
    Welcome
    | Heartbeat
    | Refused
    | JobsMessage
    | ClustersMessage
    | JobMessage
    | LogMessage
    | CurveMessage
    | ResourcesMessage
    | Deleted
)

CALLS.append(Call("get", "/events", "Open a WebSocket.", status=101, refuses=(426,), receives=Subscription))
