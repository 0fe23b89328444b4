"""Machines over HTTP: what they would cost, making and ending them, and what the options of a cluster may be.

What asks a cloud takes seconds and runs in threads of its own, so that a silent one keeps no other request waiting.
"""

from __future__ import annotations

import asyncio

from distdl_jupyter import cluster_handles
from distdl_jupyter.cluster_handles import provision
from distdl_jupyter.clusters.machines import Machines
from distdl_jupyter.server.base import Handler, answers, executes
from distdl_jupyter.server.clusters import shown
from distdl_jupyter.server.schema import ChoiceList, ChoicesQuestion, Cluster, NewMachines


class Choices(Handler):
    """What the options of a kind of cluster may be."""

    @answers(ChoiceList, body=ChoicesQuestion, refuses=(409, 424))
    @executes
    async def post(self, body: ChoicesQuestion) -> ChoiceList:
        """List the known values of one option; this can take seconds."""
        found = await asyncio.to_thread(provision.choices, body.kind, body.option, body.options)
        return ChoiceList(tuple(found))


class MachinesOfCluster(Handler):
    """The machines of a cluster whose kind can make them."""

    @answers(Cluster, status=202, body=NewMachines, refuses=(404, 409, 424))
    async def post(self, name: str, body: NewMachines) -> Cluster:
        """Create the machines; the response is sent when the request was accepted."""
        target = await self.run_in_thread(cluster_handles.find, name)
        await asyncio.to_thread(provision.create, target, body.wanted)
        return (await shown(self.app, [target]))[0]

    @answers(Cluster, status=202, refuses=(404, 409, 424))
    async def delete(self, name: str) -> Cluster:
        """Delete the machines, on which no job may be running; the cluster keeps its name."""
        target = await self.run_in_thread(cluster_handles.find, name)
        active = [job for job in await self.run_in_thread(self.app.listing.all) if job.active]
        mine = [job for job in active if job.row.compute_target == name]
        await asyncio.to_thread(provision.delete, target, mine)
        return (await shown(self.app, [target]))[0]


class Forecast(Handler):
    """Machines that are not made yet."""

    @answers(Machines, body=NewMachines, refuses=(404, 409, 424))
    @executes
    async def post(self, name: str, body: NewMachines) -> Machines:
        """Return which machines would be created, and their price."""
        target = await self.run_in_thread(cluster_handles.find, name)
        return await asyncio.to_thread(provision.forecast, target, body.wanted)
