"""What the ranks and machines of a job use, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core.state import State
from distdl_jupyter.server.base import Handler, answers, checked_id
from distdl_jupyter.views import resources
from distdl_jupyter.views.schema import Resources

if TYPE_CHECKING:
    from distdl_jupyter.jobs.readers import Reading


class JobResources(Handler):
    """What a job uses."""

    @answers(Resources, refuses=(404,))
    async def get(self, id_: str) -> Resources:
        """Return the newest resource usage of each rank and machine, current warnings, and curves."""
        async with self.app.sources.opened(checked_id(id_)) as live:
            found: Resources = await self.run_in_thread(live.use, _resources)
        return found


def _resources(reading: Reading) -> Resources:
    return resources.resources(reading.resources, running=reading.view.state is State.RUNNING)
