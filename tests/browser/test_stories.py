"""What a user does in JupyterLab and Notebook 7: run the quickstart, fail, reload; behind a base URL like a hub's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser import pages
from tests.browser.conftest import Book, Lab
from tests.browser.test_faults import TRAIN
from tests.conftest import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
LOAD = "%load_ext distdl_jupyter"


@pytest.mark.full
def test_the_quickstart_trains_and_shows_its_curve_and_its_log(desk: Callable[..., Book]) -> None:
    cells = [cell.source for cell in nbformat.read(QUICKSTART, as_version=4).cells if cell.cell_type == "code"]
    training = next(number for number, source in enumerate(cells) if source.startswith("%%distributed"))
    # tests/notebooks trains it to its end.
    assert "epochs, batch_size = 30, 32" in cells[training]
    cells[training] = cells[training].replace("= 30, 32", "= 4, 32")
    book = desk(cells[: training + 1], height=1400)
    book.run_all()
    shown = book.output(training)
    expect(pages.curves(shown).first).to_be_attached()
    expect(shown.get_by_text(re.compile(r"trains on 7\d\d images")).first).to_be_visible()
    expect(shown.get_by_text(re.compile(r"^epoch +3 ")).first).to_be_visible()
    pages.says(shown, "Completed")
    expect(shown.get_by_text("test_accuracy").first).to_be_visible()
    assert not book.errors


@pytest.mark.readme("JupyterLab")
def test_a_failing_rank_shows_its_traceback_and_the_line_of_the_cell(desk: Callable[..., Book]) -> None:
    cell = (
        "%%distributed -p 2 -b torch --name broken\nimport os, time\nbatch = {'image': 1, 'target': 2}\n"
        "if os.environ['RANK'] == '1':\n    batch['label']\ntime.sleep(60)"
    )
    book = desk([LOAD, cell])
    book.run_all()
    shown = book.output(1)
    pages.says(shown, "Failed")
    expect(shown.get_by_role("alert")).to_contain_text("Rank 1 of 2 failed first")
    expect(shown.get_by_role("alert")).to_contain_text("KeyError: 'label'")
    expect(pages.hit_lines(shown).last).to_contain_text("batch['label']")
    expect(pages.hit_lines(shown).last).to_contain_text("5")
    shown.get_by_role("button", name="Open cell").click()
    expect(book.page.locator(".dd-found")).to_contain_text("batch['label']")
    row = book.sidebar().job(re.compile("broken"))
    expect(row).to_contain_text("KeyError on rank 1")


#: What Notebook 7.6 throws while it starts: the first also where the extension is disabled, the second for a command
#: that the extension never calls.
OF_NOTEBOOK_7 = ("reading 'schema'", "'filebrowser:open-path' not registered")


@pytest.mark.full
def test_notebook_7_shows_the_job_live_and_again_after_a_reload(books: Callable[..., Book], lab: Lab) -> None:
    end = lab.root / "seven.end"
    book = books([LOAD, TRAIN.format(name="seven", end=str(end))], 1200, 1000, dark=False, scale=1.5)
    page = book.page
    page.goto(f"{book.lab.url}notebooks/{book.name}?token={book.lab.token}")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    run = page.get_by_role("button", name="Run this cell and advance")

    def has_run(number: int) -> bool:
        return re.search(r"[\d*]", book.cell(number).locator(".jp-InputPrompt").inner_text()) is not None

    def begins() -> bool:
        # Notebook 7 takes a press on Run that comes before its kernel for nothing.
        book.cell(0).click()
        run.click()
        page.wait_for_timeout(200)
        return has_run(0)

    wait_for(begins, what="the first cell's run")
    book.cell(1).click()
    run.click()
    pages.says(book.output(1), "Running")
    expect(pages.curves(book.output(1)).first).to_be_attached()
    with page.expect_response(lambda answer: answer.request.method == "PUT" and "/api/contents/" in answer.url):
        page.get_by_role("button", name="Save and create checkpoint").click()
    page.reload()
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    pages.says(book.output(1), "Running")
    end.touch()
    pages.says(book.output(1), "Completed")
    assert not [error for error in book.errors if not any(known in error for known in OF_NOTEBOOK_7)]
