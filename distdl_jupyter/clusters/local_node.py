"""This machine as the node of a job. Its agent is part of the supervisor, so that ranks can be forked warm."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters.agents.agent import AgentConnection, AgentNode, HostFailed, JobNodes
from distdl_jupyter.clusters.base import Context, RunNotice
from distdl_jupyter.core.plan import RankSlot
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.node import data_cache, devices
from distdl_jupyter.node import job as node_job
from distdl_jupyter.node.channels import Channels, ChannelSource
from distdl_jupyter.node.files import Workdir
from distdl_jupyter.node.job import Job
from distdl_jupyter.node.ports import Ports
from distdl_jupyter.node.slots import QueueSlot
from distdl_jupyter.worker import installed

_READ_SIZE = 64 * 1024


class LocalChannels(Channels):
    """The channels of an agent in this process: pipes that the supervisor reads directly."""

    def __init__(self) -> None:
        self._sources: list[ChannelSource] = []
        #: The ends (read, write) of each channel's pipe; the write end is -1 after a process has received it.
        self._pipes: dict[int, list[int]] = {}

    def create_pipe(self) -> tuple[int, int]:
        """Create a channel; return its number and the read end."""
        number = len(self._pipes) + 1
        self._pipes[number] = list(os.pipe())
        return number, self._pipes[number][0]

    def open(self, channel: int) -> tuple[int, ChannelSource | None]:
        """Return the write end."""
        writer, self._pipes[channel][1] = self._pipes[channel][1], -1
        return writer, None

    def add(self, fd: int, channel: int) -> ChannelSource | None:
        """Read the channel's bytes from ``fd``, such as a named pipe."""
        reader, writer = self._pipes[channel]
        os.dup2(fd, reader, inheritable=False)
        os.close(fd)
        os.close(writer)
        self._pipes[channel][1] = -1
        return None

    def discard_all(self) -> None:
        """Discard unread bytes, so that no process blocks on a full pipe."""
        for reader, _writer in self._pipes.values():
            with contextlib.suppress(OSError):
                os.set_blocking(reader, False)
                while os.read(reader, _READ_SIZE):
                    pass

    def close(self) -> None:
        """Close the write ends that no process has received; readers close the read ends."""
        for _reader, writer in self._pipes.values():
            if writer >= 0:
                os.close(writer)
        self._pipes.clear()


class LocalJob(Job):
    """A job whose processes this process starts with complete environments."""

    # A process that is forked warm is found as a child of this process: its environment shows only the job's mark.
    def _build_environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {**variables, **devices.build_cuda_variables(variables), **self.marks}


class LocalAgent(AgentConnection):
    """An agent in this process, which answers requests immediately."""

    def __init__(self, job: JobSpec, folder: Path) -> None:
        super().__init__("")
        self._channels = LocalChannels()
        self.job = LocalJob(job.id, Workdir(folder, is_copy=False), self._channels, [], None, job.python)

    def begin(self, type_: str, /, **fields: Any) -> Future[dict[str, Any]]:
        """Handle a request and return a completed future of the answer, HostFailed or OSError."""
        answer: Future[dict[str, Any]] = Future()
        try:
            answer.set_result(self.job.handle(type_, fields))
        except node_job.StartFailed as error:
            failure = HostFailed("", str(error), code="process-not-started")
            answer.set_exception(error.__cause__ if isinstance(error.__cause__, OSError) else failure)
        except node_job.RequestFailed as error:
            answer.set_exception(HostFailed("", str(error), code="host-request-failed"))
        except OSError as error:
            answer.set_exception(error)
        return answer

    def open_stream(self) -> tuple[int, int]:
        """Open a channel; return its number and the read end of its pipe."""
        return self._channels.create_pipe()

    def poll(self) -> None:
        """Deliver the exits of processes, their stacks and a sample of their resource usage."""
        for end in self.job.collect_exits(outbox_is_full=False):
            self.on_event({"type": "exit", **end})
        if answers := self.job.take_stacks():
            self.on_event({"type": "stacks", "answers": answers})
        if (sample := self.job.sample()) is not None:
            self.on_event({"type": "resources", "samples": [sample]})

    def close(self) -> None:
        """End all processes and remove the private folder."""
        self.job.kill()
        self.job.clean_up(None)
        self._channels.close()


class LocalNodes(JobNodes):
    """This machine, which emulates all nodes of a job; ``staged`` has the data and Python of each node's ranks."""

    def __init__(
        self,
        spec: JobSpec,
        context: Context,
        ports: Ports,
        slot: QueueSlot | None,
        staged: Mapping[int, tuple[dict[str, str], str]],
    ) -> None:
        self._agent = agent = LocalAgent(spec, context.folder.path)
        folder, run = str(context.folder.path), str(agent.job.run.path)
        super().__init__([AgentNode(agent, folder, spec.working_directory, run)])
        self._context = context
        self._ports = ports
        self._slot = slot
        self._staged = staged
        for _variables, python in staged.values():  # all emulated nodes have the same packages
            self.nodes[0].python = python

    def get_node(self, slot: RankSlot) -> AgentNode:
        """Return this machine."""
        return self.nodes[0]

    def keep_slots(self) -> None:
        """Restore the job's entry in the machine's queue if it was deleted."""
        if self._slot is not None:
            self._slot.ensure_file()

    def get_environment(self, node: AgentNode) -> dict[str, str]:
        """Return the supervisor's environment, extended by the job's variables."""
        return {**self._context.inherited, **self._context.variables}

    def get_rank_variables(self, slot: RankSlot, variables: dict[str, str]) -> dict[str, str]:
        """Add the data of the rank's node; rank 0 records its imports."""
        recording = self._get_recording_variables("rank-0") if slot.rank == 0 else {}
        return {**variables, **(self._staged[slot.node][0] if self._staged else {}), **recording}

    def get_service_variables(self, number: int) -> dict[str, str]:
        """Make a service, which runs on the first node, record its imports."""
        return self._get_recording_variables(f"service-{number}")

    def _get_recording_variables(self, name: str) -> dict[str, str]:
        """Return the variables that make a process record its imports for the next warm start."""
        folder = installed.get_record_folder(self._context.folder.path)
        return {installed.RECORD_VARIABLE: str(folder / f"{name}.json")} if folder.is_dir() else {}

    def note_start(self, *, launcher: str = "") -> None:
        """Add a notice that the start was warm, or why some programs were started cold."""
        if node_job.fork is None:
            return
        reasons = [f"{launcher} starts them"] if launcher else list(dict.fromkeys(node_job.fork_failures))
        node_job.fork_failures.clear()
        notices = [RunNotice("info", f"This job starts cold because {reason}.", "cold-start") for reason in reasons]
        self.notices += notices or [RunNotice("info", node_job.WARM_NOTICE, "warm-start")]

    def handle(self) -> dict[str, Any]:
        """Return {}, because a sweep finds processes by the job's mark."""
        return {}

    def close(self) -> None:
        """End all processes, and release the ports and the job's resources."""
        self._agent.close()
        self._ports.release()
        if self._slot is not None:
            self._slot.release()
        if self._staged:
            data_cache.remove_links(self._context.folder.id)
