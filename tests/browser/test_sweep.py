"""A sweep in a real JupyterLab: its panel as it runs and ends, its page, row and message, and the best once more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Book, Lab

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(600)]

SWEEP = """%%sweep lr=loguniform(1e-4, 1e-1) width=32,64,128 dropout=uniform(0,0.5) --trials 10 --parallel 2 --seed 1 --metric val_loss --name digits -o found
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


@pytest.mark.parametrize(("dark", "width"), [(False, 1440), (True, 900)])
def test_a_sweep_fills_its_panel_and_is_one_row_of_the_list(desk: Callable[..., Book], dark: bool, width: int) -> None:
    book = desk(["%load_ext distdl_jupyter", SWEEP], dark=dark, width=width)
    book.run_all()
    panel = book.page.locator(".dd-sweep")
    pill = panel.locator(".dd-pill")
    expect(pill).to_have_text("Running")
    expect(panel.locator(".dd-sweepbest")).to_contain_text("Best so far")
    book.picture(f"sweep-running-{'dark' if dark else 'light'}", panel)
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
    book.picture(f"sweep-{'dark' if dark else 'light'}", panel)
    if dark:
        return
    best.get_by_role("button", name="Insert values").click()
    expect(book.page.locator(".jp-Cell").last).to_contain_text("dropout = ")
    row = book.page.locator("#distdl-sidebar .dd-job[role=row]")
    book.page.evaluate("window.jupyterapp.commands.execute('distdl:focus-sidebar')")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("Sweep of digits")
    expect(row).to_contain_text("10 of 10 trials")
    expect(row).to_contain_text("best val_loss")
    book.picture("sweep-row", book.page.locator("#distdl-sidebar"))
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
    book.picture("sweep-page")
    page.get_by_role("button", name="Run the best on").click()
    expect(book.page.locator(".dd-document").last.locator(".dd-title").first).to_contain_text("digits, best")
    expect(row).to_have_count(2)
    assert not book.errors


def test_a_sweep_that_fails_before_its_first_trial_is_seen(desk: Callable[..., Book]) -> None:
    wide = "%%sweep lr=uniform(-1.7e308,1.7e308) --trials 2 --sampler random --name digits\nprint(lr)"
    book = desk(["%load_ext distdl_jupyter", wide], dark=True, width=1100)
    page = book.page
    page.evaluate("window.jupyterapp.commands.execute('distdl:focus-sidebar')")
    book.run_all()
    row = page.locator("#distdl-sidebar .dd-job[role=row]")
    expect(row).to_contain_text("0 of 2 trialsThe process that controls the sweep failed: OverflowError")
    expect(page.locator(".dd-sweepproblem")).to_contain_text("failed: OverflowError: Range exceeds valid bounds.")
    expect(page.locator(".Toastify__toast")).to_have_count(0)  # the panel is on the screen
    book.picture("sweep-failed")
    expect(row.get_by_title("Show the runs")).to_be_hidden()
    row.click()
    expect(page.locator(".dd-document .dd-sweepproblem")).to_contain_text("OverflowError")
    page.get_by_role("grid", name="Jobs").press("Delete")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(row).to_have_count(0)
    assert not book.errors


def test_the_launch_form_of_a_cell_starts_a_sweep(desk: Callable[..., Book]) -> None:
    book = desk(["%load_ext distdl_jupyter", SWEEP.partition("\n")[2]], width=1100)
    book.run(0)
    book.page.locator(".jp-CodeCell").last.locator(".cm-content").click()
    book.page.get_by_role("button", name="Run distributed").click()
    form = book.page.locator(".dd-form")
    form.get_by_role("button", name="Fewer processes").click()
    form.get_by_role("button", name="Sweep try many values").click()
    values = form.get_by_role("textbox", name="Values to try")
    values.fill("lr=0.1")
    values.press("Tab")
    expect(
        form.get_by_role("alert").filter(has_text="lr=0.1 has only one value, so there is nothing to vary.")
    ).to_be_visible()
    expect(form.locator(".dd-submit")).to_be_disabled()
    values.fill("lr=loguniform(1e-4,1e-1) width=32,64 dropout=0,0.2")
    values.press("Tab")
    for name, value in (("Trials", "4"), ("Trials at once", "2"), ("Compare trials by", "val_loss")):
        form.get_by_role("textbox", name=name, exact=True).fill(value)
        form.get_by_role("textbox", name=name, exact=True).press("Tab")
    expect(form.locator(".dd-form-foot")).to_contain_text("--trials 4 --metric val_loss --parallel 2 -o found")
    expect(form.locator(".dd-submit-part")).to_contain_text("in each of 4 trials on local")
    values.scroll_into_view_if_needed()
    form.get_by_role("button", name="More options").click()
    book.page.set_viewport_size({"width": 1400, "height": 2100})
    book.picture("sweep-form", form)
    form.locator(".dd-submit").click()
    panel = book.page.locator(".dd-sweep")
    expect(panel.locator(".dd-sweepprogress")).to_contain_text("4 of 4 trials")
    expect(form).to_have_count(0)
    expect(book.page.locator(".jp-CodeCell").last.locator(".cm-content")).to_contain_text("%%sweep lr=loguniform")
    assert not book.errors
