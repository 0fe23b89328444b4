"""Where the ranks of a job stand, over HTTP: ask them, and read what they said. All of it is ``client``'s.

Asking does not wait: the job's card tells in the stream when the stacks are there, and under which number.
"""

from __future__ import annotations

from distdl_jupyter.core import stacks as kept
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.server.base import Handler, answers
from distdl_jupyter.server.jobs import attached
from distdl_jupyter.server.schema import StacksQuery
from distdl_jupyter.views import stacks
from distdl_jupyter.views.schema import Stacks


class JobStacks(Handler):
    """The stacks of one job."""

    @answers(Stacks, query=StacksQuery, refuses=(404,))
    async def get(self, id_: str, query: StacksQuery) -> Stacks:
        """Return saved stack traces, by default the newest."""
        return await self.run_in_thread(_read, id_, query.number)

    @answers(status=202, refuses=(404, 409))
    async def post(self, id_: str) -> None:
        """Capture the stack traces of all ranks."""
        await self.run_in_thread(lambda: attached(id_).ask_stacks())


def _read(id_: str, number: int | None) -> Stacks:
    taken = kept.read(attached(id_).folder, number)
    if taken is None:
        which = "no stacks" if number is None else f"no stacks with the number {number}"
        raise JobNotFound(
            f"Job {id_} has {which}.", code="stacks-unknown", hint="Capture them while the ranks are running."
        )
    return stacks.stacks(taken)
