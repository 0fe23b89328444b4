"""Recorded steps of a job over HTTP: ask for a profile, read one, download a trace. All of it is ``client``'s.

Asking does not wait: the job's card tells in the stream how far the profile is, and under which number it is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from distdl_jupyter.core import profiles
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.server import outputs
from distdl_jupyter.server.base import Handler, answers
from distdl_jupyter.server.jobs import attached
from distdl_jupyter.server.schema import AskProfile, ProfileQuery, TraceQuery
from distdl_jupyter.views.profile import job_profile
from distdl_jupyter.views.schema import JobProfile

if TYPE_CHECKING:
    from distdl_jupyter.core.profiles import Profile


class JobProfiles(Handler):
    """The profiles of one job."""

    @answers(JobProfile, query=ProfileQuery, refuses=(404,))
    async def get(self, id_: str, query: ProfileQuery) -> JobProfile:
        """Return a saved profile, by default the newest: the slowest operators, and shares of a step."""
        return await self.run_in_thread(lambda: job_profile(_read(id_, query.number)))

    @answers(status=202, body=AskProfile, refuses=(400, 404, 409, 507))
    async def post(self, id_: str, body: AskProfile) -> None:
        """Record the next steps of ranks."""
        await self.run_in_thread(lambda: attached(id_).ask_profile(body.steps, body.ranks))


class ProfileTrace(Handler):
    """The traces of one profile."""

    @answers(media="application/octet-stream", query=TraceQuery, refuses=(404,))
    async def get(self, id_: str, number: str, query: TraceQuery) -> None:
        """Download the Chrome trace of one rank, gzipped JSON that https://ui.perfetto.dev opens."""
        file = await self.run_in_thread(_opened, id_, number, query.rank)
        await outputs.send(self, file, f"{id_}-profile-{number}-rank-{query.rank}.json.gz")


def _read(id_: str, number: int | None) -> Profile:
    found = profiles.read(attached(id_).folder, number)
    if found is None:
        which = "no profile" if number is None else f"no profile with the number {number}"
        raise JobNotFound(
            f"Job {id_} has {which}.", code="profile-unknown", hint="Record a profile while the job trains."
        )
    return found


def _opened(id_: str, number: str, rank: int) -> BinaryIO:
    found = _read(id_, int(number)) if number.isascii() and number.isdecimal() and len(number) < 6 else None
    if found is None or rank not in found.traces:
        raise JobNotFound(
            f"Job {id_} has no such trace.", code="trace-unknown", hint="The job's card lists its profiles by number."
        )
    return found.traces[rank].open("rb")
