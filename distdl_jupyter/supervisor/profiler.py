"""Makes the ranks of one attempt record the same steps, and saves the result as one profile.

1. The ranks read the request; each reports its current step.
2. When all have reported, or after ``_ARM_SECONDS`` seconds, they receive the first step to record.
3. Each records, writes its trace on its own machine and reports it. A rank that exits or fails is omitted.
4. A thread fetches the traces and summaries, and masks secrets in them.

``tick`` never blocks. A profile lists the missing ranks. If all ranks are missing, it has failed, with their reasons.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter.clusters.base import Run
from distdl_jupyter.core import files, profiles
from distdl_jupyter.supervisor.recorder import EventRecorder
from distdl_jupyter.supervisor.reports import ProfileReport
from distdl_jupyter.views.stacks import group_by_reason
from distdl_jupyter.worker.hooks import frameworks

#: Timeout in seconds for a step of each rank.
_ARM_SECONDS = 30.0
#: Seconds until a request has reached all ranks: on this machine, and on other clusters.
_LEAD_SECONDS, _SLOW_LEAD_SECONDS = 0.5, 2.0
#: Seconds without a report of any rank after which recording ranks count as missing.
_SILENCE_SECONDS = 600.0
#: Timeout in seconds for saving.
_SAVE_SECONDS = 60.0
_NO_STEP_MESSAGE = f"No step was made within {_ARM_SECONDS:.0f} s. A step ends with {frameworks.STEP_DESCRIPTION}."


@dataclass(slots=True)
class _Profile:
    """The profile in progress: the last report of each rank with its time, and why ranks are missing."""

    number: int
    steps: int
    ranks: list[int]
    reports: dict[int, tuple[ProfileReport, float]] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    t: float = field(default_factory=time.time)

    def select(self, *status: str) -> list[int]:
        """Return the ranks in one of these states; the state before the first report is ""."""
        included = [rank for rank in self.ranks if rank not in self.missing]
        return [rank for rank in included if (self.reports[rank][0].status if rank in self.reports else "") in status]

    @property
    def pending_ranks(self) -> list[int]:
        """The ranks whose final report is still expected."""
        return self.select("", "armed", "recording", "saving")

    @property
    def missing_text(self) -> str:
        """The reasons why ranks are missing."""
        return " ".join(f"{ranks.capitalize()}: {reason}" for ranks, reason in group_by_reason(self.missing))


class ProfileCollector:
    """Collects the profiles of one attempt, one at a time."""

    def __init__(self, run: Run, recorder: EventRecorder) -> None:
        self._run = run
        self._recorder = recorder
        self._profile: _Profile | None = None
        self._work: Generator[None, None, str]
        for record in recorder.view.profiles:
            if not record.ended:  # left by an earlier attempt or a supervisor that died
                profile = _Profile(record.number, record.steps, record.ranks)
                self._record(profile, "failed", "The ranks that recorded the profile were replaced.")

    def request(self, steps: Any, ranks: Any) -> None:
        """Start a profile of this many steps of some ranks (default: all), unless one is in progress."""
        if self._profile is not None or type(steps) is not int or not 1 <= steps <= profiles.MAX_STEPS:
            return
        view = self._recorder.view
        running = [rank.rank for rank in view.ranks if rank.is_running and (ranks is None or rank.rank in ranks)]
        numbers = [*profiles.list_numbers(self._recorder.folder), *(record.number for record in view.profiles)]
        self._profile = _Profile(max(numbers, default=0) + 1, steps, running)
        self._record(self._profile, "requested")
        self._work = self._collect(self._profile)
        self._advance()

    def tick(self) -> None:
        """Process the reports of ranks, and continue the profile in progress."""
        reports, self._recorder.profile_reports = self._recorder.profile_reports, []
        if (profile := self._profile) is None:
            return
        for rank, report in reports:
            if report.number == profile.number and rank in profile.pending_ranks:
                profile.reports[rank] = report, time.monotonic()
                if report.status == "failed":
                    profile.missing[rank] = report.text or "It could not record."
                elif report.status == "recording" or (report.status == "saving" and not profile.select("recording")):
                    self._record(profile, report.status)
        for rank in profile.pending_ranks:
            if self._recorder.view.ranks[rank].status in ("ended", "waiting"):
                profile.missing[rank] = "Its process ended before it had recorded the steps."
        self._advance()

    def finish(self) -> None:
        """Save the profile in progress after all ranks have ended."""
        deadline = time.monotonic() + _SAVE_SECONDS
        self.tick()
        while self._profile is not None and time.monotonic() < deadline:
            time.sleep(0.02)
            self._advance()
        if self._profile is not None:
            self._record(self._profile, "failed", "It was not saved in time.")

    def _advance(self) -> None:
        try:
            next(self._work)
        except StopIteration as end:
            assert self._profile is not None
            self._record(self._profile, "failed" if end.value else "done", end.value)
            self._profile = None

    def _collect(self, profile: _Profile) -> Generator[None, None, str]:
        """Record and save a profile. Return the reason if it failed, else "". Yields while it waits."""
        if problem := self._run.why_no_stacks() or ("" if profile.ranks else "None of these ranks is running."):
            return problem
        with contextlib.suppress(OSError):  # ``_save`` reports why it cannot be stored
            (self._recorder.folder.profiles / str(profile.number)).mkdir(mode=0o700, parents=True, exist_ok=True)
        request, start = {"number": profile.number, "steps": profile.steps}, time.monotonic()
        self._run.request_profile(profile.ranks, request)
        while profile.select("") and time.monotonic() - start < _ARM_SECONDS:
            yield
        profile.missing |= dict.fromkeys(profile.select(""), _NO_STEP_MESSAGE)
        if armed := profile.select("armed"):
            lead = _LEAD_SECONDS if self._recorder.spec.cluster == "local" else _SLOW_LEAD_SECONDS
            # The step that each rank will have reached when the request has certainly arrived.
            steps = [
                report.step + 2 + math.ceil((time.monotonic() - reported + lead) * 1e9 / max(report.pace, 1_000))
                for report, reported in map(profile.reports.__getitem__, armed)
            ]
            self._run.request_profile(armed, {**request, "start": max(steps)})
        start = time.monotonic()
        while pending := profile.pending_ranks:
            last_report = max([start, *(reported for _, reported in profile.reports.values())])
            if time.monotonic() - last_report > _SILENCE_SECONDS:
                profile.missing |= dict.fromkeys(pending, f"No response for {_SILENCE_SECONDS / 60:.0f} min.")
            yield
        if not (done_ranks := profile.select("done")):
            return profile.missing_text
        self._record(profile, "saving")
        failures: list[str] = []

        def save() -> None:
            try:
                self._save(profile, done_ranks)
            except Exception as error:  # noqa: BLE001  no error may end the job
                failures.append(f"The profile cannot be stored: {getattr(error, 'strerror', None) or error}.")

        thread = threading.Thread(target=save, name="profile", daemon=True)
        thread.start()
        while thread.is_alive():
            yield
        return "".join(failures) or ("" if profile.select("done") else profile.missing_text)

    def _save(self, profile: _Profile, ranks: Sequence[int]) -> None:
        """Fetch the files of the ranks, mask secrets in them, and save the profile."""
        folder, summaries = self._recorder.folder.profiles / str(profile.number), []
        for rank in ranks:
            summary_name, trace_name = f"rank-{rank}.json", f"rank-{rank}.json.gz"
            try:
                for name in (summary_name, trace_name):
                    self._run.fetch(rank, f"profiles/{folder.name}/{name}", profiles.MAX_TRACE_BYTES)
                    if (folder / name).stat().st_size > profiles.MAX_TRACE_BYTES:
                        raise ValueError(f"{name} is larger than {profiles.MAX_TRACE_BYTES // 1000000} MB.")  # noqa: TRY301
                summary = json.loads((folder / summary_name).read_text(encoding="utf-8"))
                profiles.parse_profile(0, {"t": 0.0, "ranks": [summary]}, folder)  # raises if it is invalid
                profiles.mask_names(folder / trace_name, self._recorder.redactor.mask_text)
                host = self._recorder.view.ranks[rank].host or summary.get("host") or ""
                summaries.append({**summary, "rank": rank, "host": host})
            except Exception as error:  # noqa: BLE001 - the other ranks' files are saved
                profile.missing[rank] = f"Its trace was not received: {error}"
        if summaries:
            missing = {str(rank): reason for rank, reason in profile.missing.items()}
            data = {"t": round(profile.t, 3), "steps": profile.steps, "ranks": summaries, "missing": missing}
            files.replace_file(folder / "profile.json", json.dumps(self._recorder.redactor.mask_data(data)))
            for rank in ranks:
                (folder / f"rank-{rank}.json").unlink(missing_ok=True)

    def _record(self, profile: _Profile, status: str, reason: str = "") -> None:
        recorded = min(
            (profile.reports[rank][0].step for rank in profile.select("recording", "saving", "done")), default=0
        )
        last = self._recorder.view.profiles[-1] if self._recorder.view.profiles else None
        if last is None or (last.number, last.status, last.recorded) != (profile.number, status, recorded):
            fields = {"number": profile.number, "status": status, "steps": profile.steps, "ranks": profile.ranks}
            self._recorder.write("profile", **fields, recorded=recorded, why=reason)
