"""Open MPI's daemons on other hosts are started through the agents, with no second ssh."""

import os
import subprocess
import sys

import pytest

from tests.node.driver import until

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
