"""Asking a running job to record some steps, and waiting for the profile: what ``Job.profile`` does.

It reads the job's folder and places one request in it; the supervisor does the rest (``supervisor.profiler``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distdl_jupyter.core import profiles
from distdl_jupyter.core.errors import InvalidSpec, JobNotRunning
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.humanize import ranks as ranks_in_words
from distdl_jupyter.supervisor import control
from distdl_jupyter.views.profile import ProfileShown, displayable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.core.view import JobView, ProfileView

#: Seconds between two looks whether the profile is there.
_POLL = 0.05


def ask(folder: JobFolder, view: JobView, steps: int, ranks: Sequence[int] | None) -> None:
    """Place the request.

    Raises InvalidSpec for a number of steps or a rank that cannot be, JobNotRunning when there is nobody to record or a
    profile is being recorded.
    """
    if type(steps) is not int or not 1 <= steps <= profiles.MOST_STEPS:
        raise InvalidSpec(
            f"steps must be an integer from 1 to {profiles.MOST_STEPS}, not {steps!r}.",
            code="profile-steps-invalid",
            field="steps",
        )
    if ranks is not None:
        ranks = sorted(set(_checked(ranks, view.process_count)))
    if why := _cannot(view, ranks):
        hint = f"{plural(len(view.profiles), 'earlier profile')} can be read with job.profile(kept=True)"
        raise JobNotRunning(
            f"Job {folder.id} {why}", code="profile-not-possible", hint=hint if profiles.numbers(folder) else ""
        )
    control.request(folder.control, "profile", steps=steps, ranks=ranks)


def _checked(ranks: Sequence[int], size: int) -> Sequence[int]:
    if isinstance(ranks, int):
        raise InvalidSpec(
            f"ranks must be a list, not {ranks}.",
            code="profile-ranks-not-a-list",
            field="ranks",
            hint=f"Example: [{ranks}].",
        )
    if not ranks:
        raise InvalidSpec("ranks must name at least one rank.", code="profile-ranks-empty", field="ranks")
    for rank in ranks:
        if type(rank) is not int or not 0 <= rank < size:
            raise InvalidSpec(
                f"Unknown rank {rank!r}. The ranks of the job are 0 to {size - 1}.",
                code="profile-rank-unknown",
                field="ranks",
            )
    return ranks


def _cannot(view: JobView, ranks: Sequence[int] | None = None) -> str:
    """Return why nothing can be recorded, the end of a sentence; "" when it can."""
    if view.state.ended:
        return f"has ended ({view.state.value}), so it has no step to record."
    if view.compute_target == "azureml":
        return "runs on Azure ML, which cannot send requests to the ranks."
    running = {rank.rank for rank in view.ranks if rank.is_running}
    if not running or (ranks is not None and not running.intersection(ranks)):
        which = ranks_in_words(list(ranks)) if ranks is not None else "none of its ranks"
        return f"is {view.state.value} and {which} {'does not run' if ranks is not None else 'runs'}."
    if any(not one.ended for one in view.profiles):
        return "is already recording a profile."
    return ""


def kept(folder: JobFolder, number: int | None = None) -> ProfileShown:
    """Return a profile that is kept, the newest by default. Raises JobNotRunning when there is none."""
    found = profiles.read(folder, number)
    if found is None:
        numbers = profiles.numbers(folder)
        which = "has no profile" if number is None else f"has no profile {number}"
        hint = f"Use one of: {', '.join(map(str, numbers))}." if numbers else "Record one while it trains."
        raise JobNotRunning(f"Job {folder.id} {which}.", code="profile-not-found", hint=hint)
    return displayable(found)


def take(
    folder: JobFolder, look: Callable[[], JobView], steps: int, ranks: Sequence[int] | None, timeout: float
) -> ProfileShown:
    """Ask, wait and return the profile; of an ended job return what was kept last.

    Raises what ``ask`` does, JobNotRunning with the reason when nothing could be recorded, TimeoutError.
    """
    view = look()
    if view.state.ended and profiles.numbers(folder):
        return kept(folder)
    before = max((one.number for one in view.profiles), default=0)
    ask(folder, view, steps, ranks)
    until = time.monotonic() + timeout
    while True:
        view = look()
        new = next((one for one in view.profiles if one.number > before), None)
        if new is not None and new.ended:
            return _result(folder, new)
        if view.state.ended:
            raise JobNotRunning(
                f"Job {folder.id} has ended ({view.state.value}) before the steps were recorded.",
                code="profile-job-ended",
            )
        if time.monotonic() > until:
            raise TimeoutError(
                f"The steps of job {folder.id} were not recorded within {timeout:g} s. The job keeps running."
            )
        time.sleep(_POLL)


def _result(folder: JobFolder, view: ProfileView) -> ProfileShown:
    found = profiles.read(folder, view.number) if view.status == "done" else None
    if found is None:
        raise JobNotRunning(f"No profile of job {folder.id} was recorded. {view.why}".rstrip(), code="profile-empty")
    return displayable(found)
