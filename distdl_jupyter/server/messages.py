"""What a page subscribes to over its WebSocket, and the messages that it is told with.

One subscription says everything that a page wants to know and replaces the one before; the answer is one message after
the other (see ``live.messages`` for those about a job).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, field

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
from distdl_jupyter.server.schema import ApiError, Cluster, Pixels
from distdl_jupyter.views.job_table import JobRow
from distdl_jupyter.views.wire import Request


class Subscription(Request, frozen=True):
    """All that a page wants to be told. ``job`` has a ``JobSubscription`` by the id of the job.

    ``number`` comes back with the ``Welcome``: what is told before it belongs to an earlier subscription.
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
    """A subscription that cannot be; the connection ends."""

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


# What of the same can be asked for by itself. ------------------------------------------------------


class LogQuery(Request, frozen=True):
    """Which rows of a log: the newest ``limit`` of those from ``first`` on and below ``before``."""

    first: Annotated[int, Meta(ge=0, description="number of the first row")] = 0
    before: Annotated[int, Meta(ge=0, description="number of the row after the last one")] | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000, description="maximum number of rows")] = 1000
    rank: Annotated[int, Meta(ge=0, description="only rows of this rank")] | None = None
    format: Literal["json", "text"] = "json"


class CurveQuery(Request, frozen=True):
    """Which curve to draw and how."""

    metric: Annotated[str, Meta(description="the metric to plot; without it, the most informative one")] = ""
    mode: Literal["band", "ranks"] = "band"
    log: bool = False
    dark: bool = False
    width: Pixels | None = None
    height: Pixels | None = None


class MetricsQuery(Request, frozen=True):
    """Which metrics."""

    name: Annotated[str, Meta(description="a metric; without it, all metrics")] = ""
    points: Annotated[int, Meta(ge=3, le=1000, description="maximum number of points per rank")] = 1000


@dataclass(frozen=True, slots=True)
class RankSeries:
    """What one rank reported; a value of None is a gap. ``lows`` and ``highs`` are exact where points were thinned."""

    rank: int
    steps: tuple[float, ...]
    values: tuple[float | None, ...]
    lows: tuple[float | None, ...]
    highs: tuple[float | None, ...]
    times: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One metric of all ranks."""

    name: str
    ranks: tuple[RankSeries, ...]


@dataclass(frozen=True, slots=True)
class MetricsList:
    """Metrics in the order of their first report."""

    metrics: tuple[MetricSeries, ...]
