"""Asking a job's ranks where they stand, and waiting for their answer: what ``Job.stacks`` does.

It reads the job's folder and places one request in it; the supervisor asks the ranks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distdl_jupyter.core import stacks
from distdl_jupyter.core.errors import JobNotRunning
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.supervisor import control
from distdl_jupyter.views.stacks import StacksShown, displayable

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.core.view import JobView

#: Seconds between two looks whether the stacks are there.
_POLL = 0.05


def ask(folder: JobFolder, view: JobView) -> None:
    """Place the request. Raises JobNotRunning when no rank runs (any more, or yet)."""
    if why := _nobody(view):
        raise JobNotRunning(
            f"Job {folder.id} {why}, so it has no stack traces to capture.",
            code="stacks-not-running",
            hint=_kept_hint(view),
        )
    control.request(folder.control, "stacks")


def _nobody(view: JobView) -> str:
    """Return why no rank can be asked, the end of a sentence; "" when one can."""
    if view.state.ended:
        return f"has ended ({view.state.value})"
    if any(rank.is_running for rank in view.ranks):
        return ""
    if any(rank.status == "ended" for rank in view.ranks):
        return "is ending, and none of its ranks is running"
    return f"is {view.state.value}, and none of its ranks has started"


def _kept_hint(view: JobView) -> str:
    if not view.stacks:
        return "Capture stack traces while its ranks are running." if view.state.ended else ""
    return f"{plural(len(view.stacks), 'earlier one')} can be read with job.stacks(kept=True)"


def kept(folder: JobFolder, number: int | None = None) -> StacksShown:
    """Return stacks that are kept, the newest by default. Raises JobNotRunning when there are none."""
    found = stacks.read(folder, number)
    if found is None:
        numbers = stacks.numbers(folder)
        which = "has no stack traces" if number is None else f"has no stack traces {number}"
        hint = (
            f"Use one of: {', '.join(map(str, numbers))}." if numbers else "Capture them while its ranks are running."
        )
        raise JobNotRunning(f"Job {folder.id} {which}.", code="stacks-not-found", hint=hint)
    return displayable(found)


def take(folder: JobFolder, look: Callable[[], JobView], timeout: float) -> StacksShown:
    """Ask, wait and return the answer; of an ended job return what was kept last.

    Raises JobNotRunning when no rank runs and none are kept, or when all end meanwhile; TimeoutError.
    """
    view = look()
    if view.state.ended and stacks.numbers(folder):
        return kept(folder)
    before = max((one.number for one in view.stacks), default=0)
    ask(folder, view)
    until = time.monotonic() + timeout
    while True:
        view = look()
        new = [one.number for one in view.stacks if one.number > before]
        if new and (found := stacks.read(folder, new[0])) is not None:
            return displayable(found)
        if why := _nobody(view):
            raise JobNotRunning(
                f"Job {folder.id} {why}, so it has no stack traces to capture.",
                code="stacks-not-running",
                hint=_kept_hint(view),
            )
        if time.monotonic() > until:
            raise TimeoutError(
                f"The ranks of job {folder.id} did not respond within {timeout:g} s. The job keeps running."
            )
        time.sleep(_POLL)
