"""Clusters that get a name in the form and lose it: chosen when added, kept while a job runs there, then let go."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.clusters.machines import Choice
from distdl_jupyter.core.errors import ClusterNotFound, ClusterRefused, DistDLError, InvalidSpec
from distdl_jupyter.views.wire import to_json
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


def test_every_kind_is_offered_with_its_options_help_and_suggestions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu1 gpu2\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = {one.name: one for one in launch.cluster_kinds()}
    assert set(found) >= {"local", "ssh", "slurm"}
    hosts = found["ssh"].options["properties"]["hosts"]
    assert hosts["description"]
    assert hosts["examples"] == ["gpu1", "gpu2"]
    json.dumps(to_json(list(found.values())), allow_nan=False)


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    plugin.install(tmp_path, monkeypatch, plugin.FORGE, {"clusters": {"forge": "ForgeCluster"}})
    yield
    plugin.forget()


def test_what_an_option_may_be_is_asked_with_what_is_filled_in(forge: None) -> None:
    choices = launch.CLUSTER_CALLS["clusters.choices"]
    found = choices(kind="forge", option="yard", options={"place": "south"})
    assert found == [Choice("of south")]
    with pytest.raises(DistDLError) as refused:
        choices(kind="forge", option="yard", options={})
    assert refused.value.hint == "Choose a place first."


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


def test_a_cluster_stays_while_a_job_runs_there_and_goes_after_it(tmp_path: Path) -> None:
    form = opened(str(tmp_path / "gate"))
    launch.add_cluster("mine", "local", {})
    form.compute_target = "mine"
    job = form.submit()
    assert job is not None, form.status
    try:
        told = answer("clusters.remove", name="mine")
        assert told["error"]["message"] == "1 job of mine has not ended."
        assert told["error"]["hint"].startswith("Cancel")
        assert [one.name for one in cluster_configs.named()] == ["mine"]
    finally:
        (tmp_path / "gate").touch()
        assert job.result(120) == "done"
    assert answer("clusters.remove", name="mine") == {"value": None}
    form.look()
    assert "mine" not in offered(form)
    assert cluster_configs.named() == []
    assert job.state.ended, "the job is still known"


def test_a_place_that_is_there_by_itself_and_one_that_is_not_are_refused() -> None:
    with pytest.raises(ClusterRefused, match="is built in"):
        launch.remove_cluster("local")
    with pytest.raises(ClusterNotFound):
        launch.remove_cluster("nowhere")


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
