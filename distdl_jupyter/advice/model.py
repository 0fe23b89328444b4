"""What goes into the rules and what comes out: plain frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from distdl_jupyter.azure import VmSize

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Advice:
    """One finding: a headline, the reason with its numbers, and what one click would do.

    ``change`` holds request fields with their new values ({} when there is nothing to set here); ``snippet`` is code
    for the user to put into the training ("" when none); ``action`` labels either, "" when there is neither.
    ``source`` is where a rule's number or formula comes from.
    """

    code: str
    level: Level
    headline: str
    reason: str
    action: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    snippet: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is about to be submitted, as far as it is known; None and "" mean unknown.

    ``batch_size`` is per process. ``arguments`` are the values the code runs with, in any form that tells two runs
    apart. ``cores`` and ``gpus`` are those of the machine that the processes share when ``compute_target`` is local.
    """

    node_count: int = 1
    process_count_per_node: int = 1
    distributed_backend: str = "plain"
    compute_target: str = "local"
    vm_size: VmSize | None = None
    use_gpu: bool | None = None
    name: str = ""
    code: str = ""
    arguments: tuple[str, ...] = ()
    batch_size: float | None = None
    learning_rate: float | None = None
    #: The name that holds the learning rate in the user's code, and whether it is an argument of the function, which
    #: a form can set. ``scales_learning_rate``: the code multiplies it by the world size itself.
    learning_rate_name: str = "lr"
    learning_rate_is_argument: bool = False
    scales_learning_rate: bool = False
    cores: int | None = None
    gpus: int | None = None
    #: Whether each node costs money for every hour, what all of them cost ("about 7.35 USD/h for 2 nodes"), and
    #: whether they may be taken away (low priority, Spot).
    bills: bool = False
    rate: str = ""
    interruptible: bool = False
    max_run_duration_seconds: float | None = None

    @property
    def process_count(self) -> int:
        """World size."""
        return self.node_count * self.process_count_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """One earlier job. ``seconds`` from submission to its end; None while unknown."""

    id: str
    name: str
    process_count: int
    code: str = ""
    arguments: tuple[str, ...] = ()
    completed: bool = False
    seconds: float | None = None
    compute_target: str = "local"


@dataclass(frozen=True, slots=True)
class Case:
    """Everything a rule may look at. ``catalogue`` may be empty: then no size is ever suggested."""

    request: Request
    catalogue: Sequence[VmSize] = ()
    history: Sequence[PastJob] = ()


#: A rule says at most one thing, None when all is well.
Rule = Callable[[Case], Advice | None]
