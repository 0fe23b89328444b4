"""A prompt on every rank, as a user lives it in JupyterLab: start, look, interrupt, restart the kernel, stop."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, expect

from distdl_jupyter.node import processes
from tests.browser.conftest import TIMEOUT, Book, Lab
from tests.conftest import until_gone, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

CELLS = [
    "%load_ext distdl_jupyter",
    "%dist_ranks start -p 3 -b torch",
    "%%ranks\nprint('the same everywhere')\nprint('rank', rank, 'of', world_size)\nkept = rank * 10\nworld_size",
    "%%ranks\nimport time\nfor second in range(600):\n    print('second', second)\n    time.sleep(0.5)",
    "%%ranks\nif rank == 1:\n    {'image': 1}['label']",
    "%load_ext distdl_jupyter\n%dist_ranks",
    "%%ranks 1-2\nkept",
    "%dist_ranks stop",
]


@pytest.fixture(autouse=True)
def nothing_left(lab: Lab) -> Iterator[None]:
    store = lab.store
    before = set(store.list_ids())
    yield
    for job_id in set(store.list_ids()) - before:
        left = until_gone(job_id, 10.0)
        if left:
            processes.kill_job(job_id)
        assert not left, job_id


def output(book: Book, number: int) -> Locator:
    return book.cell(number).locator(".jp-OutputArea")


def rows(where: Locator) -> list[str]:
    """The lines of a cell on ranks as they can be read: the ranks before what they printed."""
    return [line for line in where.locator(".dd-rankcell").inner_text().splitlines() if line.strip()]


def colour(where: Locator) -> str:
    return str(where.evaluate("(element) => getComputedStyle(element).color"))


@pytest.mark.full
@pytest.mark.fault("viewers", "ranks and their variables survive a kernel restart")
def test_a_prompt_on_every_rank_outlives_its_kernel(desk: Callable[..., Book]) -> None:
    book = desk(CELLS, width=1600)
    for number in range(3):
        book.run(number)
    expect(output(book, 1)).to_contain_text("3 ranks are ready after")
    assert rows(output(book, 2)) == [
        "0-2",
        "the same everywhere",
        "0",
        "rank 0 of 3",
        "1",
        "rank 1 of 3",
        "2",
        "rank 2 of 3",
    ]
    expect(output(book, 2).locator(".dd-rankvalues")).to_have_text(re.compile(r"0-2\s*3"))
    badges = [output(book, 2).locator(".dd-rankcell span", has_text=re.compile(f"^{rank}$")) for rank in range(3)]
    assert len({colour(badge) for badge in badges}) == 3, "each rank has its colour"

    # Lab's own stop button reaches the code on the ranks.
    book.page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 3; }")
    book.page.evaluate("() => { void window.jupyterapp.commands.execute('notebook:run-cell'); }")
    expect(output(book, 3)).to_contain_text("second 1", timeout=TIMEOUT * 1000)
    expect(output(book, 3).locator(".dd-rankcell")).to_have_count(1)
    book.page.get_by_title("Interrupt the kernel").click()
    expect(output(book, 3)).to_contain_text("Interrupted on ranks 0-2.", timeout=TIMEOUT * 1000)
    expect(output(book, 3)).to_contain_text("The cell was interrupted. The ranks are idle")
    book.kernel_idle()

    book.run(4)
    failed = output(book, 4).get_by_role("alert")
    expect(failed).to_contain_text("Rank 1 of 3 failed first: KeyError: 'label'")
    expect(failed.locator("div", has_text="➜").last).to_contain_text("{'image': 1}['label']")
    expect(output(book, 4)).to_contain_text("CellFailed: Rank 1 of 3 failed first")

    book.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    book.kernel_idle()
    book.run(5)
    expect(output(book, 5)).to_contain_text("3 ranks are running, started earlier")
    expect(output(book, 5)).to_contain_text("They are idle; the last cell was In [5].")
    book.run(6)
    expect(output(book, 6).locator(".dd-rankvalues")).to_have_text(re.compile(r"1\s*10\s*2\s*20"))

    folder = next(iter(book.lab.store.list_folders()))
    book.page.evaluate("() => window.jupyterapp.commands.execute('distdl:focus-sidebar')")
    row = book.page.locator("#distdl-sidebar").locator(f"#dd-job-{folder.id}")
    expect(row).to_have_attribute("data-state", "running")
    expect(row).to_contain_text("waits for a cell")
    page = book.open_job(folder.id)
    expect(page.locator(".dd-log .dd-text", has_text="rank 2 of 3")).to_be_visible()
    book.page.evaluate("(name) => window.jupyterapp.commands.execute('docmanager:open', {path: name})", book.name)
    book.kernel_idle()
    book.run(7)
    expect(output(book, 7)).to_contain_text("3 ranks stopped")
    wait_for(lambda: not until_gone(folder.id, 0.1))
    assert not book.errors
