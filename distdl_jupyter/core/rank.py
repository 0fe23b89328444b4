"""What is known of one rank: where it runs, what it reported, how its process ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class RankView:
    """One rank: where it runs and how its process ended."""

    rank: int
    node: int = 0
    host: str = ""
    local_rank: int = 0
    pid: int | None = None
    gpu: int | None = None
    #: waiting, started (process runs), ready (the ranks met), ended
    status: str = "waiting"
    #: Whether torch.compile is at work, until which the rank reports nothing.
    compiling: bool = False
    code: int | None = None
    signal: str | None = None
    evidence: str = ""
    ended: float | None = None
    last_step: float | None = None
    lines: int = 0
    error_lines: int = 0
    result: str | None = None
    ok: bool | None = None
    error: dict[str, Any] | None = None
    error_time: float | None = None
    #: When the result or the error was heard of, by the supervisor's clock.
    result_time: float | None = None
    #: Why the value of a rank that is done did not come back, "" where it did.
    problem: str = ""
    #: Its last collective operations when its code ended (worker.stacks.last_operations).
    collectives: dict[str, Any] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process has begun and not ended."""
        return self.status in ("started", "ready")

    @property
    def is_compiling(self) -> bool:
        """Whether torch.compile is at work in its process, which has not ended."""
        return self.compiling and self.is_running
