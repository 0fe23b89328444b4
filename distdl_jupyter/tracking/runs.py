"""Writes each job to experiment trackers as one run.

``python -m distdl_jupyter.tracking.runs JOB_FOLDER TRACKER`` writes the events of a running job to one tracker, so that
an unavailable tracker cannot delay the job. It records its progress after each batch (``core.tracking``), so that
another process can continue the run. Standard input contains environment variables, such as a token, as JSON.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from distdl_jupyter.core import tracking, user_settings
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.events import Event, read
from distdl_jupyter.core.options import DEFAULTS, OPTIONS
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.redact import mask_text as masked
from distdl_jupyter.core.spec import JobEnvironment, JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.tracking import run_reporter
from distdl_jupyter.tracking.trackers import QUIET_VARIABLES, TRACKERS, MeanPoint, Tracker
from distdl_jupyter.worker.secret_patterns import MASK

#: Seconds between two polls.
_POLL_SECONDS = 1.0
#: Maximum number of seconds between two retries.
_MAX_PAUSE_SECONDS = 30.0
#: Seconds during which a failing tracker is retried after the job has ended or lost its supervisor.
RETRY_SECONDS = 600.0
#: Seconds, by the times of events, after which the mean of a step no longer waits for missing ranks.
_MAX_WAIT_SECONDS = 10.0
#: Maximum number of bytes of events per batch.
_BATCH_BYTES = 1_000_000
#: Options that are not parameters, because they are tags or may contain private data.
_NON_PARAMETERS = ("name", "environment_variables", "data", "outputs", "track", "notify_when", "requirements", "after")


class MeanAggregator:
    """Computes the mean of each metric over all ranks, step by step, from the events of a job."""

    def __init__(self, process_count: int) -> None:
        self._count = process_count
        #: The values by rank for each metric and step that lacks ranks, in the order of their first values.
        self._pending: dict[tuple[str, float], dict[int, MeanPoint]] = {}

    def apply(self, event: Event) -> list[MeanPoint]:
        """Return the means that an event completes, and the partial means of steps older than ``_MAX_WAIT_SECONDS``."""
        now, complete = float(event["t"]), []
        if event["type"] == "restart":
            return self.flush()
        if event["type"] == "world":
            self._count = int(event.get("process_count") or self._count)
        elif event["type"] == "metric":
            step = float(event["step"])
            for name, value in event["values"].items():
                points = self._pending.setdefault((name, step), {})
                points[int(event["rank"])] = MeanPoint(name, step, now, float(value))
                complete += [(name, step)] if len(points) >= self._count else []
        means = [self._pop_mean(key) for key in complete]
        while self._pending and now - next(iter(next(iter(self._pending.values())).values())).t > _MAX_WAIT_SECONDS:
            means.append(self._pop_mean(next(iter(self._pending))))
        return means

    def _pop_mean(self, key: tuple[str, float]) -> MeanPoint:
        points = self._pending.pop(key).values()
        return MeanPoint(*key, max(point.t for point in points), sum(point.value for point in points) / len(points))

    def flush(self) -> list[MeanPoint]:
        """Return the means of all incomplete steps."""
        return [self._pop_mean(key) for key in list(self._pending)]


def collect_parameters(spec: JobSpec) -> dict[str, str]:
    """Return the captured values of the code, the options that were set, and the arguments of the script."""
    captured = [item for item in spec.captured if item.kind == "value"]
    values = {item.name: item.detail.partition(" = ")[2] or item.detail for item in captured}
    names = ("node_count", "process_count_per_node", "distributed_backend", "compute_target")
    changed = [name for name in OPTIONS if name not in _NON_PARAMETERS and getattr(spec, name) != DEFAULTS[name]]
    options = {name: getattr(spec, name) for name in (*names, *changed)} | dict(spec.backend_options)
    values |= {f"distdl.{name}": str(value) for name, value in options.items()}
    return _mask({**values, "script_arguments": " ".join(spec.script_arguments)})


def collect_tags(spec: JobSpec, environment: JobEnvironment) -> dict[str, str]:
    """Return the tags of a run: job, cluster, backend, notebook, and the state of the code in git."""
    git = environment.git
    tags = {
        "distdl.job_id": spec.id,
        "distdl.job_name": spec.name,
        "distdl.cluster": spec.compute_target,
        "distdl.backend": spec.distributed_backend,
        "distdl.notebook": spec.source.notebook,
        "distdl.resumed_from": spec.resumed_from,
        "distdl.group": spec.group.id if spec.group else "",
        "git.commit": git.commit if git else "",
        "git.branch": git.branch if git else "",
        "git.repository": git.remote if git else "",
        "git.changed": str(bool(git.diff)).lower() if git else "",
    }
    return _mask(tags)


def _mask(values: Mapping[str, str]) -> dict[str, str]:
    return {name: MASK if is_secret(name, value) else masked(value) for name, value in values.items() if value}


class RunWriter:
    """Writes a job to one tracker."""

    def __init__(self, folder: JobFolder, tracker: Tracker, artifacts: str) -> None:
        self._record = tracking.read_record(folder.path, tracker.name)
        if tracker.needs_rewrite:
            self._record = replace(self._record, events=0)
        self._folder, self._tracker, self._artifacts = folder, tracker, artifacts
        self._spec = folder.read_spec()
        self._view = JobView.from_spec(self._spec)
        self._aggregator = MeanAggregator(self._spec.process_count)
        self._is_open = False
        #: The environment that was written as tags, or None before that.
        self._environment: JobEnvironment | None = None
        #: Points that are not written yet.
        self._points: list[MeanPoint] = []
        #: The position in the event log after the events of these points.
        self._position = 0
        while self._position < self._record.events and self._read(self._record.events - self._position):
            self._points.clear()

    def _read(self, limit: int = _BATCH_BYTES) -> bool:
        """Read the next events; return whether there were any."""
        events, position = read(self._folder.events, self._position, limit)
        for event in events:
            self._view.apply(event)
            self._points += self._aggregator.apply(event)
        is_new, self._position = position > self._position, position
        return is_new

    def follow(self) -> str:
        """Write the job until it is complete or retries have failed for ``RETRY_SECONDS``; return the outcome.

        Raises ImportError and DistDLError if a retry cannot help.
        """
        pause, ended_at = _POLL_SECONDS, None
        while self._folder.spec_file.exists():
            try:
                if self._write_new_events():
                    return "complete"
                self._update_record(trouble="")
                pause = _POLL_SECONDS
            except (ImportError, DistDLError):
                raise
            except Exception as error:  # noqa: BLE001 - its text may contain a secret
                if pause > _POLL_SECONDS or self._view.state.ended:  # a single failure is not reported
                    title = tracking.TITLES[self._record.tracker]
                    self._update_record(trouble=explain(title, self._tracker.location, error))
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            has_ended = self._view.state.ended or self._folder.read_supervisor().is_dead
            ended_at = (ended_at or time.monotonic()) if has_ended else None
            if ended_at and time.monotonic() - ended_at > RETRY_SECONDS:
                return self._record.trouble or "the supervisor of the job has ended"
            time.sleep(pause)
        return "the job's folder no longer exists"

    def _write_new_events(self) -> bool:
        """Write new events; return whether the whole job was written. Raises any error of the tracker."""
        if not self._is_open:
            run_id, experiment, url = self._tracker.open(self._record)
            self._is_open = True
            self._update_record(run=run_id, experiment=experiment, url=url, location=self._tracker.location, done=False)
        environment = self._folder.read_environment()
        if environment != self._environment:  # the versions and the git state may be recorded after the start
            self._tracker.describe(collect_parameters(self._spec), collect_tags(self._spec, environment))
            self._environment = environment
        while self._read() or self._points:
            self._write()
        if self._view.state.ended:
            self._points += self._aggregator.flush()
            self._write()
            self._tracker.upload(self._folder.outputs, self._list_outputs())
            self._tracker.close(self._view.state, self._view.ended)
            self._update_record(done=True, trouble="")
        return self._record.done

    def _write(self) -> None:
        if self._points:
            self._tracker.write(self._points)
            self._points = []
        self._update_record(events=self._position)

    def _list_outputs(self) -> list[Path]:
        if self._artifacts == "none":
            return []
        files = [path for path in self._folder.outputs.rglob("*") if path.is_file() and not path.is_symlink()]
        excluded = self._folder.checkpoints if self._artifacts == "outputs" else None
        return sorted(path for path in files if excluded is None or not path.is_relative_to(excluded))

    def close(self) -> None:
        """Leave the run open for another process if the job has not ended."""
        if self._is_open and not self._record.done:
            with contextlib.suppress(Exception):
                self._tracker.close(None)

    def _update_record(self, **changes: Any) -> None:
        """Change the record and write it. Raises OSError."""
        record = replace(self._record, **changes)
        if record != self._record:
            record.write(self._folder.path)
        self._record = record


def explain(title: str, location: str, error: BaseException) -> str:
    """Return why a tracker did not accept data. Only the status code is copied from the error's text."""
    text = f"{type(error.__cause__ or error).__name__} {error} {error.__cause__ or ''}"
    status = re.search(r"error code (\d{3})|\b(401|403|404|413|429|500|502|503)\b", text)
    code = next(filter(None, status.groups()), "") if status else ""
    if code in ("401", "403") or re.search(r"UNAUTHENTICATED|PERMISSION_DENIED", text):
        return f"{title} at {location} rejected the user name, password or token{f' ({code})' if code else ''}."
    if code:
        return f"{title} at {location} responded with {code}."
    if isinstance(error, OSError) or re.search(r"[Cc]onnection|[Tt]imed? ?out|Max retries|[Cc]ommError", text):
        return f"{title} at {location} cannot be reached."
    return f"{title} at {location} rejected the request ({type(error.__cause__ or error).__name__})."


def write(folder: JobFolder, name: str) -> str:
    """Write a job to a tracker and return the outcome."""
    # The record also shows that the job uses this tracker.
    record = replace(tracking.read_record(folder.path, name), trouble="")
    record.write(folder.path)
    try:
        settings = user_settings.SETTINGS.read()
        writer = RunWriter(folder, TRACKERS[name](folder.read_spec(), folder.path, settings), settings.artifacts)
        with contextlib.closing(writer):
            return writer.follow()
    except ImportError:
        text = f"{tracking.TITLES[name]} needs a package: pip install 'distdl-jupyter[{name}]'"
    except DistDLError as error:
        text = str(error)
    replace(tracking.read_record(folder.path, name), trouble=text).write(folder.path)
    return text


def main() -> None:
    """Write a job to a tracker, unless another process does."""
    folder, name = JobFolder(Path(sys.argv[1])), sys.argv[2]
    os.environ.update({**json.loads(sys.stdin.read()), **QUIET_VARIABLES})
    logging.disable(logging.CRITICAL)
    tracking.get_folder(folder.path).mkdir(exist_ok=True, mode=0o700)
    with (tracking.get_folder(folder.path) / f"{name}.lock").open("a") as lock, contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        run_reporter(name, lambda: write(folder, name))


if __name__ == "__main__":
    main()
