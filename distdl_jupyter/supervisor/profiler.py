"""Makes the ranks of one attempt record the same steps, and saves the result as one profile.

1. The ranks read the request; each reports its current step.
2. When all have reported, or after ``_ARM`` seconds, they receive the first step to record.
3. Each records, writes its trace on its own machine and reports it. A rank that exits or fails is left out.
4. A thread fetches the traces and summaries, and masks secrets in them.

``tick`` never blocks. A profile lists the missing ranks. If all ranks are missing, it has failed, with their reasons.
"""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter.clusters.base import Run
from distdl_jupyter.core import files, profiles
from distdl_jupyter.core.humanize import ranks as ranks_in_words
from distdl_jupyter.supervisor.recorder import EventRecorder
from distdl_jupyter.supervisor.reports import ProfileReport
from distdl_jupyter.worker.hooks import frameworks

#: Timeout in seconds for a step of each rank; seconds until a request has reached all ranks: local, other clusters.
_ARM, _LEAD, _SLOW_LEAD = 30.0, 0.5, 2.0
#: Seconds without a report of any rank after which recording ranks count as missing, and timeout in seconds for saving.
_SILENT, _SAVE = 600.0, 60.0
_NO_STEP = f"No step was made within {_ARM:.0f} s. A step ends with {frameworks.STEP}."


@dataclass(slots=True)
class _Profile:
    """The profile in progress; ``failure`` is why it could not be saved."""

    number: int
    steps: int
    ranks: list[int]
    #: The last report of each rank with its time, and why ranks are missing.
    reports: dict[int, tuple[ProfileReport, float]] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    t: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    last_report: float = field(default_factory=time.monotonic)
    started: bool = False
    thread: threading.Thread | None = None
    failure: str = ""

    def having(self, *status: str) -> list[int]:
        """Return the ranks in one of these states; the state before the first report is ""."""
        present = [rank for rank in self.ranks if rank not in self.missing]
        return [rank for rank in present if (self.reports[rank][0].status if rank in self.reports else "") in status]

    @property
    def pending(self) -> list[int]:
        """The ranks whose final report is still expected."""
        return self.having("", "armed", "recording", "saving")

    def why_missing(self) -> str:
        """Return why ranks are missing."""
        reasons: dict[str, list[int]] = {}
        for rank, why in sorted(self.missing.items()):
            reasons.setdefault(why, []).append(rank)
        return " ".join(f"{ranks_in_words(ranks).capitalize()}: {why}" for why, ranks in reasons.items())


class ProfileCollector:
    """Collects the profiles of one attempt, one at a time."""

    def __init__(self, run: Run, recorder: EventRecorder) -> None:
        self._run = run
        self._recorder = recorder
        self._now: _Profile | None = None
        for left in recorder.view.profiles:
            if not left.ended:  # left by an earlier attempt or a supervisor that died
                self._now = _Profile(left.number, left.steps, list(left.ranks))
                self._end("The ranks that recorded the profile were replaced.")

    def request(self, steps: Any, ranks: Any) -> None:
        """Begin a profile of this many steps of some ranks (None: all), unless one is in progress."""
        if self._now is not None or type(steps) is not int or not 1 <= steps <= profiles.MOST_STEPS:
            return
        view, folder = self._recorder.view, self._recorder.folder
        running = [rank.rank for rank in view.ranks if rank.is_running and (ranks is None or rank.rank in ranks)]
        number = max([0, *profiles.numbers(folder), *(known.number for known in view.profiles)]) + 1
        self._now = _Profile(number, steps, running)
        self._event("requested")
        why = self._run.no_stacks() or ("" if running else "None of these ranks is running.")
        try:
            if not why:
                profiles.folder_of(folder, number).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            why = f"The profile cannot be stored: {error.strerror}."
        if why:
            self._end(why)
        else:
            self._run.ask_profile(running, {"number": number, "steps": steps})

    def tick(self) -> None:
        """Process the reports of ranks, and continue the profile in progress."""
        reports, self._recorder.profile_reports = self._recorder.profile_reports, []
        if (profile := self._now) is None:
            return
        for rank, report in reports:
            self._take(profile, rank, report)
        if profile.thread is None:
            self._advance(profile)
        elif not profile.thread.is_alive():
            self._end(profile.failure)

    def _advance(self, now: _Profile) -> None:
        """Leave out ranks that no longer respond, then start the recording or save it."""
        for rank in now.pending:
            if self._recorder.view.ranks[rank].status in ("ended", "waiting"):
                now.missing[rank] = "Its process has ended."
            elif time.monotonic() - now.last_report > _SILENT:
                now.missing[rank] = f"No response for {_SILENT / 60:.0f} min."
        if not now.started and (not now.having("") or time.monotonic() - now.began > _ARM):
            self._start(now)
        elif now.started and not now.pending:
            self._save(now)

    def _take(self, now: _Profile, rank: int, report: ProfileReport) -> None:
        if report.number != now.number or rank not in now.pending:
            return
        now.last_report = time.monotonic()
        now.reports[rank] = report, now.last_report
        if report.status == "failed":
            now.missing[rank] = report.text or "It could not record."
        elif report.status == "recording" or (report.status == "saving" and not now.having("recording")):
            self._event(report.status)

    def _start(self, now: _Profile) -> None:
        """Send the first step to record to all ranks that have reported their current step."""
        now.missing |= dict.fromkeys(now.having(""), _NO_STEP)
        now.started, now.last_report = True, time.monotonic()
        if armed := now.having("armed"):
            lead = _LEAD if self._recorder.spec.cluster == "local" else _SLOW_LEAD
            # The step that each rank will have reached when the request has certainly arrived.
            steps = [
                report.step + 2 + math.ceil((time.monotonic() - at + lead) * 1e9 / max(report.pace, 1_000))
                for report, at in map(now.reports.__getitem__, armed)
            ]
            self._run.ask_profile(armed, {"number": now.number, "steps": now.steps, "start": max(steps)})

    def _save(self, now: _Profile) -> None:
        if not now.having("done"):
            self._end(now.why_missing())
            return
        self._event("saving")
        now.thread = threading.Thread(target=self._fetch_all, args=(now,), name="profile", daemon=True)
        now.thread.start()

    def _fetch_all(self, now: _Profile) -> None:
        """Fetch the files of the ranks and save the profile (in the thread)."""
        summaries: list[dict[str, Any]] = []
        for rank in now.having("done"):
            try:
                summaries.append(self._fetch(now.number, rank))
            except Exception as error:  # noqa: BLE001  the other ranks' files are saved
                now.missing[rank] = f"Its trace was not received: {error}"
        if not summaries:
            now.failure = now.why_missing()
            return
        missing = {str(rank): why for rank, why in now.missing.items()}
        data = {"t": round(now.t, 3), "steps": now.steps, "ranks": summaries, "missing": missing}
        folder = profiles.folder_of(self._recorder.folder, now.number)
        try:
            files.keep(folder / "profile.json", json.dumps(self._recorder.redactor.data(data)))
            for summary in summaries:
                (folder / f"rank-{summary['rank']}.json").unlink(missing_ok=True)
        except Exception as error:  # noqa: BLE001  no error may end the job
            now.failure = f"The profile cannot be stored: {getattr(error, 'strerror', None) or error}."

    def _fetch(self, number: int, rank: int) -> dict[str, Any]:
        """Fetch a rank's trace into the folder, mask its secrets, and return the rank's summary."""
        folder = profiles.folder_of(self._recorder.folder, number)
        for name in (f"rank-{rank}.json", f"rank-{rank}.json.gz"):
            self._run.fetch(rank, f"{profiles.FOLDER}/{number}/{name}", profiles.LARGEST)
            if (folder / name).stat().st_size > profiles.LARGEST:
                raise ValueError(f"{name} is larger than {profiles.LARGEST // 1000000} MB.")
        summary = json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8"))
        profiles.profile(number, {"t": 0.0, "ranks": [summary]}, folder)  # raises if it is not a summary
        profiles.clean_names(folder / f"rank-{rank}.json.gz", self._recorder.redactor.text)
        return {**summary, "rank": rank, "host": self._recorder.view.ranks[rank].host or summary.get("host") or ""}

    def finish(self) -> None:
        """Save the profile in progress after all ranks have ended."""
        self.tick()
        if (profile := self._now) is None:
            return
        profile.missing |= dict.fromkeys(profile.pending, "Its process ended before it had recorded the steps.")
        profile.started = True
        if profile.thread is None:
            self.tick()
        if profile.thread is not None:  # otherwise ``tick`` has recorded the failure
            profile.thread.join(_SAVE)
            self._end("It was not saved in time." if profile.thread.is_alive() else profile.failure)

    def _end(self, why: str) -> None:
        self._event("failed" if why else "done", why)
        self._now = None

    def _event(self, status: str, why: str = "") -> None:
        now = self._now
        assert now is not None
        recorded = min((now.reports[rank][0].step for rank in now.having("recording", "saving", "done")), default=0)
        last = self._recorder.view.profiles[-1] if self._recorder.view.profiles else None
        if last is None or (last.number, last.status, last.recorded) != (now.number, status, recorded):
            fields = {"number": now.number, "status": status, "steps": now.steps, "ranks": sorted(now.ranks)}
            self._recorder.write("profile", **fields, recorded=recorded, why=why)
