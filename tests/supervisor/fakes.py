"""Clusters of another package that behave badly: one is slow, one fails, and one never starts a job.

Their ranks are real processes of this machine. ``tests.plugin.install`` puts a copy of this file into a package of its
own, so it imports nothing of the tests.
"""

import dataclasses
import os
import signal
import time
from dataclasses import dataclass, field

from distdl_jupyter.clusters.base import Cluster, Exit, NodeCheck, NodeInfo, Run
from distdl_jupyter.clusters.local import LocalCluster
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.node import processes

POINTS = {"clusters": {"slow": "SlowCluster", "failing": "FailingCluster", "never": "NeverCluster"}}


def checked(modules):
    """Check modules as a cluster of other machines does."""
    rows = [NodeCheck("node-a", "Reachable", "ok", "answers")]
    for name in modules:
        try:
            __import__(name)
        except ImportError:
            rows.append(NodeCheck("node-a", name, "error", "is not installed", f"Run: pip install {name}"))
    return rows


# slow -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlowOptions:
    seconds: float = field(default=0.5, metadata={"help": "how long each step of a start takes"})


class SlowCluster(LocalCluster):
    """Each step of a start takes a while."""

    name = "slow"
    title = "Slow"
    Options = SlowOptions
    is_remote = True

    def list_nodes(self, options):
        time.sleep(options.seconds)
        return [NodeInfo("node-a")]

    def run_checks(self, options, *, modules=(), programs=()):
        time.sleep(options.seconds)
        return checked(modules)

    def place(self, spec, ports, options, context):
        for step in ("reaching 1 host", "copying 3 files", "looking for ports"):
            context.report("stage", step)
            time.sleep(options.seconds)
        return super().place(spec, ports, options, context)

    def start(self, spec, placement, plan, context):
        inner = super().start(spec, placement, plan, context)
        try:
            for rank in range(spec.process_count):
                context.report("start", f"rank {rank}")
                time.sleep(self.Options(**spec.cluster_options).seconds)
        except BaseException:
            inner.close()
            raise
        return inner


# failing --------------------------------------------------------------------------------------


FAILURES = ("", "start", "node", "sweep", "attach", "collect")


@dataclass(frozen=True)
class FailingOptions:
    fails: str = field(default="", metadata={"help": "what goes wrong", "choices": FAILURES})


class FailingCluster(LocalCluster):
    """Fails in the way that the option ``fails`` names."""

    name = "failing"
    title = "Failing"
    Options = FailingOptions
    is_remote = True

    @property
    def can_attach(self):
        return os.environ.get("FAKE_CAN_ATTACH") == "1"

    def list_nodes(self, options):
        return [NodeInfo("node-a"), NodeInfo("node-b", "down", "no route to host")]

    def run_checks(self, options, *, modules=(), programs=()):
        return checked(modules)

    def start(self, spec, placement, plan, context):
        fails = spec.cluster_options.get("fails", "")
        inner = super().start(spec, placement, plan, context)
        if fails == "start":
            inner.close()
            raise LaunchFailed("node-b could not start its ranks: no space left on device.", output="mkdir: no space")
        if fails == "node":
            inner.poll = NodeLoss(inner, spec).poll
        elif fails == "collect":
            inner.collect = self._lose_values
        return inner

    def _lose_values(self):
        raise LaunchFailed("The values of rank 1 could not be brought from node-b: the connection was lost.")

    def attach(self, spec, handle, context, read):
        if spec.cluster_options.get("fails") == "attach":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().attach(spec, handle, context, read)

    def sweep(self, job_id, handle):
        found = super().sweep(job_id, handle)
        fails = JobStore().find(job_id).read_spec().cluster_options.get("fails") if not found else ""
        if fails == "sweep":
            raise DistDLError("node-b does not answer.", hint="Look at it yourself: ssh node-b ps.")
        return found


class NodeLoss:
    """Loses node 1 after three seconds."""

    def __init__(self, run, spec):
        self._real, self._run, self._spec = run.poll, run, spec
        self._began = time.monotonic()
        self._lost = set()

    def poll(self):
        told = [exit_ for exit_ in self._real() if exit_.rank not in self._lost]
        if self._lost or time.monotonic() - self._began < 3:
            return told
        self._lost = set(range(self._spec.process_count_per_node, self._spec.process_count))
        pids = [start.pid for start in self._run.list_starts() if start.rank in self._lost]
        processes.send_signal(processes.find_descendants(pids, processes.read_table()), signal.SIGKILL)
        return told + [Exit(rank, None, None, "No response from node-1 for 10 s.") for rank in sorted(self._lost)]


# never ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NeverOptions:
    reason: str = field(default="waiting for free nodes (Resources)", metadata={"help": "why jobs wait"})


class NeverCluster(Cluster):
    """A queue that never starts a job; a file in the job's folder represents its position."""

    name = "never"
    title = "Never"
    Options = NeverOptions
    is_remote = True
    has_queue = True
    can_attach = True

    def unavailable(self, options):
        return ""

    def process_count_per_node(self, options, *, use_gpu):
        return 1

    def preview(self, spec, options):
        return LocalCluster().preview(spec, options)

    def run_checks(self, options, *, modules=(), programs=()):
        return checked(modules)

    def place(self, spec, ports, options, context):
        context.report("stage", "asking the queue")
        return dataclasses.replace(self.preview(spec, options), ports=tuple(range(30_001, 30_001 + ports)))

    def start(self, spec, placement, plan, context):
        place = context.folder.path / "queued"
        place.touch()
        return NeverRun(place, spec)

    def attach(self, spec, handle, context, read):
        place = context.folder.path / "queued"
        if not place.exists():
            raise LaunchFailed("The queue does not know the job any more.")
        return NeverRun(place, spec)

    def sweep(self, job_id, handle):
        place = JobStore().jobs / job_id / "queued"
        found = [place] if place.exists() else []
        place.unlink(missing_ok=True)
        return found


class NeverRun(Run):
    """A job in the queue."""

    streams = ()

    def __init__(self, place, spec):
        self._place, self._spec = place, spec
        self._why = NeverOptions(**spec.cluster_options).reason
        self._how = "TERM"
        self._told = False

    def list_starts(self):
        return []

    def why_waiting(self):
        return "" if self._told else self._why

    def poll(self):
        if self._place.exists() or self._told:
            return []
        self._told = True
        return [
            Exit(rank, None, self._how, "It was taken out of the queue.") for rank in range(self._spec.process_count)
        ]

    def list_alive(self):
        return []

    def signal(self, name):
        self._how = name
        self._place.unlink(missing_ok=True)

    def handle(self):
        return {"queue": 17}

    def close(self):
        return
