"""The form's line about money: only where something is paid for, only what somebody said, always with who said it."""

from __future__ import annotations

import pytest

from distdl_jupyter.azure import prices
from distdl_jupyter.clusters.base import Provisioner
from distdl_jupyter.clusters.cluster_configs import add
from distdl_jupyter.core import registry
from distdl_jupyter.form import choices
from distdl_jupyter.form.choices import RentedNodes, get_rented_nodes
from distdl_jupyter.form.schema import FormValues
from tests.form.page import Page

A100 = "NC24ads_A100_v4"
WORKSPACE = {"resource_group": "g", "workspace": "ws"}


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch, azure_settings):
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
    prices._problems.clear()


_cell = {"__name__": "__main__"}
exec("def train():\n    return 1", _cell)  # no module of the tests travels with it, so that a form opens quickly
train = _cell["train"]


def test_this_machine_costs_nothing_and_a_price_of_ones_own_counts_anywhere() -> None:
    form = Page(train, vm_size=A100)
    assert form.cost is None
    form.node_count = 2
    form.price_per_hour = "3.675 EUR"
    assert form.cost["per_hour"] == "7.35 EUR"
    assert form.cost["source"] == "set by you"
    assert "--price-per-hour '3.675 EUR'" in form.magic
    assert form.options()["price_per_hour"] == "3.675 EUR"


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        (RentedNodes(is_billed=True), "The price is unknown because no VM size is"),
        (RentedNodes(is_billed=True, size=A100, is_interruptible=True), choices.SPOT_PRICE_PROBLEM),
        (RentedNodes(is_billed=True, size=A100), "Prices need a valid Azure region and currency"),
    ],
)
def test_why_a_price_is_not_known_is_said(nodes: RentedNodes, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "get_rented_nodes", lambda *_: nodes)
    told = choices.compute_cost(FormValues())
    assert told is not None
    assert told.problem.startswith(problem)
    assert told.per_hour == ""


def test_what_is_rented_is_read_from_the_clusters_options(azure) -> None:
    assert get_rented_nodes("local", A100) == RentedNodes()
    assert get_rented_nodes("nowhere", A100) == RentedNodes()
    assert isinstance(registry.get("clusters", "azureml"), Provisioner)
    add("ml", "azureml", {**WORKSPACE, "vm_size": "Standard_" + A100, "job_tier": "Spot"})
    assert get_rented_nodes("ml", "") == RentedNodes(is_billed=True, size="Standard_" + A100, is_interruptible=True)
    add("gpu", "azureml", {**WORKSPACE, "compute": "gpu-cluster"})
    assert get_rented_nodes("gpu", A100) == RentedNodes(is_billed=True, size=A100)


def test_the_advice_on_a_limit_sets_the_form_s_own_field(azure) -> None:
    add("gpu", "azureml", {**WORKSPACE, "compute": "gpu-cluster"})
    form = Page(train, compute_target="gpu", price_per_hour="3.5")
    limit = next(one for one in form.advice if one["code"] == "no-time-limit")
    assert "about\xa03.50 USD/h" in limit["reason"] or "about 3.50 USD/h for 1 node" in limit["reason"]
    form.apply("no-time-limit")
    assert form.max_run_duration_seconds == 86_400
    assert not any(one["code"] == "no-time-limit" for one in form.advice)
