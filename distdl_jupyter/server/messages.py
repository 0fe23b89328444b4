"""What a page subscribes to over its WebSocket, and the messages that it is told with.

One subscription says everything that a page wants to know and replaces the one before; the answer is one message after
the other (see ``live.messages`` for those about a job).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from distdl_jupyter.live.messages import (
    CurveMessage,
    Deleted,
    Heartbeat,
    JobMessage,
    JobSubscription,
    LogMessage,
    Welcome,
)
from distdl_jupyter.server.schema import ApiError, Cluster
from distdl_jupyter.views.job_table import JobRow


@dataclass(frozen=True, slots=True)
class Subscription:
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
    """Rows of the list of jobs that are new or have changed; ``whole`` replaces the list. The counts are of all."""

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
    Welcome | Heartbeat | Refused | JobsMessage | ClustersMessage | JobMessage | LogMessage | CurveMessage | Deleted
)


# What of the same can be asked for by itself. ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which rows of a log: the newest ``limit`` of those from ``first`` on and below ``before``."""

    first: int = field(default=0, metadata={"help": "number of the first row", "minimum": 0})
    before: int | None = field(default=None, metadata={"help": "number of the row to end before", "minimum": 0})
    limit: int = field(default=1000, metadata={"help": "most rows", "minimum": 1, "maximum": 10_000})
    rank: int | None = field(default=None, metadata={"help": "only rows of this rank", "minimum": 0})
    format: Literal["json", "text"] = "json"


@dataclass(frozen=True, slots=True)
class CurveQuery:
    """Which curve to draw and how."""

    metric: str = field(default="", metadata={"help": "the metric to draw; the one that says most when none is given"})
    mode: Literal["band", "ranks"] = "band"
    log: bool = False
    dark: bool = False
    width: int | None = field(default=None, metadata={"help": "pixels", "minimum": 50, "maximum": 10_000})
    height: int | None = field(default=None, metadata={"help": "pixels", "minimum": 50, "maximum": 10_000})


@dataclass(frozen=True, slots=True)
class MetricsQuery:
    """Which metrics."""

    name: str = field(default="", metadata={"help": "a metric; all of them when none is given"})
    points: int = field(default=1000, metadata={"help": "most points of each rank", "minimum": 3, "maximum": 1000})


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
