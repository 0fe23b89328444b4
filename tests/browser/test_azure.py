"""Signing in to Azure in a notebook's panel and in JupyterLab's sidebar: one sign-in, seen and ended from both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Book, Lab
from tests.browser.pages import Sidebar
from tests.conftest import wait_for
from tests.standin.login import TENANT, USER

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

PANEL = "from distdl_jupyter import azure_sign_in\nazure_sign_in()"
WHO = "from distdl_jupyter.azure import identity\nprint('here', identity.get_status().account)"


@pytest.fixture
def lab(own_lab: Lab, azure: Any) -> Iterator[Lab]:
    """A JupyterLab whose user's settings name the stand-in as their cloud."""
    (own_lab.home / "config").mkdir()
    (own_lab.home / "config" / "distdl_azure.json").write_text(json.dumps({"cloud": str(azure.cloud)}))
    each = {"tenantId": TENANT, "state": "Enabled"}
    listed = [each | {"subscriptionId": f"s-{n}", "displayName": name} for n, name in enumerate(("Lab", "Teaching"))]
    azure.server.route("GET", "/subscriptions", lambda _: {"value": listed})
    own_lab.start()
    yield own_lab
    own_lab.run("azure", "sign-out")


def section(book: Book) -> Locator:
    """Open the section of the sidebar and return it."""
    book.command("distdl:azure-sign-in")
    return Sidebar(book.page).root.locator(".dd-fold-azure")


def head(of: Locator) -> Locator:
    return of.locator(".dd-azure-head")


@pytest.mark.full
def test_one_sign_in_in_the_notebook_and_in_the_sidebar(desk: Callable[..., Book], lab: Lab, azure: Any) -> None:
    book = desk([PANEL, WHO])
    page = book.page
    book.run(0)
    panel = book.cell(0).locator(".dd-azure-panel")
    expect(head(panel)).to_have_text("Not signed in")
    expect(panel.get_by_role("radio", name=re.compile("Device code"))).to_be_checked()

    # A code in the notebook.
    panel.get_by_role("radio", name=re.compile("Device code")).focus()
    page.keyboard.press("Enter")
    code = panel.locator(".dd-azure-code")
    expect(code).to_be_visible()
    (given,) = azure.login.codes.values()
    expect(code).to_have_text(given.user_code)
    link = panel.get_by_role("link", name="Open sign-in page")
    expect(link).to_have_attribute("href", f"{azure.server.address}/device")
    expect(panel).to_contain_text(re.compile(r"1[45]:\d\d left"))
    expect(panel.get_by_role("button", name="Copy code")).to_be_focused()
    page.keyboard.press("Enter")
    assert book.copied() == given.user_code

    # Entered: the notebook and the sidebar know it, and the subscription is chosen there.
    azure.login.approve()
    expect(head(panel)).to_have_text(f"Signed in as {USER}")
    side = section(book)
    expect(head(side)).to_have_text(f"Signed in as {USER}")
    expect(side.locator(".dd-azure-who")).to_have_text(USER)
    side.get_by_label("Subscription").select_option("Teaching")
    settings = lab.home / "config" / "distdl_azure.json"
    wait_for(lambda: json.loads(settings.read_text())["subscription_id"] == "s-1")
    expect(side.get_by_label("Subscription")).to_have_value("s-1")
    for width in (380, 250):
        Sidebar(page).widen(width)
        over = side.locator(".dd-azure").evaluate("(node) => node.scrollWidth - node.clientWidth")
        assert over <= 0, f"{over} px too wide at {width}"

    # A kernel that starts now is signed in too; no token is on the page or in the notebook.
    book.run(1)
    expect(book.cell(1)).to_contain_text(f"here AzureAccount(name='{USER}', kind='device_code'")
    book.save()
    seen = page.content() + (lab.root / book.name).read_text() + lab.log.read_text()
    assert not [secret for secret in azure.login.given if secret in seen]

    # Signed out in the sidebar, which holds everywhere.
    side.get_by_role("button", name="Sign out").click()
    expect(head(side)).to_have_text("Not signed in")
    panel.hover()
    expect(head(panel)).to_have_text("Not signed in")
    book.run(1)
    expect(book.cell(1)).to_contain_text("here None")
    assert not book.errors
