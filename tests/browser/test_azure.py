"""Signing in to Azure in a notebook's panel and in JupyterLab's sidebar: one sign-in, seen and ended from both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.conftest import ARTIFACTS, PATIENCE, Book, Lab
from tests.conftest import wait_for
from tests.installation import Installation
from tests.standin.login import TENANT, USER

expect.set_options(timeout=PATIENCE * 1000)
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

PANEL = "from distdl_jupyter import azure_sign_in\nazure_sign_in()"
WHO = "from distdl_jupyter.azure import identity\nprint('here', identity.account())"


@pytest.fixture
def cloudy_lab(installed: Installation, tmp_path: Path, azure: Any) -> Iterator[Lab]:
    """A JupyterLab whose user's settings name the stand-in as their cloud."""
    lab = Lab(installed, tmp_path)
    lab.settings("@jupyterlab/apputils-extension:notification", {"fetchNews": "false", "checkForUpdates": False})
    lab.settings("@jupyterlab/docmanager-extension:plugin", {"autosave": False})
    (lab.home / "config").mkdir()
    (lab.home / "config" / "distdl_azure.json").write_text(json.dumps({"cloud": str(azure.cloud)}))
    listed = [{"subscriptionId": f"s-{n}", "displayName": name, "tenantId": TENANT, "state": "Enabled"}
              for n, name in enumerate(("Lab", "Teaching"))]  # fmt: skip
    azure.server.route("GET", "/subscriptions", lambda _: {"value": listed})
    try:
        lab.start()
        yield lab
    finally:
        installed.run("distdl", "azure", "sign-out", **{name: lab._environment()[name] for name in (
            "HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")})  # fmt: skip
        lab.stop()


def opened(lab: Lab, chromium: Browser, *, dark: bool, name: str) -> Book:
    lab.set_theme("JupyterLab Dark" if dark else "JupyterLab Light")
    context = chromium.new_context(viewport={"width": 1440, "height": 980}, device_scale_factor=1.5)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE * 1000)
    book = Book(context.new_page(), lab)
    lab.write(name, [PANEL, WHO])
    book.open_desk(name)
    return book


def section(page: Page) -> Locator:
    page.evaluate("() => window.jupyterapp.commands.execute('distdl:azure-sign-in')")
    return page.locator("#distdl-sidebar .dd-fold-azure")


def head(of: Locator) -> Locator:
    return of.locator(".dd-azure-head")


def choose(of: Locator, way: str) -> None:
    of.get_by_role("radio", name=re.compile(way)).check()
    of.get_by_role("button", name="Sign in", exact=True).click()


def shut(book: Book) -> None:
    assert not book.errors
    book.page.context.close()


def test_one_sign_in_in_the_notebook_and_in_the_sidebar(cloudy_lab: Lab, chromium: Browser, azure: Any) -> None:
    book = opened(cloudy_lab, chromium, dark=False, name="azure.ipynb")
    page = book.page
    book.run(0)
    panel = book.cell(0).locator(".dd-azure-panel")
    expect(head(panel)).to_have_text("Nobody is signed in")
    expect(panel.get_by_role("radio", name=re.compile("Device code"))).to_be_checked()
    book.picture("azure-panel-choices", panel)

    # A code in the notebook; the sidebar shows the same one.
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
    assert page.evaluate("() => navigator.clipboard.readText()") == given.user_code
    side = section(page)
    expect(side.locator(".dd-azure-code")).to_have_text(given.user_code)
    book.picture("azure-waiting")

    # Declined, and said with its remedy in both.
    azure.login.decline()
    for view in (panel, side):
        expect(view.locator(".dd-azure-line[data-level=error]")).to_contain_text("The sign-in was declined")
        expect(head(view)).to_have_text("Nobody is signed in")

    # Cancelled in the sidebar, then signed in from there.
    choose(side, "Device code")
    side.get_by_role("button", name="Cancel").click()
    expect(head(side)).to_have_text("Nobody is signed in")
    choose(side, "Device code")
    expect(side.locator(".dd-azure-code")).to_be_visible()
    azure.login.approve()
    expect(head(side)).to_have_text(f"Signed in as {USER}")
    expect(side.locator(".dd-azure-who")).to_have_text(USER)
    side.get_by_label("Subscription").select_option("Teaching")
    settings = cloudy_lab.home / "config" / "distdl_azure.json"
    wait_for(lambda: json.loads(settings.read_text())["subscription_id"] == "s-1")
    expect(side.get_by_label("Subscription")).to_have_value("s-1")
    panel.hover()
    expect(head(panel)).to_have_text(f"Signed in as {USER}")
    book.picture("azure-signed-in")
    nothing_cut_off(page, side)

    # A kernel that starts now is signed in too; no token is on the page or in the notebook.
    book.run(1)
    expect(book.cell(1)).to_contain_text(f"here Account(name='{USER}', kind='device_code'")
    book.save()
    seen = page.content() + (cloudy_lab.root / "azure.ipynb").read_text() + cloudy_lab.log.read_text()
    assert not [secret for secret in azure.login.given if secret in seen]
    shut(book)

    # Another page, in the dark: still signed in; signing out there forgets it everywhere.
    book = opened(cloudy_lab, chromium, dark=True, name="azure-dark.ipynb")
    book.run(0)
    panel = book.cell(0).locator(".dd-azure-panel")
    expect(head(panel)).to_have_text(f"Signed in as {USER}")
    expect(panel.get_by_label("Subscription")).to_have_value("s-1")
    side = section(book.page)
    expect(head(side)).to_have_text(f"Signed in as {USER}")
    book.picture("azure-dark")
    panel.get_by_role("button", name="Sign out").click()
    expect(head(panel)).to_have_text("Nobody is signed in")
    book.run(1)
    expect(book.cell(1)).to_contain_text("here None")
    choose(panel, "Azure command line")
    said = panel.locator(".dd-azure-line[data-level=error]")
    expect(said).to_contain_text("The Azure command line (az) is not installed on this machine.")
    book.picture("azure-dark-problem", panel)
    shut(book)


def nothing_cut_off(page: Page, side: Locator) -> None:
    """The section fits into a narrow sidebar."""
    for width in (380, 250):
        page.evaluate(
            """(width) => { const side = document.querySelector('#distdl-sidebar'); side.style.width = `${width}px`;
                side.style.minWidth = 0; }""",
            width,
        )
        over = side.locator(".dd-azure").evaluate("(node) => node.scrollWidth - node.clientWidth")
        assert over <= 0, f"{over} px too wide at {width}"
        side.screenshot(path=ARTIFACTS / f"azure-sidebar-{width}.png")
