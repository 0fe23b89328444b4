"""How one comes by a session of ranks: by starting one, or by finding one that lives.

What a session then is and does stands in ``session``.
"""

from __future__ import annotations

import contextlib
from typing import Any

from distdl_jupyter.core.errors import DistDLError, JobNotFound, JobNotRunning, explain
from distdl_jupyter.jobs import client
from distdl_jupyter.ranks import found, request
from distdl_jupyter.ranks.session import OnWait, Ranks


def start(*, on_wait: OnWait | None = None, **options: Any) -> Ranks:
    """Start ranks that stay and return when every one answers. ``options`` are those of ``submit``.

    ``on_wait`` is called with what is waited for now and then: "waiting for free nodes (Resources)".

    On other machines (``compute_target``) they end after 2 h without a cell, unless ``idle_timeout_seconds`` says
    otherwise.

    As in a job, a cell calls ``hvd.init()`` or ``init_process_group()`` once before the ranks can work together. Raises
    InvalidSpec, PluginUnavailable, and JobFailed when a rank ends before it answers.
    """
    session = Ranks(client.launch(request.session(), **options))
    try:
        session.await_ranks(on_wait)
    except KeyboardInterrupt as interrupt:
        with contextlib.suppress(JobNotRunning):
            session.job.cancel(now=True)
        explain(interrupt, "Interrupted before the ranks were ready; they were stopped.")
        raise
    return session


def current(only: str = "") -> Ranks | None:
    """Return the newest session of this user that was started on this machine, also one of another kernel.

    ``only`` is the id of the one to return. Raises JobNotFound when that is no session, JobNotRunning when it was
    started on another host.
    """
    if not only:
        sessions = (Ranks(client.Job(folder)) for folder in found.running())
        return next(filter(_answers, sessions), None)
    job = client.attach(only)
    if job.spec.kind != "ranks":
        raise JobNotFound(
            f"Job {job.id} is not a session of ranks.",
            code="job-has-no-kept-ranks",
            hint="Start one with ranks.start().",
        )
    if (host := job.folder.supervisor().host) and not job.state.ended:
        raise JobNotRunning(
            f"The ranks of job {job.id} were started on {host}.",
            code="kept-ranks-elsewhere",
            hint=f"Log in to {host} to use them.",
        )
    session = Ranks(job)
    return session if _answers(session) else None


def _answers(session: Ranks) -> bool:
    """Say whether the ranks have not ended; those that are just starting are waited for."""
    try:
        if not session.is_over:
            session.await_ranks()
            return True
    except DistDLError:  # they ended meanwhile
        return False
    return False
