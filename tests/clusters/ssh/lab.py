"""A named cluster of real hosts, with the events of its job and the processes on each host."""

from pathlib import Path

from distdl_jupyter import submit
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core.store import JobStore
from tests.conftest import wait_for
from tests.faults.jobs import kill_supervisor
from tests.written import all_written


class Lab:
    """Hosts with a name. Processes of one host are invisible on the others, as on real ones."""

    def __init__(self, hosts, **options):
        self.hosts = hosts
        self.options = hosts.options(**options)
        cluster_configs.add("lab", "ssh", self.options)

    def submit(self, function, args=(), **options):
        given = {"node_count": 2, "process_count_per_node": 1, "distributed_backend": "horovod-gloo", **options}
        self.job = submit(function, args, compute_target="lab", **given)
        return self.job

    def events(self, *types):
        found = all_written(JobStore().find(self.job.id))
        return [event for event in found if not types or event["type"] in types]

    def until_state(self, *states, timeout=120):
        wait_for(lambda: self.job.state in states, timeout, f"the state {states}")

    def until_said(self, text, rank=0, timeout=120):
        def said():
            return any(text in event["text"] for event in self.events("log") if event["rank"] == rank)

        wait_for(said, timeout, f"{text!r} of rank {rank}")

    def of_job(self, name):
        """Return the pids on a host that carry the job's mark."""
        mark = f"DISTDL_JOB_ID={self.job.id}".encode()
        return [pid for pid in self.hosts.pids(name) if mark in environment(pid)]

    def agents(self, name):
        return self.hosts.running(name, "distdl_jupyter.node")

    def until_nothing_is_left(self, timeout=60):
        for name in self.hosts.names:
            wait_for(lambda name=name: not self.of_job(name) and not self.agents(name), timeout,
                     f"the end of everything on {name}")  # fmt: skip

    def kill_supervisor(self):
        """Kill it together with its watchdog."""
        kill_supervisor(self.job, watchdog=True)


def environment(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
