"""A Ray cluster of two nodes: network and UTS namespaces of one machine, with addresses of their own."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from distdl_jupyter.clusters import cluster_configs
from tests.hosts import Hosts, missing, run
from tests.processes import executable

RAY = Path(sys.executable).with_name("ray")


class RayNodes:
    """Ray on the first two hosts, four CPUs each. ``address`` is that of the head for clients."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.names = hosts.names[:2]
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # a socket has a short path
        # Ray believes the number that it is told; our look at a node asks this program.
        executable(self.folder / "bin" / "nvidia-smi", "echo 'GPU 0: T4 (UUID: GPU-a)'\necho 'GPU 1: T4 (UUID: GPU-b)'")
        head = hosts.address(self.names[0])
        self.address = f"ray://{head}:10001"
        self._start(self.names[0], "--head", "--port=6379", "--ray-client-server-port=10001",
                    f"--temp-dir={self.folder}", "--include-dashboard=false")  # fmt: skip
        self.join()

    def _start(self, name, *words):
        path = f"PATH={self.folder}/bin:/usr/local/bin:/usr/bin:/bin"
        # A node of Ray ends when its agent has not loaded itself in 15 s, which beside other tests it does only with a
        # right of way; its ranks have none.
        command = ["chrt", "--rr", "1", "env", path, "RAY_USAGE_STATS_ENABLED=0", "RAY_AUTH_MODE=disabled",
                   str(RAY), "start", *words, "--num-cpus=4", "--num-gpus=2",
                   f"--node-ip-address={self.hosts.address(name)}", "--object-store-memory=80000000"]  # fmt: skip
        done = self.hosts.ssh(name, *command, check=False)
        if done.returncode:
            raise RuntimeError(f"Ray does not start: {done.stdout}{done.stderr}")
        for pid in self.processes(name):
            run("chrt", "--all-tasks", "--other", "--pid", "0", str(pid), check=False)

    def join(self):
        """Start the second node, also again."""
        self._start(self.names[1], f"--address={self.hosts.address(self.names[0])}:6379")

    def processes(self, name):
        """Return the pids of Ray's own processes on a node."""
        return [pid for words in ("/ray/", "ray::") for pid in self.hosts.running(name, words)]

    def kill(self, name):
        """End Ray on a node, with all that its workers have started."""
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def down(self):
        for name in reversed(self.names):
            self.kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def ray_nodes():
    """Ray on hosts of its own: on those that other tests share, these would find its processes."""
    if missing():
        pytest.skip(missing())
    hosts = Hosts(2)
    try:
        nodes = RayNodes(hosts)
        yield nodes
        nodes.down()
    finally:
        hosts.down()


@pytest.fixture
def on_ray(ray_nodes, tmp_path, monkeypatch):
    """Name the cluster ``lab``, with Jupyter's configuration in a folder of the test."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "configuration"))
    cluster_configs.add("lab", "ray", {"address": ray_nodes.address})
    return ray_nodes
