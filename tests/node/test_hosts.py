"""Agents on hosts of their own: what they know, whether they meet, and what they do when they are cut off."""

import pytest

from tests.hosts import needs_hosts
from tests.node.driver import Driven, until
from tests.processes import is_alive

pytestmark = needs_hosts


@pytest.fixture
def on(hosts_of):
    """Start an agent on a host: ``on("node-a")``; ``on.hosts`` are the hosts."""
    made = []

    def start(name, **options):
        shell = ("ssh", "-F", str(start.hosts.ssh_config), "-T", "-o", "BatchMode=yes", name)
        made.append(Driven(shell=shell, **options))
        return made[-1].beat()

    start.hosts = hosts_of(2)
    yield start
    for one in made:
        one.close()


def test_a_host_that_is_cut_off_ends_its_ranks_by_itself(on, tmp_path):
    one = on("node-b", timeout=4)
    one.prepare(tmp_path)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: print('x' * 1000)"
    pid = one.start(one.python(deaf))["pids"]["0"]
    until(lambda: one.data.get(1))
    on.hosts.cut("node-b")
    until(lambda: not is_alive(pid), "the rank goes on though nobody knows it", 40)
    until(lambda: not on.hosts.running("node-b", "distdl_jupyter.node"), "the agent stays", 20)
    until(lambda: not one.folder.exists() and not one.run.exists())
    one.process.kill()


def test_a_connection_that_is_killed_ends_everything_at_once(on, tmp_path):
    one = on("node-a", timeout=600)
    one.prepare(tmp_path)
    pid = one.start(one.python("import time; time.sleep(600)"))["pids"]["0"]
    one.process.kill()
    until(lambda: not is_alive(pid), "the rank outlives the connection", 30)
    until(lambda: not on.hosts.running("node-a", "distdl_jupyter.node"))
    assert not one.run.exists()
