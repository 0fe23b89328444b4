"""The schema of subscriptions and of the messages that a page receives.

A subscription lists everything that a page shows, and replaces the previous one. A message has a ``key`` (a log
message has a ``mark``): a later subscription with this key receives only newer data. Keys about jobs are also valid in
another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, field

from distdl_jupyter.live.clusters import ClusterRow
from distdl_jupyter.views.card import Card
from distdl_jupyter.views.curve import Curve, MetricValue
from distdl_jupyter.views.job_page import LogChanges, RankRow
from distdl_jupyter.views.job_table import JobRow
from distdl_jupyter.views.resources import Resources
from distdl_jupyter.views.steps import JobTime
from distdl_jupyter.views.wire import PageRequest


class LogRequest(PageRequest, frozen=True):
    """The changes of a job's log after the revision ``mark``; 0 requests the newest rows."""

    mark: int = 0


class CurveRequest(PageRequest, frozen=True):
    """A curve of a job; the metric "" selects the loss, or else the first metric."""

    metric: str = ""
    mode: Literal["band", "ranks"] = "band"
    key: str = ""


class JobSubscription(PageRequest, frozen=True):
    """The data to send about one job besides its card."""

    log: LogRequest | None = None
    curves: Annotated[tuple[CurveRequest, ...], Meta(max_length=20)] = ()
    key: str = ""
    resources: bool = False


class Subscription(PageRequest, frozen=True):
    """Everything that a page shows. ``job`` maps job ids to a ``JobSubscription``.

    The ``Welcome`` repeats ``number``; messages before it belong to the previous subscription.
    """

    number: int = 0
    jobs: bool = False
    clusters: bool = False
    job: Annotated[dict[str, JobSubscription], Meta(max_length=200)] = field(default_factory=dict)
    jobs_key: str = ""
    clusters_key: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first message of a subscription; ``server_id`` changes when the server restarts."""

    number: int
    server_id: str
    now: float
    type: Literal["hello"]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent every few seconds, so that a page notices a lost connection."""

    now: float
    type: Literal["alive"]


@dataclass(frozen=True, slots=True)
class JobsMessage:
    """New or changed rows of the job list; with ``whole``, they replace the list.

    A study also has a row, with the id of its group.
    """

    rows: tuple[JobRow, ...]
    removed: tuple[str, ...]
    whole: bool
    key: str
    type: Literal["jobs"]


@dataclass(frozen=True, slots=True)
class ClustersMessage:
    """All clusters."""

    clusters: tuple[ClusterRow, ...]
    key: str
    type: Literal["clusters"]


@dataclass(frozen=True, slots=True)
class JobMessage:
    """The current state of a job."""

    id: str
    card: Card
    metrics: tuple[MetricValue, ...]
    ranks: tuple[RankRow, ...]
    key: str
    type: Literal["job"]


@dataclass(frozen=True, slots=True)
class LogMessage(LogChanges):
    """Changes of a job's log; with ``whole``, they replace all rows. ``mark`` is the revision for the next request."""

    id: str
    mark: int
    whole: bool
    type: Literal["log"]


@dataclass(frozen=True, slots=True)
class CurveMessage(Curve):
    """A curve of a job; ``requested`` is the requested metric, which may be ""."""

    id: str
    requested: str
    key: str
    type: Literal["curve"]


@dataclass(frozen=True, slots=True)
class ResourcesMessage(Resources):
    """Resource usage of a job's ranks and machines, and its newest step times."""

    id: str
    key: str
    type: Literal["resources"]
    time: JobTime | None


@dataclass(frozen=True, slots=True)
class DeletionMessage:
    """The job does not exist or was deleted."""

    id: str
    key: Literal["gone"]
    type: Literal["gone"]


@dataclass(frozen=True, slots=True)
class ApiError:
    """The body of every error. ``field`` is the invalid field of the request, or "" if there is none.

    ``code`` is the stable name of the error (``cluster-unknown``), by which the documentation lists its fix.
    """

    message: str
    type: str
    hint: str
    field: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class SubscriptionError:
    """The response to an invalid subscription; the connection is closed."""

    error: ApiError
    type: Literal["refused"]


#: The messages that a server sends over a WebSocket.
MESSAGE_TYPES = (
    Welcome,
    Heartbeat,
    SubscriptionError,
    JobsMessage,
    ClustersMessage,
    JobMessage,
    LogMessage,
    CurveMessage,
    ResourcesMessage,
    DeletionMessage,
)
