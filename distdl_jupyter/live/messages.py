"""What can be asked for of a job while it runs, and the messages about it.

A message has a ``key`` (that of a log is its ``mark``): a later request that gives it back is told only what is new
since then, also by another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distdl_jupyter.views.card import Card
from distdl_jupyter.views.curve import Curve, MetricValue
from distdl_jupyter.views.job_page import LogChanges, RankRow
from distdl_jupyter.views.resources import Resources
from distdl_jupyter.views.step_times import JobTime
from distdl_jupyter.views.wire import Request


class LogRequest(Request, frozen=True):
    """The log of a job from a mark on; 0 begins with the newest rows."""

    mark: int = 0


class CurveRequest(Request, frozen=True):
    """A curve of a job; the metric "" selects the most informative one."""

    metric: str = ""
    mode: Literal["band", "ranks"] = "band"
    log: bool = False
    key: str = ""


class JobSubscription(Request, frozen=True):
    """What to send about one job besides its card."""

    log: LogRequest | None = None
    curves: tuple[CurveRequest, ...] = ()
    key: str = ""
    resources: bool = False


@dataclass(frozen=True, slots=True)
class Welcome:
    """The first message of a subscription; ``server_id`` is another one when the server was started again."""

    number: int
    server_id: str
    now: float
    type: Literal["hello"]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent when there are no other messages."""

    now: float
    type: Literal["alive"]


@dataclass(frozen=True, slots=True)
class JobMessage:
    """A job as it is now."""

    id: str
    card: Card
    metrics: tuple[MetricValue, ...]
    ranks: tuple[RankRow, ...]
    key: str
    type: Literal["job"]


@dataclass(frozen=True, slots=True)
class LogMessage(LogChanges):
    """Changes of a job's log; ``whole`` replaces what was there. ``mark`` is what to ask with the next time."""

    id: str
    mark: int
    whole: bool
    type: Literal["log"]


@dataclass(frozen=True, slots=True)
class CurveMessage(Curve):
    """A curve of a job; ``asked`` is the requested metric, which may be ""."""

    id: str
    asked: str
    key: str
    type: Literal["curve"]


@dataclass(frozen=True, slots=True)
class ResourcesMessage(Resources):
    """What ranks and machines of a job use, and where the time of its newest steps went."""

    id: str
    key: str
    type: Literal["resources"]
    time: JobTime | None


@dataclass(frozen=True, slots=True)
class Deleted:
    """The job does not exist (any more)."""

    id: str
    key: Literal["gone"]
    type: Literal["gone"]
