"""A story of data in the launch form: rows that are typed, refused, removed, and read by a real job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Locator, expect

from tests.browser import pages

if TYPE_CHECKING:
    from tests.browser.conftest import Book, Lab

pytestmark = [pytest.mark.full, pytest.mark.browser]

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


def test_rows_of_data_are_checked_and_read_by_the_job(notebook: Callable[..., Book], lab: Lab) -> None:
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
    expect(form.locator("footer")).to_contain_text("--data labels=./labels")
    add.click()
    typed(row(form, 1), "train", "blob://Account/cont/cifar10?shard&sig=SECRET")
    expect(form).to_contain_text("must not contain a shared access signature")
    typed(row(form, 1), "train", "blob://Account/cont/cifar10?shard")
    expect(form).to_contain_text("'Account' is not a valid storage account name.")
    expect(row(form, 1).get_by_label("Each node gets only its part")).to_be_checked()
    expect(submit(form)).to_be_disabled()
    form.get_by_role("button", name="Outputs").click()
    form.get_by_label("Outputs to").fill("./out")
    form.get_by_label("Outputs to").press("Tab")
    expect(form).to_contain_text("'./out' is not a valid Azure Blob address.")
    form.get_by_label("Outputs to").fill("")
    row(form, 1).get_by_role("button", name="Remove this data").click()
    expect(form.locator(".dd-data-row")).to_have_count(1)
    expect(submit(form)).to_be_enabled()
    submit(form).click()
    card = pages.card(book.page)
    expect(card).to_contain_text("Completed")
    expect(card).to_contain_text("rank reads seven")
    book.save()
    assert "SECRET" not in (lab.root / book.name).read_text()
    assert book.errors == []
