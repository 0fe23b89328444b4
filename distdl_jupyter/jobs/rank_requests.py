"""Sends requests to a job's ranks and waits for the responses, for ``Job.stacks`` and ``Job.profile``.

Each request is written into the job's folder; the supervisor handles it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from distdl_jupyter.core import profiles, stacks
from distdl_jupyter.core.errors import InvalidSpec, JobNotFound, JobNotRunning
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.humanize import ranks as format_ranks
from distdl_jupyter.supervisor import control
from distdl_jupyter.views.stacks import StacksDisplay
from distdl_jupyter.views.steps import ProfileDisplay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.core.view import JobView

T = TypeVar("T")

#: Seconds between two polls for a response.
_POLL_SECONDS = 0.05


def _wait_for_response(read_response: Callable[[], T | None], timeout: float, message: str) -> T:
    deadline = time.monotonic() + timeout
    while (response := read_response()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{message} within {timeout:g} s. The job keeps running.")
        time.sleep(_POLL_SECONDS)
    return response


def _make_not_saved_error(
    folder: JobFolder, noun: str, code: str, numbers: Sequence[int], number: int | None, hint: str
) -> JobNotFound:
    """Return the error for missing stacks or profiles; ``hint`` is used if the job has none at all."""
    missing = f"{noun}s" if number is None else f"{noun} {number}"
    hint = f"Use one of: {', '.join(map(str, numbers))}." if numbers else hint
    return JobNotFound(f"Job {folder.id} has no {missing}.", code=code, hint=hint)


# stacks -----------------------------------------------------------------------------------------


def request_stacks(folder: JobFolder, view: JobView) -> None:
    """Request stacks without waiting for them. Raises JobNotRunning if no rank is running."""
    _check_can_respond(folder, view)
    control.request(folder.control, "stacks")


def _check_can_respond(folder: JobFolder, view: JobView) -> None:
    if view.state.ended:
        reason = f"has ended ({view.state.value})"
    elif any(rank.is_running for rank in view.ranks):
        return
    elif any(rank.status == "ended" for rank in view.ranks):
        reason = "is ending and has no running ranks"
    else:
        reason = f"is {view.state.value}, and no rank has started"
    if view.stacks:
        hint = f"{plural(len(view.stacks), 'earlier stack dump')} can be read with job.stacks(recorded=True)."
    else:
        hint = "Capture stack traces while its ranks are running." if view.state.ended else ""
    text = f"Job {folder.id} {reason}, so no stack traces can be captured."
    raise JobNotRunning(text, code="stacks-not-running", hint=hint)


def load_stacks(folder: JobFolder, number: int | None = None) -> StacksDisplay:
    """Return saved stacks, by default the newest. Raises JobNotFound if there are none."""
    saved = stacks.read(folder, number)
    if saved is None:
        hint = "Capture them while its ranks are running."
        raise _make_not_saved_error(folder, "stack dump", "stacks-not-found", stacks.list_numbers(folder), number, hint)
    return StacksDisplay(**vars(saved))


def capture_stacks(folder: JobFolder, read_view: Callable[[], JobView], timeout: float) -> StacksDisplay:
    """Request stacks, wait for them and return them; for an ended job return the last saved ones.

    Raises JobNotRunning if no rank is running and none are saved, or if all end while waiting. Raises TimeoutError if
    there is no response within ``timeout`` seconds.
    """
    view = read_view()
    if view.state.ended and stacks.list_numbers(folder):
        return load_stacks(folder)
    last_number = max((dump.number for dump in view.stacks), default=0)
    request_stacks(folder, view)

    def read_response() -> stacks.StackSnapshot | None:
        view = read_view()
        number = next((dump.number for dump in view.stacks if dump.number > last_number), None)
        saved = None if number is None else stacks.read(folder, number)
        if saved is None:
            _check_can_respond(folder, view)
        return saved

    message = f"The ranks of job {folder.id} did not respond"
    return StacksDisplay(**vars(_wait_for_response(read_response, timeout, message)))


# profile ----------------------------------------------------------------------------------------


def request_profile(folder: JobFolder, view: JobView, steps: int, ranks: Sequence[int] | None) -> None:
    """Request a profile without waiting for it.

    Raises InvalidSpec for an invalid number of steps or an unknown rank, JobNotRunning if no rank can record or a
    profile is already in progress.
    """
    if type(steps) is not int or not 1 <= steps <= profiles.MAX_STEPS:
        raise InvalidSpec(
            f"steps must be an integer from 1 to {profiles.MAX_STEPS}, not {steps!r}.",
            code="profile-steps-invalid",
            field="steps",
        )
    if ranks is not None:
        size = view.process_count
        if isinstance(ranks, int) or not ranks or any(type(rank) is not int or not 0 <= rank < size for rank in ranks):
            raise InvalidSpec(
                f"ranks must be a list of ranks from 0 to {size - 1}, not {ranks!r}.",
                code="profile-ranks-invalid",
                field="ranks",
                hint="Use ranks=[0], for example, or leave it out to record all ranks.",
            )
        ranks = sorted(set(ranks))
    if reason := _why_not_recordable(view, ranks):
        hint = f"{plural(len(view.profiles), 'earlier profile')} can be read with job.profile(recorded=True)."
        raise JobNotRunning(
            f"Job {folder.id} {reason}", code="profile-not-possible", hint=hint if profiles.list_numbers(folder) else ""
        )
    control.request(folder.control, "profile", steps=steps, ranks=ranks)


def _why_not_recordable(view: JobView, ranks: Sequence[int] | None) -> str:
    """Return the end of the sentence that says why no step can be recorded, or "" if steps can be recorded."""
    if view.state.ended:
        return f"has ended ({view.state.value}), so it has no step to record."
    if view.compute_target == "azureml":
        return "runs on Azure ML, which cannot send requests to the ranks."
    running = {rank.rank for rank in view.ranks if rank.is_running}
    if not running or (ranks is not None and not running.intersection(ranks)):
        text = f"{format_ranks(list(ranks))} {'are' if ranks[1:] else 'is'} not" if ranks else "none of its ranks is"
        return f"is {view.state.value}, but {text} running."
    if any(not profile.ended for profile in view.profiles):
        return "is already recording a profile."
    return ""


def load_profile(folder: JobFolder, number: int | None = None) -> ProfileDisplay:
    """Return a saved profile, by default the newest. Raises JobNotFound if there is none."""
    saved = profiles.read(folder, number)
    if saved is None:
        hint = "Record one while the job is training."
        raise _make_not_saved_error(folder, "profile", "profile-not-found", profiles.list_numbers(folder), number, hint)
    return ProfileDisplay(**vars(saved))


def record_profile(
    folder: JobFolder, read_view: Callable[[], JobView], steps: int, ranks: Sequence[int] | None, timeout: float
) -> ProfileDisplay:
    """Request a profile, wait for it and return it; for an ended job return the last saved one.

    Raises the errors of ``request_profile``, JobNotRunning with the reason if no step could be recorded, and
    TimeoutError if there is no response within ``timeout`` seconds.
    """
    view = read_view()
    if view.state.ended and profiles.list_numbers(folder):
        return load_profile(folder)
    last_number = max((profile.number for profile in view.profiles), default=0)
    request_profile(folder, view, steps, ranks)

    def read_response() -> profiles.Profile | None:
        view = read_view()
        new = next((profile for profile in view.profiles if profile.number > last_number), None)
        if new is not None and new.ended:
            saved = profiles.read(folder, new.number) if new.status == "done" else None
            if saved is None:
                text = f"No profile of job {folder.id} was recorded. {new.why}".rstrip()
                raise JobNotRunning(text, code="profile-empty")
            return saved
        if view.state.ended:
            raise JobNotRunning(
                f"Job {folder.id} ended ({view.state.value}) before the steps were recorded.",
                code="profile-job-ended",
            )
        return None

    message = f"The steps of job {folder.id} were not recorded"
    return ProfileDisplay(**vars(_wait_for_response(read_response, timeout, message)))
