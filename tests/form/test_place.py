"""The chosen cluster of other machines in the launch form: its nodes, its checks, and what is not asked of this one."""

import json
import time

import pytest

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.clusters.cluster_configs import StatusCache
from distdl_jupyter.form import choices
from tests import plugin
from tests.conftest import wait_for
from tests.form.page import Page, asked

FAR = (
    plugin.RACK
    + """
    from distdl_jupyter.clusters.base import NodeCheck
    from distdl_jupyter.core.errors import InvalidSpec

    @dataclass(frozen=True)
    class FarOptions(RackOptions):
        count: str = ""

    class FarCluster(RackCluster):
        Options = FarOptions
        name = "far"
        title = "Far"
        is_remote = True

        def run_checks(self, options, *, modules=(), programs=()):
            time.sleep(options.silent_seconds)
            if options.count:
                with open(options.count, "a") as out:
                    out.write("x")
            found = [NodeCheck("node-0", "Reachable", "ok", "over net0")]
            if options.down:
                last = f"node-{options.machines - 1}"
                found.append(NodeCheck(last, "Reachable", "error", "no answer", "Look at it."))
            return [*found, *(NodeCheck("node-0", name, "warning", "is old", "pip install it") for name in modules)]

        def preview(self, spec, options):
            if spec.node_count > options.machines:
                raise InvalidSpec(f"{spec.node_count} nodes are asked for, but there are {options.machines}.",
                                  field="node_count", hint="Take fewer nodes or add machines.")
            return super().preview(spec, options)
"""
)


@pytest.fixture(autouse=True)
def far(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    plugin.install(tmp_path, monkeypatch, FAR, {"clusters": {"far": "FarCluster"}})
    yield
    plugin.forget()


def train():
    return None


def settled(form):
    wait_for(lambda: form.look() or not form.cluster_status["pending"], what="the look at the cluster")
    return form.cluster_status


def test_other_machines_are_shown_with_what_is_wrong(monkeypatch):
    cluster_configs.add("lab", "far", {"machines": 3, "down": 1})
    monkeypatch.setattr("distdl_jupyter.backends.horovod.find_spec", lambda name: None)
    form = Page(train, distributed_backend="horovod-gloo", compute_target="lab")
    place = settled(form)
    assert [(one["name"], one["state"]) for one in place["status"]["nodes"]] == [
        ("node-0", "up"), ("node-1", "up"), ("node-2", "down"),
    ]  # fmt: skip
    first = place["checks"][0]
    assert (first["node"], first["what"], first["level"]) == ("node-2", "Reachable", "error")
    assert "horovod" in {one["what"] for one in place["checks"]}, "the backend's modules are looked for there"
    assert form.checks["level"] != "error", "the backend that is missing here may be there"
    json.dumps(place)
    # One process per GPU means those of the nodes.
    form.automatic = True
    assert form.process_count_per_node == 4
    form.compute_target = "local"
    assert form.cluster_status is None
    assert form.checks["level"] == "error"


def test_more_nodes_than_there_are_is_said_beside_their_number():
    cluster_configs.add("lab", "far", {"machines": 2})
    form = Page(train, distributed_backend="torch", compute_target="lab", node_count=3)
    assert form.problems["node_count"] == "3 nodes are asked for, but there are 2. Take fewer nodes or add machines."
    form.node_count = 2
    assert "node_count" not in form.problems


def test_a_silent_cluster_keeps_the_form_waiting_once_and_then_not_at_all():
    cluster_configs.add("lab", "far", {"silent_seconds": 60.0})
    form = Page(train, distributed_backend="torch")
    begun = time.monotonic()
    form.compute_target = "lab"
    for count in (2, 3, 4):
        form.node_count = count
    assert time.monotonic() - begun < 50
    assert (form.cluster_status["pending"], form.cluster_status["status"]) == (True, None)


def test_check_again_looks_anew(tmp_path):
    cluster_configs.add("lab", "far", {})
    form = Page(train, distributed_backend="torch", compute_target="lab")
    settled(form)
    form.refresh()
    assert form.cluster_status["pending"] or form.cluster_status["checks"] is not None
    assert settled(form)["checks"] is not None
    told = asked("1 + 1", values={"compute_target": "lab"}, refresh=True)
    assert len(told["cluster_status"]["status"]["nodes"]) == 2


def test_checks_are_kept_until_new_ones_are_requested(tmp_path):
    count = tmp_path / "count"
    cluster_configs.add("lab", "far", {"count": str(count)})
    target, needs, cache = cluster_configs.find("lab"), {"modules": (), "programs": ()}, StatusCache()

    def checked():
        return not cache.get_cached(target, needs, timeout=60).pending

    wait_for(checked, what="the first check")
    assert count.read_text() == "x"
    cache.get_cached(target, needs, fresh=True)
    wait_for(checked, what="the second check")
    assert count.read_text() == "xx", "what is known is recent enough for some time"


def test_a_kind_that_needs_options_is_no_choice_and_a_named_one_says_that_it_is_far():
    assert [one.name for one in choices.list_clusters()] == ["local"]
    cluster_configs.add("lab", "far", {})
    local, lab = choices.list_clusters()
    assert (local.is_remote, lab.is_remote, lab.name) == (False, True, "lab")
