"""Machines of Azure ML in JupyterLab's sidebar: picked, made, up, scaled and ended, with their cost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Locator, expect

from distdl_jupyter.azure import settings
from tests.browser import gallery
from tests.browser.conftest import Book, Lab
from tests.standin.computes import Computes
from tests.standin.prices import Prices

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture
def lab(signed_in: Any, own_lab: Lab) -> Lab:
    """A JupyterLab whose user may manage a workspace."""
    (own_lab.home / "config").mkdir()
    shutil.copy(settings.file(), own_lab.home / "config")
    own_lab.start()
    return own_lab


@pytest.fixture
def workspace(signed_in: Any) -> Computes:
    Prices(signed_in.server)
    return Computes(signed_in.server, signed_in.login, seconds=1.0)


def field(form: Locator, label: str) -> Locator:
    """Return a field of a form as a whole, with its button and its list."""
    return form.locator(".dd-schema-field").filter(has=form.page.get_by_label(label, exact=True))


def choose(form: Locator, label: str, value: str) -> None:
    field(form, label).get_by_role("button", name="Choose").click()
    form.locator(f'.dd-choice[data-value="{value}"]').click()


def looks(book: Book, side: Locator) -> dict[bool, Image.Image]:
    """Return the upper part of the sidebar in the light theme and in the dark one."""
    pictures = {}
    book.page.mouse.move(900, 900)  # The row under the pointer has buttons.
    for dark in (True, False):
        book.theme(dark=dark)
        picture = gallery.picture_of(side)
        pictures[dark] = picture.crop((0, 0, picture.width, 740))
    return pictures


@pytest.mark.full
def test_a_compute_cluster_is_picked_made_scaled_and_deleted(workspace: Computes, books: Callable[..., Book]) -> None:
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
    expect(workspaces.get_by_role("status")).to_contain_text("subscription_id is missing")
    choose(form, "Subscription id", next(iter(workspace.subscriptions)))
    workspaces.get_by_role("button", name="Choose").click()
    workspaces.get_by_role("button", name="Choose").click()
    expect(workspaces.locator(".dd-choice")).to_have_count(3)
    book.picture("machines-picker", side)
    workspaces.locator('.dd-choice[data-value="ws1"]').click()
    expect(form.get_by_label("Resource group", exact=True)).to_have_value("vision")
    form.get_by_label("Compute", exact=True).fill("gpu")
    form.get_by_role("button", name="Add", exact=True).click()

    gpu = bar.cluster("gpu")
    summary = bar.summary("gpu")
    expect(summary).to_have_text("not created")
    gpu.locator(".dd-cluster-machines").get_by_role("button", name="Create machines").click()
    form = gpu.get_by_role("form", name="Create the machines of gpu")
    choose(form, "VM size", "Standard_NC4as_T4_v3")
    form.get_by_label("Max nodes", exact=True).fill("2")
    book.picture("machines-create", side)
    created = looks(book, side)
    form.get_by_role("button", name="Create", exact=True).click()
    question = form.locator(".dd-question")
    expect(question).to_contain_text("At most 2 nodes of Standard_NC4as_T4_v3, westeurope.")
    expect(question).to_contain_text("A node costs 0.50 USD per hour while it is up (Retail Prices API, westeurope, ")
    book.picture("machines-cost", side)
    question.get_by_role("button", name="Create").click()
    expect(summary).to_have_text("0 of 2 nodes up")
    expect(side.locator(".dd-sidebar-bill")).to_be_hidden()

    workspace.bring_up("gpu", 2)
    bill = "2 nodes are up and cost money: 1.00 USD/h"
    expect(gpu.locator(".dd-cluster-bill")).to_have_text(bill)
    expect(side.locator(".dd-sidebar-bill")).to_have_text(bill)
    expect(gpu.locator(".dd-node[data-billed]")).to_have_count(2)
    for dark, up in looks(book, side).items():
        gallery.paste("azure", [created[dark], up], dark=dark)
    book.picture("machines-up", side)
    for width, dark in ((250, True), (330, False)):
        bar.widen(width)
        book.theme(dark=dark)
        assert bar.cut_off() <= 0
        book.picture(f"machines-up-{width}", side)

    gpu.hover()
    gpu.get_by_role("button", name="Scale").click()
    gpu.get_by_label("Maximum nodes").fill("3")
    gpu.get_by_label("Minimum nodes").fill("1")
    expect(gpu).to_contain_text("1 node keeps running and costs money even without a job.")
    gpu.locator(".dd-scale-form").get_by_role("button", name="Scale").click()
    gpu.get_by_role("button", name="Keep them running").click()
    expect(summary).to_have_text("2 of 3 nodes up, 2 GPUs")
    (made,) = workspace.computes.values()
    assert (made.inner["scaleSettings"]["minNodeCount"], made.inner["scaleSettings"]["maxNodeCount"]) == (1, 3)

    gpu.hover()
    gpu.get_by_role("button", name="Delete machines").click()
    expect(gpu.locator(".dd-question")).to_contain_text("Delete the machines of gpu? The name stays in the list.")
    expect(gpu.locator(".dd-question")).to_contain_text("2 nodes are up.")
    book.picture("machines-delete", side)
    gpu.get_by_role("button", name="Delete", exact=True).click()
    expect(summary).to_have_text("not created")
    expect(side.locator(".dd-sidebar-bill")).to_be_hidden()
    assert not workspace.computes
    assert book.errors == []
