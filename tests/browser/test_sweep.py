"""A sweep in a real JupyterLab: its panel as it runs and ends, its page, row and message, and the best once more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Book, Lab

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(600)]

SWEEP = """%%sweep lr=loguniform(1e-4, 1e-1) width=32,64,128 dropout=uniform(0,0.5) --trials 10 --parallel 2 --seed 1 --metric val_loss --name digits -o study
import math, time
from distdl_jupyter import log, progress

for epoch in range(20):
    quality = abs(math.log10(lr) + 2) + 4 / width + abs(dropout - 0.15)
    log(step=epoch, val_loss=0.2 + 0.5 * quality + 2.2 * math.exp(-epoch / 3))
    progress(epoch + 1, 20, unit="epoch")
    time.sleep(0.05)
"""  # noqa: E501


@pytest.fixture
def lab(own_lab: Lab) -> Lab:
    """A list of jobs that holds those of this test only."""
    own_lab.start()
    return own_lab


def test_a_sweep_fills_its_panel_and_is_one_row_of_the_list(desk: Callable[..., Book]) -> None:
    book = desk(["%load_ext distdl_jupyter", SWEEP])
    book.run_all()
    panel = book.page.locator(".dd-sweep")
    pill = panel.locator(".dd-pill")
    expect(pill).to_have_text("Running")
    expect(panel.locator(".dd-sweepbest")).to_contain_text("Best so far")
    expect(pill).to_have_text("Completed")
    expect(panel.locator(".dd-sweepprogress")).to_contain_text("10 of 10 trials")
    best = panel.locator(".dd-sweepbest")
    expect(best).to_contain_text("with lr ")
    expect(panel.locator("svg[aria-label^='val_loss of all trials over their steps']")).to_be_visible()
    expect(panel.locator("tbody tr")).to_have_count(10)
    states = {"best", *(text.strip().lower() for text in panel.locator("tbody td:nth-last-child(2)").all_inner_texts())}
    keys = {key.strip() for key in panel.locator(".dd-sweepkey").all_inner_texts()}
    assert keys <= states | {"completed"}
    assert ("pruned" in keys) is ("pruned" in states)
    assert "running" not in keys
    ticks = (
        panel.locator("svg[aria-label^='val_loss of all trials']").locator("text[text-anchor=end]").all_text_contents()
    )
    assert len({len(tick.partition(".")[2]) for tick in ticks}) == 1, ticks
    expect(panel.locator("tbody tr").first).to_contain_text("best")
    panel.get_by_role("button", name="Log", exact=True).click()
    best.get_by_role("button", name="Insert values").click()
    expect(book.page.locator(".jp-Cell").last).to_contain_text("dropout = ")
    row = book.page.locator("#distdl-sidebar .dd-job[role=row]")
    book.page.evaluate("window.jupyterapp.commands.execute('distdl:focus-sidebar')")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("Sweep of digits")
    expect(row).to_contain_text("10 of 10 trials")
    expect(row).to_contain_text("best val_loss")
    # The panel is on the screen, so no toast covers it. The bell has one entry: the sweep, not its trials.
    bell = book.page.locator(".jp-Notification-Status")
    expect(bell).to_contain_text("1")
    expect(book.page.locator(".Toastify__toast")).to_have_count(0)
    bell.click()
    entries = book.page.locator(".jp-Notification-List li")
    expect(entries).to_have_count(1)
    expect(entries).to_contain_text("Sweep of digits")
    expect(entries).to_contain_text("Completed, best val_loss 0.")
    row.dblclick()
    page = book.page.locator(".dd-document .dd-sweep")
    expect(page.locator(".dd-sweepbest")).to_be_visible()
    page.get_by_role("button", name="Run the best on").click()
    expect(book.page.locator(".dd-document").last.locator(".dd-title").first).to_contain_text("digits, best")
    expect(row).to_have_count(2)
    assert not book.errors
