"""Scaling studies over HTTP. All of it is ``scaling_study``'s."""

from __future__ import annotations

from distdl_jupyter import scaling_study
from distdl_jupyter.server.base import Handler, answers, checked_id
from distdl_jupyter.views.schema import ScalingPanel


class ScalingById(Handler):
    """One scaling study."""

    @answers(ScalingPanel, refuses=(404,))
    async def get(self, id_: str) -> ScalingPanel:
        """Return what is measured up to now, what limits it, a forecast, and what an epoch costs if known."""
        return await self.run_in_thread(lambda: scaling_study.find(checked_id(id_)).panel)
