"""A story of data in the launch form: rows that are typed, refused, removed, and read by a real job."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Locator, expect

from tests.azurite import fixtures
from tests.browser import pages
from tests.standin.login import CLIENT, SECRET, TENANT

if TYPE_CHECKING:
    from tests.azurite.server import Azurite
    from tests.browser.conftest import Book, Lab

pytestmark = [pytest.mark.full, pytest.mark.browser]
azurite = fixtures.azurite

READ = """
from distdl_jupyter import launcher
def read():
    from distdl_jupyter import data_path
    print('rank reads', (data_path('labels') / 'a.txt').read_text())
form = launcher(read, process_count_per_node=1, distributed_backend='plain', name='reads')
form
"""


def row(form: Locator, number: int) -> Locator:
    return form.locator(".dd-data-row").nth(number)


def typed(row: Locator, name: str, place: str) -> None:
    row.get_by_label("Name of the data").fill(name)
    row.get_by_label("Location of the data").fill(place)
    row.get_by_label("Location of the data").press("Tab")


def submit(form: Locator) -> Locator:
    return form.get_by_role("button", name="Submit")


def test_rows_of_data_are_answered_beside_them_and_read_by_the_job(notebook: Callable[..., Book], lab: Lab) -> None:
    folder = lab.root / "labels"
    folder.mkdir()
    (folder / "a.txt").write_text("seven")
    (folder / "b.txt").write_text("eight")
    book = notebook([READ], width=1250, height=2000)
    book.run_all()
    form = pages.form(book.page)
    expect(form).to_be_visible()
    book.kernel_idle()
    add = form.get_by_role("button", name="Add data")
    add.click()
    expect(row(form, 0).get_by_label("Name of the data")).to_be_focused()
    typed(row(form, 0), "labels", "./labels")
    expect(row(form, 0)).to_contain_text("2 files, 10 B")
    expect(form.locator("footer")).to_contain_text("--data labels=./labels")
    add.click()
    typed(row(form, 1), "train", "blob://Account/cont/cifar10?shard&sig=SECRET")
    expect(row(form, 1)).to_contain_text("must not contain a shared access signature")
    typed(row(form, 1), "train", "blob://Account/cont/cifar10?shard")
    expect(row(form, 1)).to_contain_text("'Account' is not a valid storage account name.")
    expect(row(form, 1).get_by_label("Each node gets only its part")).to_be_checked()
    expect(submit(form)).to_be_disabled()
    form.get_by_role("button", name="Outputs").click()
    form.get_by_label("Outputs to").fill("./out")
    form.get_by_label("Outputs to").press("Tab")
    expect(form).to_contain_text("'./out' is not a valid Azure Blob address.")
    book.picture("launch-data-refused", form)
    form.get_by_label("Outputs to").fill("")
    row(form, 1).get_by_role("button", name="Remove this data").click()
    expect(form.locator(".dd-data-row")).to_have_count(1)
    expect(submit(form)).to_be_enabled()
    submit(form).click()
    card = pages.card(book.page)
    expect(card).to_contain_text("Completed")
    expect(card).to_contain_text("rank reads seven")
    book.picture("launch-data-submitted")
    book.save()
    assert "SECRET" not in (lab.root / book.name).read_text()
    assert book.errors == []


BLOB = """
import os
os.environ.update({environment!r})
from distdl_jupyter import launcher
def count():
    from distdl_jupyter import data_path
    print('rank finds', sorted(path.name for path in data_path('train').iterdir()))
launcher(count, process_count_per_node=1, distributed_backend='plain', name='counts', data={{'train': {place!r}}})
"""
#: What leads to Azure, in a kernel that was started without it.
WORDS = ("AZURE_", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR")
WIDE = """root => [...root.querySelectorAll('.dd-data, .dd-data *')]
    .filter((e) => !e.closest('.dd-ell, select') && e.scrollWidth > e.clientWidth + 1
        && getComputedStyle(e).display !== 'inline' && e.tagName !== 'INPUT')
    .map((e) => `${e.tagName}.${e.className}: ${e.scrollWidth} > ${e.clientWidth}`)"""


def test_data_in_blob_wants_a_sign_in_which_the_form_has(
    notebook: Callable[..., Book],
    azure: Any,
    azurite: Azurite,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    azure.blob_at(azurite.template)
    azure.server.route("GET", "/subscriptions", lambda _: {"value": []})
    container = azurite.container()
    for number in range(4):
        container.put(f"cifar/part-{number}", b"x" * 1000)
    for name, value in (("TENANT_ID", TENANT), ("CLIENT_ID", CLIENT), ("CLIENT_SECRET", SECRET)):
        monkeypatch.setenv(f"AZURE_{name}", value)
    environment = {name: value for name, value in os.environ.items() if name.startswith(WORDS)}
    cell = BLOB.format(environment=environment, place=container.place("cifar"))
    book = notebook([cell], width=1250, height=2000, dark=True)
    book.run_all()
    form = pages.form(book.page)
    expect(form).to_be_visible()
    book.kernel_idle()
    book.picture("launch-data-not-looked-at-dark", form)
    submit(form).click()
    expect(row(form, 0)).to_contain_text("Not signed in to Azure.")
    expect(submit(form)).to_be_disabled()
    row(form, 0).get_by_role("button", name="Sign in to Azure").click()
    panel = form.get_by_role("region", name="Sign in to Azure")
    panel.get_by_role("radio", name="Environment").check()
    book.picture("launch-data-sign-in-dark", form)
    book.page.set_viewport_size({"width": 420, "height": 2600})
    book.picture("launch-data-sign-in-420", form)
    assert form.evaluate(WIDE) == []
    panel.get_by_role("button", name="Sign in", exact=True).click()
    expect(row(form, 0)).to_contain_text("4 files, 4.0 kB")
    expect(panel).to_be_hidden()
    submit(form).click()
    card = pages.card(book.page)
    expect(card).to_contain_text("Completed")
    expect(card).to_contain_text("rank finds ['part-0', 'part-1', 'part-2', 'part-3']")
    assert book.errors == []


def test_a_cells_line_and_its_rows_of_data_are_one(notebook: Callable[..., Book], lab: Lab) -> None:
    folder = lab.root / "digits"
    folder.mkdir()
    (folder / "a.txt").write_text("nine")
    line = "%%distributed -p 1 -b plain --name cellular --data digits=./digits --data bad=blob://A/b"
    book = notebook([f"{line}\nfrom distdl_jupyter import data_path\n(data_path('digits') / 'a.txt').read_text()"])
    book.page.locator("jp-button, button").filter(has_text="Run distributed").first.click()
    form = pages.form(book.page)
    row(form, 0).get_by_role("button", name="Check the location").click()  # what a notebook names is not read unasked
    expect(row(form, 0)).to_contain_text("1 file, 4 B")
    expect(row(form, 1)).to_contain_text("'A' is not a valid storage account name.")
    typed(row(form, 1), "more", "shared:/etc/hostname")
    expect(row(form, 1)).to_contain_text("1 file")
    submit(form).click()
    expect(book.cell(0)).to_contain_text("--data digits=./digits --data more=shared:/etc/hostname")
    expect(pages.card(book.page)).to_contain_text("Completed")
    assert book.errors == []
