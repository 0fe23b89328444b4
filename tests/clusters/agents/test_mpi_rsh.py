"""Open MPI's remote shell over agents; no host is needed."""

from types import SimpleNamespace

from distdl_jupyter.clusters.agents.run import Relay


class Agent:
    """Takes requests for a host, and has started everything at once."""

    def __init__(self, host):
        self.host, self.asked = host, []

    def begin(self, kind, **fields):
        self.asked.append((kind, fields))
        return SimpleNamespace(add_done_callback=lambda _callback: None)

    def open_channel(self, hear):
        return hear


def test_what_runs_on_a_lost_host_ends_for_the_remote_shell_and_nothing_else():
    first, *others = agents = [Agent(name) for name in ("node-a", "node-b", "node-c")]
    relay = Relay({one.host: one for one in agents}, {one.host: {} for one in agents})
    for shell, one in enumerate(others):
        relay.on_request(first.host, {"shell": shell, "host": one.host, "command": "orted"})
        assert [kind for kind, _ in one.asked] == ["start"]
    relay.drop_host("node-b")
    assert first.asked == [("answer", {"shell": 0, "code": 255})]
    relay.report_exit(0, 0)  # it has ended already
    relay.report_exit(1, 3)
    assert first.asked[1:] == [("answer", {"shell": 1, "code": 3})]


def test_a_host_that_the_job_has_not_is_refused():
    first = Agent("node-a")
    Relay({"node-a": first}, {"node-a": {}}).on_request("node-a", {"shell": 7, "host": "node-x", "command": "orted"})
    ((kind, fields),) = first.asked
    assert (kind, fields["shell"], fields["code"]) == ("answer", 7, 255)
    assert "node-x" in fields["err"]
