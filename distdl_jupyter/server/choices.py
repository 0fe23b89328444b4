"""What the options of a kind of cluster may be, over HTTP: for the form that adds a cluster."""

from __future__ import annotations

import asyncio

from distdl_jupyter.cluster_handles import provision
from distdl_jupyter.server.base import Handler, answers, executes
from distdl_jupyter.server.schema import ChoiceList, ChoicesQuestion


class Choices(Handler):
    """What the options of a kind of cluster may be."""

    @answers(ChoiceList, body=ChoicesQuestion, refuses=(409, 424))
    @executes
    async def post(self, body: ChoicesQuestion) -> ChoiceList:
        """List the known values of one option; this can take seconds."""
        # In a thread of its own, so that a silent cloud keeps no other request waiting.
        found = await asyncio.to_thread(provision.choices, body.kind, body.option, body.options)
        return ChoiceList(tuple(found))
