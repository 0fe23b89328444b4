"""Machines of Azure ML in JupyterLab's sidebar: picked, and shown with their cost when a command has made them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from distdl_jupyter.azure import settings
from tests.browser.conftest import Book, Lab
from tests.standin.computes import Computes
from tests.standin.prices import Prices

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture
def lab(signed_in: Any, own_lab: Lab) -> Lab:
    """A JupyterLab whose user may manage a workspace."""
    (own_lab.home / "config").mkdir()
    shutil.copy(settings.SETTINGS_FILE.path, own_lab.home / "config")
    own_lab.start()
    return own_lab


@pytest.fixture
def workspace(signed_in: Any) -> Computes:
    Prices(signed_in.server)
    return Computes(signed_in.server, signed_in.login, seconds=1.0)


def field(form: Locator, label: str) -> Locator:
    """Return a field of a form as a whole, with its button and its list."""
    return form.locator(".dd-schema-field").filter(has=form.page.get_by_label(label, exact=True))


def compute(lab: Lab, *words: str) -> None:
    """Run a command on the machines of a cluster, as in a terminal of the same user."""
    command = [str(lab.installed.python), "-m", "distdl_jupyter.cli", "clusters", "compute", *words, "--yes"]
    subprocess.run(command, env=lab.installed.environment(**lab.variables), check=True)


def choose(form: Locator, label: str, value: str) -> None:
    field(form, label).get_by_role("button", name="Choose").click()
    form.locator(f'.dd-choice[data-value="{value}"]').click()


@pytest.mark.full
def test_a_compute_cluster_is_picked_and_shown_with_its_cost(
    lab: Lab, workspace: Computes, books: Callable[..., Book]
) -> None:
    book = books([], 1440, 980, dark=False, scale=1.5)
    book.open_lab()
    bar = book.sidebar()
    side = bar.root
    bar.widen(330)
    side.get_by_role("button", name="Add cluster").click()
    form = side.get_by_role("form", name="Add cluster")
    form.get_by_role("textbox", name="Name").fill("gpu")
    form.get_by_role("combobox", name="Kind").select_option("azureml")
    workspaces = field(form, "Workspace")
    workspaces.get_by_role("button", name="Choose").click()
    expect(workspaces.get_by_role("status")).to_contain_text(
        "The Azure ML cluster has no subscription_id. Set the cluster option subscription_id"
    )
    choose(form, "Subscription id", next(iter(workspace.subscriptions)))
    workspaces.get_by_role("button", name="Choose").click()
    workspaces.get_by_role("button", name="Choose").click()
    expect(workspaces.locator(".dd-choice")).to_have_count(3)
    workspaces.locator('.dd-choice[data-value="ws1"]').click()
    expect(form.get_by_label("Resource group", exact=True)).to_have_value("vision")
    form.get_by_label("Compute", exact=True).fill("gpu")
    form.get_by_role("button", name="Add", exact=True).click()

    gpu = bar.cluster("gpu")
    summary = bar.summary("gpu")
    expect(summary).to_have_text("not created")
    expect(gpu.locator(".dd-cluster-machines code")).to_have_text("distdl clusters compute create gpu")
    compute(lab, "create", "gpu", "--vm-size", "Standard_NC4as_T4_v3", "--max-nodes", "2")
    expect(summary).to_have_text("0 of 2 nodes up")
    expect(side.locator(".dd-sidebar-bill")).to_be_hidden()

    workspace.bring_up("gpu", 2)
    bill = "2 nodes are up and cost money: 1.00 USD/h"
    expect(gpu.locator(".dd-cluster-bill")).to_have_text(bill)
    expect(side.locator(".dd-sidebar-bill")).to_have_text(bill)
    expect(gpu.locator(".dd-node[data-billed]")).to_have_count(2)
    for width in (250, 330):
        bar.widen(width)
        assert bar.cut_off() <= 0

    compute(lab, "delete", "gpu")
    expect(summary).to_have_text("not created")
    expect(side.locator(".dd-sidebar-bill")).to_be_hidden()
    assert not workspace.computes
    assert book.errors == []
