"""Clusters that get a name in the form and lose it: chosen when added, kept while a job runs there, then let go."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core.errors import ClusterRefused, InvalidSpec
from distdl_jupyter.widgets import launch, widget
from tests import plugin
from tests.form.page import Page


def answer(ask: str, **given: Any) -> Any:
    """What a page is answered."""
    return widget.answer(launch.CLUSTER_CALLS, {"ask": ask, "given": given})


@pytest.fixture(autouse=True)
def _own_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))


def until(gate: str) -> str:
    while not Path(gate).exists():
        time.sleep(0.05)
    return "done"


def opened(*args: Any, **more: Any) -> Page:
    return Page(until, args, process_count_per_node=1, distributed_backend="plain", **more)


def offered(form: Page) -> dict[str, bool]:
    return {one["name"]: one["named"] for one in form.choices["clusters"]}


def test_a_new_cluster_is_offered_as_one_that_can_be_removed() -> None:
    form = opened("")
    assert offered(form)["local"] is False
    launch.add_cluster("mine", "local", {})
    form.compute_target = "mine"
    assert offered(form)["mine"] is True
    assert "--compute-target mine" in form.magic


def test_what_cannot_be_added_is_refused_with_its_field_and_changes_nothing() -> None:
    with pytest.raises(InvalidSpec) as refused:
        launch.add_cluster("lab", "ssh", {})
    assert refused.value.field == "hosts"
    told = answer("clusters.add", name="no name", kind="local", options={})
    assert told["error"]["field"] == "name"
    assert told["error"]["hint"].startswith("Use 1 to 40 letters, digits, dots, dashes")
    assert cluster_configs.named() == []
    launch.add_cluster("mine", "local", {})
    with pytest.raises(ClusterRefused, match="already exists"):
        launch.add_cluster("mine", "local", {})


def test_a_question_is_always_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clumsy = """
        from distdl_jupyter.clusters.local import LocalCluster

        class Clumsy(LocalCluster):
            name = "clumsy"

            def validate(self, options):
                raise ZeroDivisionError("counted the machines")
    """
    plugin.install(tmp_path, monkeypatch, clumsy, {"clusters": {"clumsy": "Clumsy"}})
    try:
        told = answer("clusters.add", name="c", kind="clumsy", options={})
    finally:
        plugin.forget()
    assert told["error"]["message"] == "ZeroDivisionError: counted the machines"
    assert answer("dance")["error"]["hint"] == "Reload the page."
    assert "TypeError" in answer("clusters.add")["error"]["message"]


def test_an_unusable_cluster_of_the_user_can_be_chosen_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    cluster_configs.add("farm", "slurm", {})
    form = opened("")
    form.compute_target = "farm"
    farm = next(one for one in form.choices["clusters"] if one["name"] == "farm")
    assert farm["reason"]
    assert farm["named"]
    assert "compute_target" in form.problems
