"""Machines over HTTP: those that were made by a command are shown, and choices are offered for what is filled in.

Their kind of cluster comes from another package.
"""

import pytest

from distdl_jupyter import clusters
from tests import plugin
from tests.conftest import wait_for


@pytest.fixture
def forge(tmp_path, monkeypatch):
    plugin.install(tmp_path, monkeypatch, plugin.FORGE, {"clusters": {"forge": "ForgeCluster"}})
    yield
    plugin.forget()


@pytest.fixture
def lab(server, forge):
    return server.post("/clusters", {"name": "lab", "kind": "forge", "options": {"place": "north"}})


def test_machines_are_shown_with_their_cost(server, lab):
    assert (lab["can_create"], lab["machines"]["exists"]) == (True, False)
    assert (lab["problem"], lab["billed"]) == ("The machines have not been created yet.", 0)
    clusters()["lab"].create(size="small", max_nodes=4, min_nodes=2)
    made = wait_for(lambda: (now := server.get("/clusters/lab"))["billed"] == 2 and now, what="two nodes")
    assert (made["machines"]["exists"], made["machines"]["max_nodes"], made["problem"]) == (True, 4, "")
    assert (made["cost_per_hour"], made["currency"]) == (1.0, "USD")
    assert [one["billed"] for one in made["nodes"]] == [True, True]


def test_choices_are_asked_for_with_what_was_filled_in(server, forge):
    ask = {"kind": "forge", "option": "place"}
    assert server.post("/choices", ask, status=200) == [
        {"value": "north", "label": "The north", "detail": "cold", "sets": {}},
        {"value": "south", "label": "The south", "detail": "hot", "sets": {"yard": "quay"}},
    ]
    found = server.post("/choices", {**ask, "option": "yard", "options": {"place": "south"}}, status=200)
    assert found == [{"value": "of south", "label": "", "detail": "", "sets": {}}]
    missing = server.post("/choices", {**ask, "option": "yard"}, status=400)
    assert (missing["field"], missing["hint"]) == ("place", "Choose a place first.")
    assert server.post("/choices", {**ask, "option": "wheels"}, status=400)["field"] == "wheels"
    assert server.post("/choices", {"kind": "nowhere", "option": "place"}, status=400)["type"] == "InvalidSpec"
