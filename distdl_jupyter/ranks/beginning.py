"""How one comes by a session of ranks: by starting one, or by finding one that lives.

What a session then is and does stands in ``session``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from distdl_jupyter import client, cluster_configs
from distdl_jupyter.core.aliases import ALIASES
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobNotFound, JobNotRunning
from distdl_jupyter.ranks import found, request
from distdl_jupyter.ranks.session import Ranks

if TYPE_CHECKING:
    from collections.abc import Mapping


def start(**options: Any) -> Ranks:
    """Start ranks that stay and return when every one answers. ``options`` are those of ``submit``.

    As in a job, a cell calls ``hvd.init()`` or ``init_process_group()`` once before the ranks can work together. Raises
    InvalidSpec, PluginUnavailable, and JobFailed when a rank ends before it answers.
    """
    _refuse_far(options)
    found.sweep()
    session = Ranks(client.launch(request.session(), **options))
    try:
        session.await_ranks()
    except KeyboardInterrupt:
        with contextlib.suppress(JobNotRunning):
            session.job.cancel(now=True)
        raise
    return session


def current(only: str = "") -> Ranks | None:
    """Return the newest session of this user that lives on this machine, also one that another kernel started.

    ``only`` is the id of the one to return. Raises JobNotFound when that is no session, JobNotRunning when it runs on
    another host.
    """
    if not only:
        sessions = (Ranks(client.Job(folder)) for folder in found.running())
        return next(filter(_answers, sessions), None)
    job = client.attach(only)
    if job.spec.kind != "ranks":
        raise JobNotFound(f"Job {job.id} is no session of ranks.", hint="ranks.start() starts one.")
    if (host := job.folder.supervisor().host) and not job.state.ended:
        raise JobNotRunning(f"The ranks of job {job.id} run on {host}.", hint=f"Log in to {host} to use them.")
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


def _refuse_far(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if ALIASES.get(name, name) == "compute_target" and cluster_configs.find(str(value or "local")).kind != "local":
            raise InvalidSpec(
                f"Ranks that stay run on this machine only, not on {value}.", field="compute_target",
                hint="Leave compute_target out, or run the cell there as a job with %%distributed.",
            )  # fmt: skip
