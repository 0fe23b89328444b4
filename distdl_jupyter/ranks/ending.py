"""How a session of ranks ended, or is ended when its ranks do not listen: one sentence, one exception."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError, JobFailed, JobNotRunning
from distdl_jupyter.core.humanize import ranks as ranks_in_words
from distdl_jupyter.core.state import State
from distdl_jupyter.jobs import results
from distdl_jupyter.ranks.found import stamps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from distdl_jupyter.jobs.client import Job

_TIMEOUT = 15.0
#: Seconds in which another supervisor takes the place of one that was killed.
_ATTACH_TIMEOUT = 60.0
_POLL = 0.02
_AGAIN = "Start new ones with %dist_ranks start, or ranks.start()."


def is_led_anew(job: Job, seen: Mapping[str, int], meanwhile: Callable[[], object] = bool) -> bool:
    """Wait until it is known what became of ranks that do not answer: whether another supervisor leads them now.

    ``seen`` are the notes' ``stamps`` from before; ``meanwhile`` is called until then.
    """
    attaches = registry.get("clusters", job.spec.cluster).can_attach
    until = time.monotonic() + (_ATTACH_TIMEOUT if attaches else _TIMEOUT)
    while (view := job.view()).failure is None and not view.state.ended and time.monotonic() < until:
        now = stamps(job.folder)
        if now.keys() == seen.keys() and not now.items() & seen.items():
            return True
        meanwhile()
        time.sleep(_POLL)
    return False


def led_anew() -> JobNotRunning:
    """Return the exception for what ran on ranks when their supervisor ended."""
    return JobNotRunning(
        "The supervisor of the ranks was replaced, so the result of this cell is unknown.",
        code="kept-ranks-supervisor-replaced",
        hint="The ranks keep running with all their variables. Check with %dist_ranks when they are idle.",
    )


def why_ended(job: Job) -> DistDLError:
    """Return the exception for a session of which a rank is gone, as soon as its reason is known."""
    until = time.monotonic() + _TIMEOUT
    while (view := job.view()).failure is None and not view.state.ended and time.monotonic() < until:
        time.sleep(_POLL)
    if view.failure is not None:
        error = results.job_failed(job.folder, view)
        error.hint = f"{error.hint} {_AGAIN}".strip()
        return error
    return JobNotRunning(reason(job), code="ranks-ended", hint=_AGAIN)


def reason(job: Job) -> str:
    """Return one sentence why the ranks are gone."""
    view = job.view()
    if view.failure is not None:
        return results.job_failed(job.folder, view).message
    words = {
        State.COMPLETED: "The ranks were stopped.",
        State.CANCELED: view.reason or "The ranks were cancelled.",
        State.LOST: f"The ranks are lost. {view.reason}",
        State.FAILED: view.reason,
    }
    return words.get(view.state, "The ranks are not responding.")


class Stuck:
    """Ranks that do not hear an interrupt."""

    def __init__(self, job: Job, ranks: Sequence[int]) -> None:
        self._job = job
        self._ranks = ranks

    def end(self) -> JobFailed:
        """Kill the whole session and return the exception that says so."""
        with contextlib.suppress(JobNotRunning):
            self._job.cancel(now=True)
        self._job.wait()
        who = ranks_in_words(list(self._ranks))
        return JobFailed(
            f"The ranks were stopped because {who} did not respond to an interrupt.",
            code="kept-ranks-not-interrupted",
            job_id=self._job.id,
            hint=_AGAIN,
        )
