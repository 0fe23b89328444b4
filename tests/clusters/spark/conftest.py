"""Spark clusters of two hosts: network and UTS namespaces of one machine, with addresses of their own.

``spark_hosts`` is a standalone master with a worker on each host, ``connect_server`` a Spark Connect server on it.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest

from distdl_jupyter.clusters import cluster_configs
from tests.conftest import wait_for
from tests.hosts import Hosts, missing
from tests.processes import executable

#: Java starts faster with these, and has little to do.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
#: Settings of the jobs of these tests.
CONF = {
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.driver.memory": "1g",
}
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
PORT, CONNECT_PORT = 7077, 15002
CORES, GPUS = 4, 2


def _home():
    import pyspark

    return Path(pyspark.__file__).parent


class SparkHosts:
    """A master on the first host, and on each a worker with four cores and two GPUs."""

    def __init__(self, hosts):
        self.hosts = hosts
        self.names = hosts.names[:2]
        self.folder = Path(tempfile.mkdtemp(prefix="spark-"))
        script = executable(
            self.folder / "gpus.sh", "echo '" + json.dumps({"name": "gpu", "addresses": ["0", "1"]}) + "'"
        )
        # Spark believes its own script; our look at a node asks this program.
        executable(self.folder / "bin" / "nvidia-smi", "echo 'GPU 0: T4 (UUID: GPU-a)'\necho 'GPU 1: T4 (UUID: GPU-b)'")
        self._settings = self.folder / "worker.conf"
        self._settings.write_text(
            f"spark.worker.resource.gpu.amount {GPUS}\nspark.worker.resource.gpu.discoveryScript {script}\n"
            "spark.worker.timeout 10\n"
        )
        first = hosts.address(self.names[0])
        self.address = f"spark://{first}:{PORT}"
        self._start(self.names[0], MASTER, "--host", first, "--port", PORT, "--webui-port", 8080)
        self.await_port(first, PORT)
        for name in self.names:
            self.join(name)

    @property
    def options(self):
        """The options of a cluster of these hosts."""
        return {"master": self.address, "conf": json.dumps(CONF)}

    def _start(self, name, program, *words, memory="256m"):
        home = _home()
        command = [
            "setsid", "env", f"PATH={self.folder}/bin:/usr/local/bin:/usr/bin:/bin", f"SPARK_HOME={home}",
            f"SPARK_DAEMON_JAVA_OPTS='{JAVA}'", f"SPARK_DAEMON_MEMORY={memory}", f"SPARK_LOCAL_DIRS={self.folder}",
            f"SPARK_LOCAL_IP={self.hosts.address(name)}", f"PYSPARK_PYTHON={sys.executable}",
            str(home / "bin" / "spark-class"), program, "--properties-file", str(self._settings), *map(str, words),
            f">>{self.folder}/{name}.log", "2>&1", "</dev/null", "&",
        ]  # fmt: skip
        self.hosts.ssh(name, *command)

    def join(self, name):
        """Start a worker, also again."""
        address = self.hosts.address(name)
        self._start(name, WORKER, "--host", address, "--port", 7078, "--webui-port", 8081, "--cores", CORES,
                    "--memory", "4g", "--work-dir", f"{self.folder}/work-{name}", self.address)  # fmt: skip
        self.await_port(address, 7078)

    def await_port(self, address, port, timeout=60):
        until = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
                return
            said = "\n".join(log.read_text()[-2000:] for log in self.folder.glob("*.log"))
            assert time.monotonic() < until, f"Spark does not start: {said}"
            time.sleep(0.1)

    def start_connect(self, **settings):
        """Start a Spark Connect server on the first host and return its address."""
        first = self.hosts.address(self.names[0])
        told = {"spark.connect.grpc.binding.port": CONNECT_PORT, "spark.driver.host": first,
                "spark.ui.enabled": "false",
                "spark.connect.grpc.binding.address": first, "spark.executor.cores": 2, "spark.cores.max": 4,
                "spark.pyspark.python": sys.executable, **CONF, **settings}  # fmt: skip
        words = [word for name, value in told.items() for word in ("--conf", f"'{name}={value}'")]
        self._start(self.names[0], "org.apache.spark.deploy.SparkSubmit", "--class", SERVER, "--master", self.address,
                    *words, "spark-internal", memory="1g")  # fmt: skip
        self.await_port(first, CONNECT_PORT)
        return f"sc://{first}:{CONNECT_PORT}"

    def kill(self, name, words="org.apache.spark"):
        """End Spark on a host, with all that its executors have started."""
        for pid in self.hosts.running(name, words):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def executors(self, name):
        """Return the pids of executors on a host."""
        return self.hosts.running(name, "CoarseGrainedExecutorBackend")

    def agents(self):
        """Return the pids of agents on all hosts."""
        return [pid for name in self.names for pid in self.hosts.running(name, "distdl_jupyter.node")]

    def down(self):
        for name in reversed(self.names):
            self.kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def spark_hosts():
    """Spark on hosts of its own."""
    if missing():
        pytest.skip(missing())
    hosts = Hosts(2)
    try:
        nodes = SparkHosts(hosts)
        yield nodes
        nodes.down()
    finally:
        hosts.down()


@pytest.fixture(scope="module")
def connect_server(spark_hosts):
    """The address of a Spark Connect server with an executor on each host; other jobs lack the cores of these."""
    yield spark_hosts.start_connect()
    spark_hosts.kill(spark_hosts.names[0], SERVER)
    wait_for(lambda: not any(map(spark_hosts.executors, spark_hosts.names)), 30, "the end of its executors")


@pytest.fixture
def on_spark(spark_hosts, tmp_path, monkeypatch):
    """Name the cluster ``lab``, with Jupyter's configuration in a folder of the test."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "configuration"))
    cluster_configs.add("lab", "spark", spark_hosts.options)
    return spark_hosts
