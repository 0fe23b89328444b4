"""``python -m distdl_jupyter.monitoring.tracking JOB_FOLDER TRACKER``: follow one job and write its run in one tracker.

It runs beside the supervisor, reads what that writes, and touches nothing of the job but ``tracking/``. So a tracker
that is down, slow or refuses the token holds up nothing: the events are what it has yet to get, and where it has come
stands in ``core.tracking.TrackerRecord`` after each batch. Whoever is started next, also long after the job's end,
goes on there with the same run. One process holds the lock of a tracker; a second one ends at once.

Standard input holds one JSON line with variables of the job that are the tracker's business, such as its token.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from distdl_jupyter.core import environment, tracking
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.events import read
from distdl_jupyter.core.resources import About, ResourceReader
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.monitoring import settings
from distdl_jupyter.monitoring.points import RESOURCES_EVERY, PointFold, parameters, resource_points, tags
from distdl_jupyter.monitoring.trackers import KINDS, SILENCE, CannotTrack, TrackedJob, Tracker, Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.core.environment import JobEnvironment
    from distdl_jupyter.core.events import Event
    from distdl_jupyter.core.resources import ResourceSample
    from distdl_jupyter.monitoring.points import Point

#: Seconds between two looks at the job, and before a tracker that failed is tried again, at first and at most.
_EVERY, _FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 1.0, 30.0
#: Seconds for which a tracker that fails is tried after the job's end; later ``distdl track`` does it.
PATIENCE = 600.0
#: Seconds without a supervisor after which nobody is waited for.
_ALONE = 60.0
#: Bytes of events that are read at once.
_AT_ONCE = 1_000_000


class Follower:
    """Brings one tracker up to date with a job. ``step`` does what there is to do and says whether all is done."""

    def __init__(self, folder: JobFolder, tracker: Tracker, which: str, kept: str) -> None:
        self.record = tracking.read(folder.path, tracker.name)
        if tracker.begins_anew:
            self.record = dataclasses.replace(self.record, events=0, samples=0.0, settled=0.0)
        self._folder, self._tracker, self._kept = folder, tracker, kept
        self._spec = folder.spec()
        self._view = JobView.of(self._spec)
        self._fold = PointFold(self._spec.process_count, which)  # type: ignore[arg-type]  # checked by the settings
        self._resources = ResourceReader(folder.resources)
        self._samples: list[ResourceSample] = []
        self._is_open = False
        self._described: JobEnvironment | None = None
        #: Points that were folded and not written yet: with the position behind them, and of steps that were settled.
        self._pending: tuple[list[Point], int] | None = None
        self._settled: tuple[list[Point], float] = [], 0.0
        self._replay()

    def _replay(self) -> None:
        """Fold what the tracker has already."""
        at = 0
        while at < self.record.events:
            found, after = read(self._folder.events, at, self.record.events - at)
            if after == at:
                break
            for event in found:
                self._take(event)
            at = after
        if self.record.settled:
            self._fold.settle(self.record.settled)

    def _take(self, event: Event) -> list[Point]:
        self._view.apply(event)
        return self._fold.apply(event)

    def step(self) -> bool:
        """Write what is new; return whether the job has ended and all of it is written. Raises Trouble, OSError."""
        if not self._is_open:
            run, experiment, page = self._tracker.open(self.record)
            self._is_open = True
            self._keep(run=run, experiment=experiment, place=self._tracker.place, url=page, done=False)
        self._describe()
        for points, position in self._batches():
            if points:
                self._tracker.write(points)
            self._keep(events=position)
        self._write_resources()
        ended = self._view.state.ended
        moment = time.time()
        self._settled = self._fold.rest() if ended else self._fold.settle(moment), moment
        self._write_settled()
        if ended:
            self._finish()
        return ended

    def _write_settled(self) -> None:
        points, moment = self._settled
        if points:
            self._tracker.write(points)
            self._settled = [], 0.0
            self._keep(settled=moment)

    def _batches(self) -> Iterator[tuple[list[Point], int]]:
        """Yield points and the position behind them. One that was not written is yielded once more at the next step."""
        self._write_settled()
        while True:
            if self._pending is None:
                found, after = read(self._folder.events, self.record.events, _AT_ONCE)
                if after == self.record.events:
                    return
                self._pending = [point for event in found for point in self._take(event)], after
            yield self._pending
            self._pending = None

    def _write_resources(self) -> None:
        self._samples += self._resources.all()
        last: dict[int, float] = {}
        points: list[Point] = []
        newest = self.record.samples
        for sample in self._samples:
            if sample.t <= self.record.samples or sample.t - last.get(sample.node, 0.0) < RESOURCES_EVERY:
                continue
            last[sample.node] = sample.t
            about = self._resources.about.get(sample.node, About())
            begun = self._view.placed or self._spec.created
            points += resource_points(sample, about, begun, nodes=self._spec.node_count)
            newest = max(newest, sample.t)
        if points:
            self._tracker.write(points)
            self._keep(samples=newest)
        self._samples = [one for one in self._samples if one.t > newest - RESOURCES_EVERY]

    def _describe(self) -> None:
        """Write parameters and tags, once more when the state of the code and the versions are known."""
        known = environment.read(self._folder)
        if known != self._described:
            self._tracker.describe(parameters(self._spec), tags(self._spec, known))
            self._described = known

    def _finish(self) -> None:
        self._tracker.keep(self._folder.outputs, self._outputs())
        self._tracker.close(self._view.state, self._view.ended)
        self._keep(done=True, trouble="")

    def _outputs(self) -> list[Path]:
        if self._kept == "none":
            return []
        files = (Path(at, name) for at, _, names in os.walk(self._folder.outputs) for name in names)
        whole = [file for file in files if file.is_file() and not file.is_symlink()]
        if self._kept == "outputs":
            whole = [file for file in whole if not file.is_relative_to(self._folder.checkpoints)]
        return sorted(whole)

    def leave(self) -> None:
        """Leave a run whose job has not ended to who goes on with it."""
        if self._is_open:
            self._tracker.close(None)

    def _keep(self, **changes: object) -> None:
        self.record = dataclasses.replace(self.record, **changes)  # type: ignore[arg-type]
        self.record.write(self._folder.path)

    def trouble(self, sentence: str) -> None:
        """Keep why it does not go on, "" when it does."""
        if sentence != self.record.trouble:
            self._keep(trouble=sentence)

    @property
    def is_alone(self) -> bool:
        """Whether the job has no supervisor that could write anything more."""
        return self._folder.supervisor().is_dead

    @property
    def has_ended(self) -> bool:
        """Whether the job's end was read."""
        return self._view.state.ended


def follow(follower: Follower, folder: JobFolder) -> str:
    """Bring a tracker up to date until the job has ended and all is written, or nobody waits for it; say how it went.

    Raises CannotTrack, and OSError when the job's folder is gone.
    """
    pause, failing, alone = _FIRST_PAUSE, 0.0, 0.0
    while folder.spec_file.exists():
        try:
            if follower.step():
                return "complete"
        except CannotTrack:
            raise
        except Trouble as trouble:
            now = time.monotonic()
            failing = failing or now
            if pause > _FIRST_PAUSE or follower.has_ended:  # once is no trouble
                follower.trouble(str(trouble))
            if now - failing > PATIENCE and (follower.has_ended or follower.is_alone):
                return str(trouble)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            continue
        follower.trouble("")
        pause, failing = _FIRST_PAUSE, 0.0
        alone = (alone or time.monotonic()) if follower.is_alone else 0.0
        if alone and time.monotonic() - alone > _ALONE:
            follower.leave()
            return "the supervisor of the job has ended"
        time.sleep(_EVERY)
    return "the job's folder is gone"


def main() -> None:
    """Follow a job until its end."""
    folder, name = JobFolder(Path(sys.argv[1])), sys.argv[2]
    os.environ.update(json.loads(sys.stdin.readline() or "{}"))
    os.environ.update(SILENCE)
    log = _alone_with_the_log()
    lock = folder.path / tracking.FOLDER / f"{name}.lock"
    try:
        lock.parent.mkdir(exist_ok=True, mode=0o700)
        with lock.open("a") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another process is at it
            said = _run(folder, name)
    except OSError as error:
        said = f"not written, {type(error).__name__}"
    log.write(f"{name}: {said}\n")
    log.flush()
    os._exit(0)  # threads of libraries are not waited for


def _run(folder: JobFolder, name: str) -> str:
    follower = None
    try:
        # A record from the start says that the job has this tracker; what kept an earlier process is of the past.
        dataclasses.replace(tracking.read(folder.path, name), trouble="").write(folder.path)
        known, spec = settings.read(), folder.spec()
        job = TrackedJob(folder.path, spec.id, spec.name, spec.created, spec.group.name if spec.group else "")
        follower = Follower(folder, KINDS[name](job, known), known.metrics, known.artifacts)
        return follow(follower, folder)
    except (Trouble, DistDLError) as error:
        record = follower.record if follower is not None else tracking.read(folder.path, name)
        with contextlib.suppress(OSError):
            dataclasses.replace(record, trouble=str(error)).write(folder.path)
        return str(error)
    except Exception as error:  # noqa: BLE001 - the text of another's error may hold what is secret
        return f"not written, {type(error).__name__}"


def _alone_with_the_log() -> TextIO:
    """Return the job's supervisor.log, and let libraries, whose messages may quote an address, write nowhere."""
    logging.disable(logging.CRITICAL)
    log = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    return log


if __name__ == "__main__":
    main()
