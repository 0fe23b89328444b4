"""Whether a job makes progress: how long its ranks have been silent, and from when on that is worth saying.

Pure: it is told of signs and of the time, in seconds of any clock that never goes back. It knows neither events nor
ranks' stacks.
"""

from __future__ import annotations

#: Seconds of silence that are always fine; and as long as a job is still importing, or no pace can be told.
_SHORT, _UNKNOWN = 60.0, 300.0
#: How many times the longest silence so far another one may last.
_TIMES = 5.0


class Progress:
    """``limit`` seconds of silence make a stall; None tells it by the pace of the job itself, 0 never does."""

    def __init__(self, now: float, limit: float | None = None) -> None:
        self._limit = limit
        self._since = now
        self._longest: float | None = None
        self._last: dict[int, float] = {}
        self._signs = 0
        #: Whether a rank has got behind its imports: it met the others, printed or reported something.
        self.begun = False

    def sign(self, now: float, rank: int | None = None, *, begins: bool = True) -> None:
        """Hear that a rank goes on (None: all of them); ``begins`` unless it may still be importing."""
        if self._signs and self.begun:
            self._longest = max(self._longest or 0.0, now - self._since)
        self._signs += 1
        self._since, self.begun = now, self.begun or begins
        if rank is not None:
            self._last[rank] = now

    def rest(self, now: float) -> None:
        """Expect nothing now: silence is counted from here on, and this one tells nothing of the pace."""
        self._since, self._signs = now, 0

    def silence(self, now: float) -> float:
        """Return for how many seconds no rank has given a sign."""
        return max(0.0, now - self._since)

    def silence_of(self, rank: int, now: float) -> float | None:
        """Return for how many seconds one rank has given none, None when it never has."""
        return max(0.0, now - self._last[rank]) if rank in self._last else None

    def patience(self, seconds: float) -> float:
        """Return for how long to wait where ``seconds`` are the limit: imports from a slow disk take their time."""
        return seconds if self.begun else max(seconds, _UNKNOWN)

    @property
    def limit(self) -> float | None:
        """The seconds of silence that make a stall, None for never."""
        if self._limit is not None:
            return self.patience(self._limit) if self._limit else None
        return _UNKNOWN if self._longest is None else max(_SHORT, _TIMES * self._longest)

    def stalled(self, now: float) -> bool:
        """Say whether the silence is longer than it should be."""
        limit = self.limit
        return limit is not None and self.silence(now) > limit
