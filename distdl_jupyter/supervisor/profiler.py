"""Lets the ranks of one attempt record some steps, and keeps what they bring as one profile.

1. The ranks find the request; each says at which step it is when it makes one.
2. When all have, or after ``_ARM`` seconds, they are told the step with which all begin.
3. Each records, writes its trace on its own machine and says so. A rank that ends or fails is left out.
4. A thread brings the traces and summaries here, and masks secrets in them.

``tick`` never waits. What a profile lacks is said in it; one of which nothing came has failed, with a sentence.
"""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import atomic_write, profiles
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import ranks as ranks_in_words
from distdl_jupyter.worker.hooks import frameworks

if TYPE_CHECKING:
    from pathlib import Path

    from distdl_jupyter.clusters.base import Run
    from distdl_jupyter.core.view import ProfileView
    from distdl_jupyter.supervisor.recorder import EventRecorder

#: Seconds in which ranks must make a step, and those that a request to all of them may take: here, and elsewhere.
_ARM, _LEAD, _SLOW_LEAD = 30.0, 0.5, 2.0
#: Seconds without a report of any rank after which those that still record are given up, and of saving at the end.
_SILENT, _SAVE = 600.0, 60.0
_NO_STEP = f"No step was made within {_ARM:.0f} s. A step ends with {frameworks.STEP}."


@dataclass(slots=True)
class _Rank:
    """How far a rank is: "" before its first step, armed, recording, saving, done, or missing with a reason."""

    status: str = ""
    step: int = 0
    pace: int = 0
    at: float = 0.0
    why: str = ""

    @property
    def ended(self) -> bool:
        return self.status in ("done", "missing")


@dataclass(slots=True)
class _Profile:
    """The profile that is being made."""

    number: int
    steps: int
    t: float
    request: dict[str, Any]
    ranks: dict[int, _Rank]
    began: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    started: bool = False
    thread: threading.Thread | None = None
    #: Why nothing came of it, once the thread has ended.
    failure: str | None = None


class ProfileCollector:
    """The profiles of one attempt, one at a time."""

    def __init__(self, run: Run, recorder: EventRecorder) -> None:
        self._run = run
        self._recorder = recorder
        self._now: _Profile | None = None
        recorder.on_profile = self._take
        for left in recorder.view.profiles:
            if not left.ended:  # of an earlier attempt, or of a supervisor that died
                self._write(left, "failed", why="The ranks that recorded the profile were replaced.")

    def request(self, steps: Any, ranks: Any) -> None:
        """Begin a profile of so many steps of some ranks, None for all, unless one is being made."""
        if self._now is not None or type(steps) is not int or not 1 <= steps <= profiles.MOST_STEPS:
            return
        running = {rank.rank for rank in self._recorder.view.ranks if rank.is_running}
        wanted = sorted(running if ranks is None else running & {one for one in ranks if type(one) is int})
        known = [*profiles.numbers(self._recorder.folder), *(one.number for one in self._recorder.view.profiles)]
        number, now = max(known, default=0) + 1, time.time()
        fields = {"number": number, "steps": steps}
        self._now = _Profile(number, steps, now, fields, {rank: _Rank() for rank in wanted})
        self._event("asked")
        if why := self._run.no_stacks() or ("" if wanted else "None of these ranks is running."):
            self._end(why)
            return
        try:
            profiles.folder_of(self._recorder.folder, number).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._end(f"The profile cannot be stored: {error.strerror}.")
            return
        self._run.ask_profile(wanted, fields)

    def _take(self, rank: int, report: dict[str, Any]) -> None:
        """Take what a rank says of its part."""
        now = self._now
        one = now.ranks.get(rank) if now is not None and report.get("number") == now.number else None
        if now is None or one is None or one.ended:
            return
        now.heard = one.at = time.monotonic()
        status = str(report["status"])
        if status == "failed":
            one.status, one.why = "missing", str(report.get("text") or "It could not record.")
        else:
            one.status, one.step, one.pace = status, int(report.get("step", 0)), int(report.get("pace", 0))
        others = {other.status for other in now.ranks.values()}
        if status == "recording" or (status == "saving" and "recording" not in others):
            self._event(status)

    def tick(self) -> None:
        """Go on."""
        now = self._now
        if now is None:
            return
        if now.thread is not None:
            if not now.thread.is_alive():
                self._end(now.failure or "")
            return
        self._note_missing(now)
        if not now.started:
            self._start(now)
        elif all(one.ended for one in now.ranks.values()):
            self._save(now)

    def _note_missing(self, now: _Profile) -> None:
        for rank, one in now.ranks.items():
            if not one.ended and self._recorder.view.ranks[rank].status in ("ended", "waiting"):
                recorded = one.status in ("recording", "saving")
                one.status, one.why = "missing", f"Its process has ended{' while it recorded' if recorded else ''}."
            elif not one.ended and time.monotonic() - now.heard > _SILENT:
                one.status, one.why = "missing", f"No response for {_SILENT / 60:.0f} min."

    def _start(self, now: _Profile) -> None:
        """Tell the ranks with which step they begin, once all have said where they are."""
        waiting = [rank for rank, one in now.ranks.items() if not one.status]
        if waiting and time.monotonic() - now.began < _ARM:
            return
        for rank in waiting:
            now.ranks[rank].status, now.ranks[rank].why = "missing", _NO_STEP
        armed = {rank: one for rank, one in now.ranks.items() if one.status == "armed"}
        now.started, now.heard = True, time.monotonic()
        if waiting:
            self._run.ask_profile(waiting, {**now.request, "steps": 0})
        if armed:
            lead = _LEAD if self._recorder.spec.cluster == "local" else _SLOW_LEAD
            start = max(_steps_ahead(one, lead) for one in armed.values())
            self._run.ask_profile(sorted(armed), {**now.request, "start": start})

    # the end ------------------------------------------------------------------------------------

    def _save(self, now: _Profile) -> None:
        """Begin to save what came, or say why there is nothing."""
        done = [rank for rank, one in now.ranks.items() if one.status == "done"]
        if not done:
            self._end(_why_nothing(now.ranks))
            return
        self._event("saving")
        now.thread = threading.Thread(target=self._make, args=(now, done), name="profile", daemon=True)
        now.thread.start()

    def _make(self, now: _Profile, done: list[int]) -> None:
        """In the thread: bring and keep."""
        try:
            self._keep(now, done)
        except LaunchFailed as error:
            now.failure = str(error)
        except OSError as error:
            now.failure = f"The profile cannot be stored: {error.strerror or error}."
        except Exception as error:  # noqa: BLE001  nothing may end the job
            now.failure = f"The profile cannot be saved: {type(error).__name__}: {error!s:.200}."

    def _keep(self, now: _Profile, done: list[int]) -> None:
        folder = profiles.folder_of(self._recorder.folder, now.number)
        summaries: list[dict[str, Any]] = []
        for rank in done:
            try:
                summaries.append(self._bring(folder, now.number, rank))
            except (LaunchFailed, OSError, ValueError, LookupError, TypeError) as error:
                now.ranks[rank].status, now.ranks[rank].why = "missing", f"Its trace was not received: {error}"
        if not summaries:
            now.failure = _why_nothing(now.ranks)
            return
        data = {
            "t": round(now.t, 3),
            "steps": now.steps,
            "ranks": summaries,
            "missing": {str(rank): one.why for rank, one in now.ranks.items() if one.status == "missing"},
        }
        atomic_write.keep(folder / "profile.json", json.dumps(self._recorder.redactor.data(data)))
        for one in summaries:
            (folder / f"rank-{one['rank']}.json").unlink(missing_ok=True)

    def _bring(self, folder: Path, number: int, rank: int) -> dict[str, Any]:
        """Return a rank's summary; its trace is in the folder then, without secrets."""
        for name in (f"rank-{rank}.json", f"rank-{rank}.json.gz"):
            self._run.fetch(rank, f"{profiles.FOLDER}/{number}/{name}", profiles.LARGEST)
            if (folder / name).stat().st_size > profiles.LARGEST:
                raise ValueError(f"{name} is larger than {profiles.LARGEST // 1000000} MB.")
        found = json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8"))
        profiles.profile(number, {"t": 0.0, "ranks": [found]}, folder)  # what is no summary raises here
        profiles.clean_names(folder / f"rank-{rank}.json.gz", self._recorder.redactor.text)
        return {**found, "rank": rank, "host": self._recorder.view.ranks[rank].host or found.get("host") or ""}

    def finish(self) -> None:
        """All ranks have ended: make what can be made of what they brought."""
        now = self._now
        if now is None:
            return
        for one in now.ranks.values():
            if not one.ended:
                one.status, one.why = "missing", "Its process ended before it had recorded the steps."
        now.started = True
        if now.thread is None:
            self.tick()
        thread = now.thread
        if thread is not None:  # else ``tick`` has said why there is nothing
            thread.join(_SAVE)
            self._end(now.failure or ("It was not saved in time." if thread.is_alive() else ""))

    def _end(self, why: str) -> None:
        self._event("failed" if why else "done", why)
        self._now = None

    def _event(self, status: str, why: str = "") -> None:
        now = self._now
        assert now is not None
        steps = (one.step for one in now.ranks.values() if one.status in ("recording", "saving", "done"))
        recorded = min(steps, default=0)
        last = self._recorder.view.profiles[-1] if self._recorder.view.profiles else None
        if last is not None and (last.number, last.status, last.recorded) == (now.number, status, recorded):
            return
        self._recorder.write("profile", number=now.number, status=status, steps=now.steps, ranks=sorted(now.ranks),
                             recorded=recorded, why=why)  # fmt: skip

    def _write(self, of: ProfileView, status: str, why: str) -> None:
        self._recorder.write("profile", number=of.number, status=status, steps=of.steps, ranks=of.ranks, why=why)


def _steps_ahead(one: _Rank, lead: float) -> int:
    """Return the step at which a rank is when a word to it has surely come."""
    return one.step + 2 + math.ceil((time.monotonic() - one.at + lead) * 1e9 / max(one.pace, 1_000))


def _why_nothing(ranks: dict[int, _Rank]) -> str:
    whys: dict[str, list[int]] = {}
    for rank, one in ranks.items():
        whys.setdefault(one.why, []).append(rank)
    return " ".join(f"{ranks_in_words(which).capitalize()}: {why}" for why, which in whys.items())
