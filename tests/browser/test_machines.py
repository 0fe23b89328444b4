"""Machines of Azure ML in JupyterLab's sidebar: picked, made, up, scaled and ended, with their cost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from distdl_jupyter.azure import settings
from tests.browser.conftest import PATIENCE, Book, Lab
from tests.browser.test_clusters import cluster, desk_of, own_lab, picture, sidebar, widen  # noqa: F401
from tests.standin.computes import Computes
from tests.standin.prices import Prices

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture
def workspace(signed_in: Any, own_lab: Lab) -> Computes:  # noqa: F811
    """A workspace that the user of ``own_lab`` may manage."""
    Prices(signed_in.server)
    (own_lab.home / "config").mkdir()
    shutil.copy(settings.file(), own_lab.home / "config")
    return Computes(signed_in.server, signed_in.login, seconds=1.0)


def field(form: Locator, label: str) -> Locator:
    """Return a field of a form as a whole, with its button and its list."""
    return form.locator(".dd-schema-field").filter(has=form.page.get_by_label(label, exact=True))


def choose(form: Locator, label: str, value: str) -> None:
    field(form, label).get_by_role("button", name="Choose").click()
    form.locator(f'.dd-choice[data-value="{value}"]').click(timeout=PATIENCE * 1000)


def test_a_compute_cluster_is_picked_made_scaled_and_deleted(
    workspace: Computes,
    desk_of: Callable[..., Book],  # noqa: F811
) -> None:
    book = desk_of(["1"])
    side = sidebar(book.page)
    widen(book.page, 330)
    side.get_by_role("button", name="Add cluster").click()
    form = side.get_by_role("form", name="Add cluster")
    form.get_by_role("textbox", name="Name").fill("gpu")
    form.get_by_role("combobox", name="Kind").select_option("azureml")
    workspaces = field(form, "Workspace")
    workspaces.get_by_role("button", name="Choose").click()
    expect(workspaces.get_by_role("status")).to_contain_text("subscription_id is missing", timeout=PATIENCE * 1000)
    choose(form, "Subscription id", next(iter(workspace.subscriptions)))
    workspaces.get_by_role("button", name="Choose").click()
    workspaces.get_by_role("button", name="Choose").click()
    expect(workspaces.locator(".dd-choice")).to_have_count(3, timeout=PATIENCE * 1000)
    picture(side, "machines-picker")
    workspaces.locator('.dd-choice[data-value="ws1"]').click()
    expect(form.get_by_label("Resource group", exact=True)).to_have_value("vision")
    form.get_by_label("Compute", exact=True).fill("gpu")
    form.get_by_role("button", name="Add", exact=True).click()

    gpu = cluster(book.page, "gpu")
    summary = gpu.locator(".dd-cluster-summary")
    expect(summary).to_have_text("not created", timeout=PATIENCE * 1000)
    gpu.locator(".dd-cluster-machines").get_by_role("button", name="Create machines").click()
    form = gpu.get_by_role("form", name="Create the machines of gpu")
    choose(form, "VM size", "Standard_NC4as_T4_v3")
    form.get_by_label("Max nodes", exact=True).fill("2")
    picture(side, "machines-create")
    form.get_by_role("button", name="Create", exact=True).click()
    question = form.locator(".dd-question")
    expect(question).to_contain_text("At most 2 nodes of Standard_NC4as_T4_v3, westeurope.", timeout=PATIENCE * 1000)
    expect(question).to_contain_text("A node costs 0.50 USD per hour while it is up (Retail Prices API, westeurope, ")
    picture(side, "machines-cost")
    question.get_by_role("button", name="Create").click()
    expect(summary).to_have_text("0 of 2 nodes up", timeout=PATIENCE * 1000)
    expect(side.locator(".dd-sidebar-bill")).to_be_hidden()

    workspace.bring_up("gpu", 2)
    bill = "2 nodes are up and cost money: 1.00 USD/h"
    expect(gpu.locator(".dd-cluster-bill")).to_have_text(bill, timeout=PATIENCE * 1000)
    expect(side.locator(".dd-sidebar-bill")).to_have_text(bill)
    expect(gpu.locator(".dd-node[data-billed]")).to_have_count(2)
    book.page.mouse.move(900, 900)
    picture(side, "machines-up")
    for width, theme in ((250, "JupyterLab Dark"), (330, "JupyterLab Light")):
        widen(book.page, width)
        book.page.evaluate("(theme) => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
        expect(book.page.locator("body")).to_have_attribute("data-jp-theme-name", theme)
        assert side.evaluate("(node) => node.scrollWidth <= node.clientWidth"), "the sidebar is cut off"
        picture(side, f"machines-up-{width}")

    gpu.hover()
    gpu.get_by_role("button", name="Scale").click()
    gpu.get_by_label("Nodes at most").fill("3")
    gpu.get_by_label("Nodes that stay up").fill("1")
    expect(gpu).to_contain_text("1 node stays up and costs money all the time, also without a job.")
    gpu.locator(".dd-scale-form").get_by_role("button", name="Scale").click()
    gpu.get_by_role("button", name="Keep them up").click()
    expect(summary).to_have_text("2 of 3 nodes up, 2 GPUs", timeout=PATIENCE * 1000)
    (made,) = workspace.computes.values()
    assert (made.inner["scaleSettings"]["minNodeCount"], made.inner["scaleSettings"]["maxNodeCount"]) == (1, 3)

    gpu.hover()
    gpu.get_by_role("button", name="Delete machines").click()
    expect(gpu.locator(".dd-question")).to_contain_text("Delete the machines of gpu? The name stays in the list.")
    expect(gpu.locator(".dd-question")).to_contain_text("2 nodes are up.")
    picture(side, "machines-delete")
    gpu.get_by_role("button", name="Delete", exact=True).click()
    expect(summary).to_have_text("not created", timeout=PATIENCE * 1000)
    expect(side.locator(".dd-sidebar-bill")).to_be_hidden(timeout=PATIENCE * 1000)
    assert not workspace.computes
    assert book.errors == []
