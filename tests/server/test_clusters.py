"""Clusters over HTTP: those that are there by themselves, named ones of another package, nodes, scaling, jobs."""

import platform
import socket
import threading

from distdl_jupyter.clusters import cluster_configs
from tests import plugin
from tests.conftest import wait_for
from tests.server.running import serve

WAIT = "import time\ntime.sleep(600)"


# These jobs never meet, so they wait in the state "starting" for some time: nothing here depends on it.


def node(server, cluster, name):
    return next(one for one in server.get(f"/clusters/{cluster}")["nodes"] if one["name"] == name)


def test_this_machine_is_there_and_says_what_it_does(server):
    listed = server.get("/clusters")
    assert [one["name"] for one in listed] == ["local"]
    local = listed[0]
    assert (local["title"], local["named"], local["problem"]) == ("Local", False, "")
    assert (local["node_count"], local["active_jobs"]) == (1, 0)
    assert "core" in local["detail"]
    machine = socket.gethostname()
    assert node(server, "local", machine)["state"] == "idle"

    id_ = server.submit(WAIT, options={"name": "digits", "node_count": 2, "distributed_backend": "torch"})
    busy = wait_for(lambda: (found := node(server, "local", machine))["jobs"] and found, what="a busy machine")
    assert (busy["state"], busy["detail"], busy["jobs"]) == ("busy", "running digits", [id_])
    assert server.get("/clusters/local")["active_jobs"] == 1
    server.post(f"/jobs/{id_}/cancel", {"now": True}, status=202)
    server.until_ended(id_)
    idle = wait_for(lambda: (found := node(server, "local", machine))["state"] == "idle" and found)
    assert (idle["detail"].startswith("idle "), idle["jobs"]) == (True, [])


def test_a_built_in_or_unknown_cluster_is_not_removed(server):
    assert server.delete("/clusters/local", status=409)["message"] == "local is built in and cannot be removed."
    assert server.get("/clusters/nowhere", status=404)["type"] == "ClusterNotFound"
    assert server.delete("/clusters/nowhere", status=404)["type"] == "ClusterNotFound"
    assert server.delete("/clusters/%2e%2e%2fetc", status=404)["type"] == "ClusterNotFound"


def test_another_packages_cluster_is_named_runs_jobs_and_is_removed(server, rack):
    assert [one["name"] for one in server.get("/clusters")] == ["local"]
    made = server.post("/clusters", {"name": "mini", "kind": "rack", "options": {"machines": 3, "down": 1}})
    assert (made["name"], made["kind"], made["title"], made["named"]) == ("mini", "rack", "Rack", True)
    assert made["detail"] == "3 machines in a rack"
    assert [(one["name"], one["state"], one["detail"]) for one in made["nodes"]] == [
        ("node-0", "idle", ""),
        ("node-1", "idle", ""),
        ("node-2", "down", "no answer"),
    ]
    assert (made["nodes"][0]["gpus"], made["nodes"][0]["gpu_name"]) == (4, "A100")
    assert [one["name"] for one in server.get("/clusters")] == ["local", "mini"]
    assert server.post("/clusters", {"name": "mini", "kind": "rack"}, status=409)["type"] == "ClusterRefused"

    options = {"compute_target": "mini", "node_count": 2, "distributed_backend": "torch"}
    id_ = server.submit(WAIT, options={**options, "name": "digits"})
    wait_for(lambda: node(server, "mini", "node-1")["jobs"], what="a busy machine")
    mini = server.get("/clusters/mini")
    assert [(one["state"], one["jobs"]) for one in mini["nodes"]] == [("busy", [id_]), ("busy", [id_]), ("down", [])]
    assert mini["active_jobs"] == 1
    assert server.get("/clusters/local")["active_jobs"] == 0
    refused = server.delete("/clusters/mini", status=409)
    assert refused["message"] == "1 job of mini has not ended."
    assert refused["hint"] == "Cancel them, or wait until they end."
    server.post(f"/jobs/{id_}/cancel", {"now": True}, status=202)
    server.until_ended(id_)
    server.delete("/clusters/mini")
    assert [one["name"] for one in server.get("/clusters")] == ["local"]
    assert server.get(f"/jobs/{id_}")["card"]["compute_target"] == "mini"


def test_a_plug_in_that_fails_is_told_and_hides_no_other(server, tmp_path, monkeypatch):
    plugin.install(tmp_path, monkeypatch, plugin.CLUMSY, {"clusters": {"clumsy": "Clumsy"}})
    plugin.install(tmp_path, monkeypatch, plugin.BROKEN, {"clusters": {"broken": "Clumsy"}})
    try:
        listed = {one["name"]: one["problem"] for one in server.get("/clusters")}
        assert listed["local"] == ""
        assert listed["clumsy"] == "The plug-in failed: ZeroDivisionError: counted the machines"
        assert "cannot be loaded: ModuleNotFoundError: No module named 'a_module_that_is_nowhere'" in listed["broken"]
        offered = {one["name"]: one for one in server.get("/plugins")}
        assert offered["clumsy"]["problem"] == ""
        assert "cannot be loaded" in offered["broken"]["problem"]
        assert offered["broken"]["remedy"].endswith("Reinstall the package that provides it.")
    finally:
        plugin.forget()


def test_a_cluster_is_checked_anew_with_a_remedy_for_what_is_wrong(server, rack):
    server.post("/clusters", {"name": "mini", "kind": "rack", "options": {"machines": 2, "down": 1}})
    (row,) = server.post("/clusters/mini/check", None, 200)
    assert (row["node"], row["what"], row["level"], row["message"]) == (
        "",
        "Reachable",
        "error",
        "node-1 cannot be used.",
    )
    assert row["remedy"]
    whole = server.post("/clusters/local/check", None, 200)
    assert [one["level"] for one in whole] == ["ok"]
    assert server.post("/clusters/nowhere/check", None, status=404)["type"] == "ClusterNotFound"


def test_a_silent_cluster_keeps_no_request_waiting_and_is_asked_by_one_thread_only(root, rack, monkeypatch):
    monkeypatch.setattr(cluster_configs, "FIRST_SECONDS", 0.1)
    with serve(root, traits={"cluster_seconds": 3.0}) as server:
        server.post("/clusters", {"name": "slow", "kind": "rack", "options": {"machines": 2, "silent_seconds": 6.0}})
        first = server.get("/clusters/slow")
        assert (first["checked"], first["problem"], first["nodes"]) == (False, "", [])
        for _ in range(12):
            listed = {one["name"]: one for one in server.get("/clusters")}
            assert listed["local"]["nodes"], "the others are there"
        looks = [thread for thread in threading.enumerate() if thread.name == "distdl-probe"]
        assert len(looks) <= 2, looks
        wait_for(lambda: server.get("/clusters/slow")["problem"] == "No response for 3 s.", what="its silence")


MOODY = (
    plugin.RACK
    + """
    from pathlib import Path

    @dataclass(frozen=True)
    class MoodyOptions:
        flag: str = ""

    class MoodyCluster(RackCluster):
        Options = MoodyOptions

        def detail(self, options):
            return ""

        def list_nodes(self, options):
            until = time.monotonic() + 60
            while Path(options.flag).exists() and time.monotonic() < until:
                time.sleep(0.05)
            return [NodeInfo("node-0"), NodeInfo("node-1")]
"""
)


def test_a_cluster_that_falls_silent_keeps_its_last_known_nodes(root, rack, tmp_path, monkeypatch):
    plugin.install(tmp_path, monkeypatch, MOODY, {"clusters": {"moody": "MoodyCluster"}})
    with serve(root, traits={"cluster_seconds": 0.5}) as server:
        flag = tmp_path / "silent"
        server.post("/clusters", {"name": "lab", "kind": "moody", "options": {"flag": str(flag)}})
        assert [one["state"] for one in server.get("/clusters/lab")["nodes"]] == ["idle", "idle"]
        flag.touch()
        later = wait_for(lambda: (now := server.get("/clusters/lab"))["problem"] and now, what="the silence")
        assert later["problem"] == "No response for 0.5 s."
        assert [(one["name"], one["state"]) for one in later["nodes"]] == [("node-0", "unknown"), ("node-1", "unknown")]
        flag.unlink()
        wait_for(lambda: not server.get("/clusters/lab")["problem"], what="the end of the silence")


def test_nodes_tell_what_machines_they_are(server):
    (here,) = server.get("/clusters/local")["nodes"]
    assert here["python"] == platform.python_version()
    assert here["cores"] > 0
    assert here["load"] >= 0
    assert here["ranks"] is None
    listed = server.get("/clusters")[0]
    assert (listed["is_remote"], listed["checked"]) == (False, True)


def test_the_form_of_a_new_cluster_knows_what_to_ask_first_and_what_to_offer(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu1 gpu2\n  User me\nHost *\n  Port 22\n")
    kinds = {one["name"]: one for one in server.get("/plugins")}
    hosts = kinds["ssh"]["options"]["properties"]["hosts"]
    assert (hosts["x-first"], hosts["examples"]) == (True, ["gpu1", "gpu2"])
    refused = server.post("/clusters", {"name": "lab", "kind": "ssh", "options": {}}, status=400)
    assert (refused["field"], refused["message"]) == ("hosts", "The cluster has no hosts.")
