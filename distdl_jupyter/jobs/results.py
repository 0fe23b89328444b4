"""Results of a job: values, the failure as an exception, the metrics as a table, the files in its outputs.

Values are pickles that the job's ranks wrote into the user's private folder. They are unpickled in the user's process,
and only on request.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import pickle
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import events, tracking, user_settings
from distdl_jupyter.core.errors import DistDLError, JobFailed, ResultUnavailable
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import plural, ranks
from distdl_jupyter.core.logfile import read_last_lines
from distdl_jupyter.supervisor import control
from distdl_jupyter.worker import owned
from distdl_jupyter.worker.hooks import frameworks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd

    from distdl_jupyter.core.failure import Failure, RankView
    from distdl_jupyter.core.logfile import LogLine
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.core.view import JobView
    from distdl_jupyter.views.steps import StepTimesDisplay

#: Maximum bytes at the end of a log that are searched for a rank's last lines.
_MAX_TAIL_BYTES = 16 * 1024 * 1024
#: Seconds between two polls of a tracker.
_POLL_SECONDS = 0.2
#: Signals that stop the ranks of a job.
_STOP_SIGNALS = ("INT", "TERM", "KILL")
#: Maximum number of listed output files.
MAX_OUTPUT_FILES = 10_000


def load_value(folder: JobFolder, rank: RankView) -> Any:
    """Return the value of a rank, or None if it left none, for example after os.exec. Raises ResultUnavailable."""
    path = folder.get_result_path(rank.rank)
    try:
        with owned.open_own(path) as file:
            return pickle.load(file)
    except FileNotFoundError:
        if rank.ok is not True:
            return None
        message = rank.problem or f"The value of rank {rank.rank} no longer exists: {path} is missing."
        raise ResultUnavailable(
            message, code="result-missing", hint=f"Its text: {rank.result}" if rank.result else ""
        ) from None
    except PermissionError as error:
        raise ResultUnavailable(
            f"{error}.", code="result-of-other-user", hint="If you trust its author, read it with your own program."
        ) from None
    except Exception as error:
        raise ResultUnavailable(
            f"The value in {path.name} cannot be loaded here ({type(error).__name__}: {error}).",
            code="result-not-loadable",
            hint="Return plain data such as numbers, dicts or a state_dict, or import the missing module first.",
        ) from error


def make_job_failed(folder: JobFolder, view: JobView) -> JobFailed:
    """Return the exception of a job that did not succeed; the caller raises it."""
    failure = view.failure
    subject = f"Job {view.name} ({view.id})"
    if failure is None:
        reasons = {
            State.CANCELED: f"{subject} was canceled.",
            State.LOST: f"{subject} is lost. {view.reason}",
        }
        return JobFailed(
            reasons.get(view.state, f"{subject} failed: {view.reason}"), job_id=view.id, code=view.reason_code
        )
    rank = view.ranks[failure.rank]
    failed = JobFailed(
        _format_headline(failure, view.process_count),
        job_id=view.id,
        rank=failure.rank,
        **_find_exit(rank),
        error=failure.error,
        traceback=str((failure.error or {}).get("traceback", "")) or _find_last_output(folder, failure.rank),
        others=_describe_other_ranks(failure, view.process_count),
        code=failure.code,
        hint=str((failure.error or {}).get("hint", "")),
    )
    failed.__cause__ = _rebuild_exception(failure.error or {})
    return failed


def _rebuild_exception(error: dict[str, Any]) -> BaseException | None:
    """Return the rank's exception with its arguments, or None if its class is not loaded or cannot be instantiated.

    Only already imported classes are used, and only classes of this package run code.
    """
    exception_type: Any = sys.modules.get(str(error.get("module")))
    for name in str(error.get("name") or "-").split("."):
        exception_type = getattr(exception_type, name, None)
    if not isinstance(exception_type, type) or not issubclass(exception_type, BaseException):
        return None
    arguments = error["args"] if isinstance(error.get("args"), list) else [str(error.get("message", ""))]
    try:
        if issubclass(exception_type, DistDLError):
            return exception_type(str(error.get("message", "")), code=str(error.get("code", "")))
        exception = exception_type.__new__(exception_type, *arguments)
        if not isinstance(exception, OSError):  # OSError removes the file name from args
            exception.args = tuple(arguments)
        if isinstance(
            exception_type.__init__, WrapperDescriptorType
        ):  # only a C __init__ sets SystemExit.code or StopIteration.value
            exception_type.__init__(exception, *arguments)
    except Exception:  # noqa: BLE001  a foreign class
        return None
    return exception


def _format_headline(failure: Failure, process_count: int) -> str:
    if failure.kind == "unequal":
        return f"{failure.what}. {failure.evidence}"
    return f"Rank {failure.rank} of {process_count} failed first: {failure.what}{_locate(failure)}.{_explain(failure)}"


def _find_exit(rank: RankView) -> dict[str, Any]:
    """Return how the rank's process ended: ``exit_code``, ``signal``.

    A rank that has reported its error may exit slowly, because a library waits for the other ranks, and is then stopped
    with the job. That signal (with mpirun, an exit code) is not the cause of the failure, so the exit code that the
    rank would have had is returned.
    """
    error = rank.error or {}
    message = str(error.get("message", ""))
    is_exit = error.get("type") == "SystemExit" and message.isdecimal()
    was_stopped = bool(error) and rank.signal in _STOP_SIGNALS
    if was_stopped or (is_exit and rank.signal is None):
        return {"exit_code": int(message) if is_exit else 1, "signal": None}
    return {"exit_code": rank.code, "signal": rank.signal}


def _locate(failure: Failure) -> str:
    """Return ", in Cell [7], line 11": the deepest frame of a cell, else of the user's code.

    The text of a crash already contains the location.
    """
    if failure.kind == "signal":
        return ""
    frames = (failure.error or {}).get("frames") or []
    index = (failure.error or {}).get("values_at")
    if not isinstance(index, int) or not 0 <= index < len(frames):
        return ""
    return f", in {frames[index]['label']}, line {frames[index]['line']}"


def _explain(failure: Failure) -> str:
    if not failure.what.endswith("SIGKILL"):
        return f" {failure.evidence}" if failure.evidence else ""
    if failure.evidence:
        return f" It probably ran out of memory: {failure.evidence} Use smaller batches or fewer processes."
    return (
        " The sender is unknown. The kernel sends this signal when memory runs out, but there is no evidence of that."
    )


def _find_last_output(folder: JobFolder, rank: int, count: int = 10) -> str:
    """Return the last output of a rank that died without a report, or of the job itself if the rank had none."""
    lines, _ = read_last_lines(folder.log, 4 * count, rank, within=_MAX_TAIL_BYTES)
    if rank_lines := _select_texts(lines, rank, count):
        return "\n".join([f"Last lines of rank {rank}:", *rank_lines])
    lines, _ = read_last_lines(folder.log, 4 * count, within=_MAX_TAIL_BYTES)
    job_lines = _select_texts(lines, None, count)
    return "\n".join(["Last lines of the job:", *job_lines]) if job_lines else ""


def _select_texts(lines: Sequence[LogLine], rank: int | None, count: int) -> list[str]:
    texts = (line.text for line in lines if line.rank == rank and line.text.strip(" -"))
    return [text for text in texts if not text.startswith("Extension modules:")][-count:]  # faulthandler's long line


def _describe_other_ranks(failure: Failure, process_count: int) -> tuple[str, ...]:
    """Return sentences about the ranks that ended because of the first failure, grouped by how they ended."""
    if not failure.others:
        return ()
    by_ending: dict[str, list[dict[str, Any]]] = {}
    for other in failure.others:
        by_ending.setdefault(other["what"].split(":")[0], []).append(other)
    sentences = [
        f"{ranks(sorted(end['rank'] for end in group))}: {ending} after {min(end['after'] for end in group):.1f} s"
        for ending, group in by_ending.items()
    ]
    return (f"{plural(len(failure.others), 'rank')} of {process_count} ended because of it ({'; '.join(sentences)}).",)


#: Columns of a row besides its metrics: rank, step, time, attempt.
_INDEX_COLUMN_COUNT = 4


def read_metrics(folder: JobFolder) -> pd.DataFrame:
    """Return one row per report: ``rank``, ``step``, ``time`` (UTC), and one column per metric (NaN if not reported).

    In very long runs, reports that fall on the same point of a curve are merged into the last one
    (supervisor.recorder). Values parsed from the output are omitted if ranks have reported the same metric, and so
    are values that a rank replaced by logging the same step again.
    For a restarted job, there is also the column ``attempt``, from 0: steps that an attempt repeats appear twice.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    attempt = 0
    for batch, _ in events.read_batches(folder.events):
        for event in batch:
            attempt += event["type"] == "restart"
            if event["type"] == "metric":
                numbers = {name: float(v) for name, v in event["values"].items()}
                index = {"rank": event["rank"], "step": event["step"], "time": event["t"], "attempt": attempt}
                if event.get("replace"):
                    rows = _drop_metrics(rows, event["values"], rank=event["rank"], step=event["step"])
                rows.append({**index, **numbers})
            elif event["type"] == "metric_source" and not event["from_output"]:
                rows = _drop_metrics(rows, event["names"])
    frame = pd.DataFrame(rows, columns=None if rows else ["rank", "step", "time", "attempt"])
    if not attempt:
        frame = frame.drop(columns="attempt")
    frame["time"] = pd.to_datetime(frame["time"], unit="s", utc=True)
    return frame


def _drop_metrics(
    rows: list[dict[str, Any]], names: Iterable[str], *, rank: int | None = None, step: float = -math.inf
) -> list[dict[str, Any]]:
    """Return the rows without these metrics of one rank (or of all) at or after a step, and without empty rows."""
    names = set(names)
    remaining = []
    for row in rows:
        matches = rank in (None, row["rank"]) and row["step"] >= step
        reduced = {name: value for name, value in row.items() if name not in names} if matches else row
        if len(reduced) > _INDEX_COLUMN_COUNT:
            remaining.append(reduced)
    return remaining


def read_step_times(folder: JobFolder, view: JobView) -> StepTimesDisplay:
    """Return how the training steps of a job spent their time."""
    from distdl_jupyter.core import step_times as times
    from distdl_jupyter.views.steps import StepTimesDisplay

    measured = times.read(folder.steps, {rank.rank: rank.host or "" for rank in view.ranks}, ended=view.state.ended)
    if not measured.rows:
        measured.why = _explain_missing_steps(view)
    return StepTimesDisplay(measured.rows, measured.hosts, measured.why, measured.ended)


def _explain_missing_steps(view: JobView) -> str:
    if not any(rank.status in ("started", "ready", "ended") for rank in view.ranks):
        return "No step has been measured: no rank has started yet."
    end = f"a step ends with {frameworks.STEP_DESCRIPTION}"
    return f"No step has been measured: {end}, and {'none has' if view.state.ended else 'none has yet'}."


# trackers -------------------------------------------------------------------------------------


def track(
    folder: JobFolder, trackers: str | Sequence[str] = "", timeout: float | None = None
) -> list[tracking.TrackerRecord]:
    """Send a job to trackers and return their records, after at most ``timeout`` seconds.

    Raises InvalidSpec.
    """
    names = tracking.split_names(tracking.check_trackers(trackers, "trackers") or "")
    previous = {name: tracking.read_record(folder.path, name) for name in tracking.TITLES}
    deadline = None if timeout is None else time.monotonic() + timeout
    defaults = [
        *(record.tracker for record in tracking.read_records(folder.path)),
        *user_settings.get_trackers(folder.read_spec()),
    ]
    processes = control.start_trackers(folder, names or defaults, detached=True)
    while any(process.poll() is None for process in processes.values()):
        records = [tracking.read_record(folder.path, name) for name in processes]
        if all(record.done or (record.trouble and record != previous[record.tracker]) for record in records):
            break
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    return [record for record in tracking.read_records(folder.path) if not names or record.tracker in names]


# outputs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file below a job's outputs."""

    path: str
    size: int
    modified: float


def list_output_files(root: Path) -> list[OutputFile]:
    """Return the files below ``root`` in order of their paths; files and links that lead outside are omitted."""
    files = []
    paths = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    for path in itertools.islice(paths, MAX_OUTPUT_FILES):
        if (file := find_output_file(root, path)) is None:
            continue
        with contextlib.suppress(OSError):  # the file has been removed
            status = file.stat()
            # Bytes that are not UTF-8 cannot be part of an address, so they become question marks.
            display_path = path.relative_to(root).as_posix().encode("utf-8", "replace").decode()
            files.append(OutputFile(display_path, status.st_size, status.st_mtime))
    return sorted(files, key=lambda file: file.path)


def find_output_file(root: Path, path: str | Path) -> Path | None:
    """Return the regular file at a path below ``root``, or None if it is anything else or a link leads outside.

    After this check, only the user's processes can create a link there.
    """
    try:
        file = (root / path).resolve(strict=True)
        is_inside = file.is_relative_to(root.resolve(strict=True))
        return file if is_inside and stat.S_ISREG(file.stat().st_mode) else None
    except (OSError, RuntimeError, ValueError):
        return None
