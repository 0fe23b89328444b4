"""Open MPI's daemons on other hosts are started by the agents, without a second ssh connection."""

import json
import os
import selectors
import socket
import subprocess
import sys

from distdl_jupyter.node.mpi_shell import ShellRelays
from tests.node.driver import until

RELAY = (sys.executable, "-m", "distdl_jupyter.node.mpi_shell")


def start(agent, *command):
    launcher = {"kind": "launcher", "process": 0, "argv": [*RELAY, "node-b", *command]}
    return agent.start({**launcher, "environment": {}, "directory": None, "out": 1, "err": 2})


def asked(agent, count=1):
    return until(lambda: len(agent.of("shell")) >= count and agent.of("shell")[-1])


def test_the_relay_behaves_as_ssh_would(ready):
    start(ready, "prted --x 1;", "echo done")
    request = asked(ready)
    assert (request["host"], request["command"]) == ("node-b", "prted --x 1; echo done")
    ready.ask("answer", shell=request["shell"], out="said\n")
    ready.ask("answer", shell=request["shell"], err="ünlucky\n")
    until(lambda: ready.text(1) and ready.text(2))
    assert ready.exits() == {}
    ready.ask("answer", shell=request["shell"], code=3)
    assert ready.exit(0, kind="launcher")["code"] == 3
    assert (ready.text(1), ready.text(2)) == ("said\n", "ünlucky\n")
    assert "error" not in ready.ask("answer", shell=request["shell"], code=3), "who has gone hears nothing"


def test_without_an_agent_the_relay_ends_as_ssh_without_a_connection(tmp_path):
    environment = {**os.environ, "DISTDL_PIPES": str(tmp_path)}
    ended = subprocess.run([*RELAY, "node-b", "x"], env=environment, capture_output=True, text=True)
    assert ended.returncode == 255
    assert ended.stderr.count("\n") == 1
    assert "node-b" in ended.stderr


def test_a_slow_mpirun_gets_all_output_and_the_end(tmp_path):
    selector, said = selectors.DefaultSelector(), []
    shells = ShellRelays(selector, lambda type_, **fields: said.append((type_, fields)))
    shells.listen(tmp_path / "relay")

    def go_on():
        while ready := selector.select(0):
            for key, _ in ready:
                key.data()

    with socket.socket(socket.AF_UNIX) as mpirun:
        mpirun.connect(str(tmp_path / "relay"))
        mpirun.sendall(b'{"host": "b", "command": "orted"}\n')
        go_on()
        assert said == [("shell", {"shell": 0, "host": "b", "command": "orted"})]
        output = [f"{number} " * 100_000 for number in range(20)]
        for text in output:
            shells.answer(0, {"out": text})
        shells.answer(0, {"code": 3})
        mpirun.settimeout(0.01)
        content = b""
        while not content.endswith(b'{"code": 3}\n'):
            go_on()
            piece = mpirun.recv(65_536)
            assert piece, "the end came before all was told"
            content += piece
        go_on()
        assert mpirun.recv(1) == b""
    assert [json.loads(line) for line in content.splitlines()] == [*({"out": text} for text in output), {"code": 3}]
    for key in list(selector.get_map().values()):
        key.fileobj.close()
    selector.close()
