"""Machines over HTTP: choices, forecast, making, scaling, ending; by a kind of cluster of another package."""

import pytest

from tests import plugin

WAIT = "import time\ntime.sleep(600)"


@pytest.fixture
def forge(tmp_path, monkeypatch):
    plugin.install(tmp_path, monkeypatch, plugin.FORGE, {"clusters": {"forge": "ForgeCluster"}})
    yield
    plugin.forget()


@pytest.fixture
def lab(server, forge):
    return server.post("/clusters", {"name": "lab", "kind": "forge", "options": {"place": "north"}})


def test_a_kind_that_makes_machines_declares_what_is_wanted_and_asked(server, forge):
    kinds = {one["name"]: one for one in server.get("/plugins")["clusters"]}
    assert kinds["local"]["wanted"] is None
    wanted = kinds["forge"]["wanted"]
    assert wanted["required"] == ["size"]
    assert wanted["properties"]["size"]["x-asked"]
    assert wanted["properties"]["max_nodes"]["default"] == 2
    assert kinds["forge"]["options"]["properties"]["place"]["x-asked"]


def test_machines_are_made_scaled_and_ended(server, lab):
    assert (lab["can_create"], lab["can_scale"], lab["machines"]["exists"]) == (True, False, False)
    assert (lab["problem"], lab["billed"]) == ("The machines have not been created yet.", 0)
    forecast = server.post("/clusters/lab/forecast", {"wanted": {"size": "small", "max_nodes": 4}}, status=200)
    assert (forecast["cost_per_hour"], forecast["currency"], forecast["price_source"]) == (0.5, "USD", "the smith")
    assert not server.get("/clusters/lab")["machines"]["exists"]
    made = server.post("/clusters/lab/machines", {"wanted": {"size": "small", "max_nodes": 4}}, status=202)
    assert (made["machines"]["exists"], made["machines"]["max_nodes"], made["problem"]) == (True, 4, "")
    scaled = server.patch("/clusters/lab", {"node_count": 3, "min_nodes": 2})
    assert (scaled["machines"]["min_nodes"], scaled["machines"]["max_nodes"]) == (2, 3)
    assert (scaled["billed"], scaled["cost_per_hour"], scaled["currency"]) == (2, 1.0, "USD")
    assert [one["billed"] for one in scaled["nodes"]] == [True, True]
    assert server.patch("/clusters/lab", {"min_nodes": 0})["machines"]["max_nodes"] == 3
    ended = server.delete("/clusters/lab/machines", status=202)
    assert (ended["machines"]["exists"], ended["billed"], ended["cost_per_hour"]) == (False, 0, None)
    assert server.get("/clusters/lab")["named"]


def test_what_is_refused_names_its_field(server, lab):
    for body, field in (({"size": "huge"}, "size"), ({}, "size"), ({"size": "small", "colour": 1}, "colour")):
        assert server.post("/clusters/lab/machines", {"wanted": body}, status=400)["field"] == field
    assert server.post("/clusters/lab/machines", {}, status=400)["field"] == "wanted"
    assert server.post("/clusters/nowhere/machines", {"wanted": {}}, status=404)["type"] == "ClusterNotFound"
    refused = server.post("/clusters/local/machines", {"wanted": {}}, status=409)
    assert refused["message"] == "Clusters of type Local do not support creating or deleting machines."
    assert server.post("/clusters/local/forecast", {"wanted": {}}, status=409)["type"] == "ClusterRefused"


def test_machines_stay_while_a_job_runs_on_them(server, lab):
    server.post("/clusters/lab/machines", {"wanted": {"size": "small", "min_nodes": 1}}, status=202)
    id_ = server.submit(WAIT, options={"compute_target": "lab", "distributed_backend": "plain"})
    assert server.delete("/clusters/lab/machines", status=409)["message"] == "1 job of lab has not ended."
    server.post(f"/jobs/{id_}/cancel", {"now": True}, status=202)
    server.until_ended(id_)
    server.delete("/clusters/lab/machines", status=202)


def test_choices_are_asked_for_with_what_was_filled_in(server, forge):
    ask = {"kind": "forge", "option": "place"}
    assert server.post("/choices", ask, status=200)["choices"] == [
        {"value": "north", "label": "The north", "detail": "cold", "sets": {}},
        {"value": "south", "label": "The south", "detail": "hot", "sets": {"yard": "quay"}},
    ]
    found = server.post("/choices", {**ask, "option": "yard", "options": {"place": "south"}}, status=200)
    assert found["choices"] == [{"value": "of south", "label": "", "detail": "", "sets": {}}]
    missing = server.post("/choices", {**ask, "option": "yard"}, status=400)
    assert (missing["field"], missing["hint"]) == ("place", "Choose a place first.")
    assert server.post("/choices", {**ask, "option": "wheels"}, status=400)["field"] == "wheels"
    assert server.post("/choices", {"kind": "nowhere", "option": "place"}, status=400)["type"] == "InvalidSpec"
