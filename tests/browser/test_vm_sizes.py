"""VM sizes in the form: filtered by mouse and keyboard, with their prices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from distdl_jupyter.azure import prices, settings
from tests.browser import pages
from tests.browser.conftest import Book, Lab
from tests.standin.prices import Prices

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

RENTED = """%load_ext distdl_jupyter
from distdl_jupyter import add_cluster
add_cluster("rented", "azureml", resource_group="lab", workspace="vision", vm_size="Standard_NC24ads_A100_v4")"""
FORM = """from distdl_jupyter import launcher
def train():
    return 1
launcher(train, compute_target="rented", process_count_per_node=1)"""
TRAIN = "total = sum(range(10))"
PAID = "%%distributed -p 1 -b plain --price-per-hour '3600 EUR' --name paid\nimport time; time.sleep(2)"


@pytest.fixture
def lab(own_lab: Lab, azure: Any, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A JupyterLab whose user has fetched prices of West Europe today."""
    cache = own_lab.home / ".cache"
    monkeypatch.setenv("DISTDL_CACHE", str(cache / "distdl"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    settings.change(region="westeurope")
    Prices(azure.server)
    prices.fetch()
    (own_lab.home / "config").mkdir()
    own = {"cloud": str(azure.cloud), "region": "westeurope"}
    (own_lab.home / "config" / "distdl_azure.json").write_text(json.dumps(own))
    own_lab.start()
    return own_lab


def names(form: Locator) -> list[str]:
    return form.locator(".dd-vm tbody .dd-vm-name").all_inner_texts()


@pytest.mark.full
def test_sizes_are_filtered_and_have_a_price(notebook: Callable[..., Book]) -> None:
    book = notebook([RENTED, FORM, TRAIN, PAID], width=1440, height=1100)
    book.run(0)
    book.run(1)
    form = pages.form(book.cell(1))
    expect(form.locator(".dd-cost-sum")).to_have_text("about 3.50 USD/h for 1 node")
    expect(form.locator(".dd-cost")).to_contain_text("Retail Prices API, westeurope, 20")

    model, memory = form.get_by_label("GPU model"), form.get_by_label("Memory of each GPU")
    model.focus()
    book.page.keyboard.type("H100")
    expect(form.locator(".dd-vm tbody")).to_contain_text("ND96isr_H100_v5")
    assert all("H100" in name for name in names(form))
    model.select_option("")
    memory.select_option("141")
    expect(form.locator(".dd-vm tbody")).not_to_contain_text("H100")
    assert "ND96isr_H200_v5" in names(form)
    memory.select_option("")
    model.select_option("H200")
    assert names(form) == ["ND96isr_H200_v5"]
    model.select_option("A100")
    form.get_by_role("radio", name="NC24ads_A100_v4").focus()
    book.page.keyboard.press("Space")
    expect(form.locator("tr.dd-chosen")).to_contain_text("NC24ads_A100_v4")
    expect(form.locator(".dd-vm-price")).to_contain_text("Price: 3.50 USD/h (Retail Prices API, westeurope, 20")

    form.get_by_role("spinbutton", name="Nodes").fill("2")
    form.get_by_role("spinbutton", name="Nodes").press("Enter")
    expect(form.locator(".dd-cost-sum")).to_have_text("about 7.00 USD/h for 2 nodes")
    expect(form).to_contain_text("No time limit")
    book.picture("launch-form-prices", form)
    price = form.get_by_label("Price of a node and hour")
    price.fill("much")
    price.press("Enter")
    expect(form.locator(".dd-cost [role=alert]")).to_contain_text("must be the price of one node per hour")
    price.fill("4 EUR")
    price.press("Enter")
    expect(form.locator(".dd-cost-sum")).to_have_text("about 8.00 EUR/h for 2 nodes")
    expect(form.locator("footer")).to_contain_text("--price-per-hour '4 EUR'")
    form.get_by_role("button", name="Stop after 24 h").click()
    expect(form).not_to_contain_text("No time limit")

    book.choose(2)
    book.page.locator(".jp-NotebookPanel-toolbar").get_by_text("Run distributed").click()
    page_form = pages.form(book.cell(2))
    page_form.get_by_role("button", name="Choose a VM size").click()
    page_form.get_by_label("GPU model").select_option("T4")
    expect(page_form.locator(".dd-vm tbody tr")).to_have_count(4)
    expect(page_form.locator(".dd-cost")).to_be_hidden()
    page_form.get_by_label("Memory of each GPU").select_option("80")
    expect(page_form).to_contain_text("No size matches.")

    book.run(3)
    meta = book.cell(3).locator(".dd-meta")
    pages.says(book.cell(3), "Completed")
    expect(meta).to_contain_text(re.compile(r"ran \d+ s.*about [\d.]+ EUR"))
    expect(meta).not_to_contain_text("so far")
    expect(meta.locator("span[title*='set by you']")).to_have_attribute(
        "title", re.compile("3,600.00 EUR/h for 1 node")
    )
    book.picture("panel-cost", book.cell(3))
    assert book.errors == []
