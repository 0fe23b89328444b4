"""A story of data in the launch form: rows that are typed, refused, removed, and read by a real job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Locator, expect

if TYPE_CHECKING:
    from tests.browser.conftest import Book, Lab

pytestmark = pytest.mark.browser

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
    row.get_by_label("Place of the data").fill(place)
    row.get_by_label("Place of the data").press("Tab")


def submit(form: Locator) -> Locator:
    return form.get_by_role("button", name="Submit")


def test_rows_of_data_are_answered_beside_them_and_read_by_the_job(notebook: Callable[..., Book], lab: Lab) -> None:
    folder = lab.root / "labels"
    folder.mkdir()
    (folder / "a.txt").write_text("seven")
    (folder / "b.txt").write_text("eight")
    book = notebook([READ], width=1250, height=2000)
    book.run_all()
    form = book.page.locator(".dd-form")
    expect(form).to_be_visible(timeout=90_000)
    book.kernel_idle()
    add = form.get_by_role("button", name="Add data")
    add.click()
    expect(row(form, 0).get_by_label("Name of the data")).to_be_focused()
    typed(row(form, 0), "labels", "./labels")
    expect(row(form, 0)).to_contain_text("2 files, 10 B")
    expect(form.locator("footer")).to_contain_text("--data labels=./labels")
    add.click()
    typed(row(form, 1), "train", "blob://Account/cont/cifar10?shard&sig=SECRET")
    expect(row(form, 1)).to_contain_text("takes no shared access signature")
    typed(row(form, 1), "train", "blob://Account/cont/cifar10?shard")
    expect(row(form, 1)).to_contain_text("'Account' is no name of a storage account.")
    expect(row(form, 1).get_by_label("Each node takes only its part")).to_be_checked()
    expect(submit(form)).to_be_disabled()
    form.get_by_label("Outputs to").fill("./out")
    form.get_by_label("Outputs to").press("Tab")
    expect(form).to_contain_text("'./out' is no place in Azure Blob.")
    book.picture("launch-data-refused", form)
    form.get_by_label("Outputs to").fill("")
    row(form, 1).get_by_role("button", name="Remove this data").click()
    expect(form.locator(".dd-data-row")).to_have_count(1)
    expect(submit(form)).to_be_enabled()
    submit(form).click()
    card = book.page.locator(".dd-card")
    expect(card).to_contain_text("Completed", timeout=120_000)
    expect(card).to_contain_text("rank reads seven")
    book.picture("launch-data-submitted")
    book.save()
    assert "SECRET" not in (lab.root / book.name).read_text()
    assert book.errors == []


@pytest.mark.parametrize(("width", "dark"), [(1250, False), (1250, True), (420, False)])
def test_rows_look_well(notebook: Callable[..., Book], width: int, dark: bool) -> None:
    show = READ.replace(
        "name='reads'",
        "name='reads', data={'labels': './', 'bad': 'blob://Acc/cont', "
        "'train': 'blob://account/container/cifar10?shard', 'm': 'blob://account/container/x?mode=mount'}, "
        "outputs='blob://account/results/jobs'",
    )
    book = notebook([show], width=width, height=2200, dark=dark)
    book.run_all()
    form = book.page.locator(".dd-form")
    expect(form).to_be_visible(timeout=90_000)
    expect(row(form, 2)).to_contain_text("Azure", timeout=60_000)
    book.picture(f"launch-data-{width}-{'dark' if dark else 'light'}", form)
