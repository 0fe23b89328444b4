"""What a user lives through in JupyterLab, told against the installed wheel, behind a base URL like a hub's.

Run, restart the kernel, restart the server, fail; the same in Notebook 7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from distdl_jupyter.core.events import read_all
from distdl_jupyter.core.store import JobFolder
from tests.browser import pages
from tests.browser.conftest import Book, Lab
from tests.browser.pages import Sidebar
from tests.conftest import crowded, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
TRAIN = """%load_ext distdl_jupyter"""
#: One line and one loss a step, until a file is there.
STEPS = """%%distributed -p 2 -b torch --name {name}
import math, os, time
from distdl_jupyter import log, progress
step = 0
while not os.path.exists({end!r}):
    log(step=step, loss=0.07 + 2.2 * math.exp(-step / 60)); progress(step + 1)
    print(f"step {{step}} of rank {{os.environ['RANK']}}", flush=True)
    step += 1
    time.sleep(0.1)
"""


def steps(lab: Lab, name: str) -> str:
    """Return the cell that trains until ``ends(lab, name)``."""
    return STEPS.format(name=name, end=str(lab.root / f"{name}.end"))


def ends(lab: Lab, name: str) -> None:
    (lab.root / f"{name}.end").touch()


def steps_of(folder: JobFolder) -> int:
    """Return how many steps rank 0 has told."""
    return sum(event["type"] == "metric" and event["rank"] == 0 for event in read_all(folder.events)[0])


def state_of(folder: JobFolder) -> str:
    states = [event["state"] for event in read_all(folder.events)[0] if event["type"] == "state"]
    return states[-1] if states else ""


@pytest.mark.full
def test_1_the_quickstart_moves_soon_after_its_first_log(desk: Callable[..., Book]) -> None:
    cells = [cell.source for cell in nbformat.read(QUICKSTART, as_version=4).cells if cell.cell_type == "code"]
    training = next(number for number, source in enumerate(cells) if source.startswith("%%distributed"))
    # tests/notebooks trains it to its end.
    assert "epochs, batch_size = 30, 32" in cells[training]
    cells[training] = cells[training].replace("= 30, 32", "= 4, 32")
    book = desk(cells[: training + 1], height=1400)
    # When the page first draws a line of the curve, and a line of the log, by the same clock as the events'.
    book.page.evaluate(
        """() => {
            const seen = (window.seen = {});
            const look = () => {
                const value = document.querySelector('.dd-metrics .dd-v')?.textContent ?? '';
                if (/\\d/.test(value)) seen.value ??= Date.now() / 1000;
                if (document.querySelector('.js-plotly-plot path.js-line')) seen.curve ??= Date.now() / 1000;
                requestAnimationFrame(look);
            };
            look();
        }"""
    )
    book.run_all()
    shown = book.output(training)
    expect(pages.curves(shown).first).to_be_attached()
    expect(shown.get_by_text(re.compile(r"trains on 7\d\d images")).first).to_be_visible()
    expect(shown.get_by_text(re.compile(r"^epoch +3 ")).first).to_be_visible()
    pages.says(shown, "Completed")
    expect(shown.get_by_text("test_accuracy").first).to_be_visible()
    first = next(event["t"] for event in read_all(book.lab.newest().events)[0] if event["type"] == "metric")
    seen = book.page.evaluate("() => window.seen")
    delays = {name: round(moment - first, 2) for name, moment in seen.items()}
    (book.artifacts / "story-1-seconds.json").write_text(json.dumps(delays))
    limit = 2 * crowded()
    assert delays["value"] < limit, delays
    assert delays["curve"] < limit, delays
    book.picture("story-1-quickstart")
    assert not book.errors


@pytest.mark.full
@pytest.mark.fault("viewers", "the output is live again")
@pytest.mark.readme("kernel restart")
def test_3_after_a_kernel_restart_and_a_reload_the_output_is_live_again(desk: Callable[..., Book], lab: Lab) -> None:
    book = desk([TRAIN, steps(lab, "patient")])
    book.run_all()
    pages.says(book.output(1), "Running")
    expect(pages.curves(book.output(1)).first).to_be_attached()
    book.save()
    book.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    book.kernel_idle()
    book.page.reload()
    book.page.wait_for_selector(".jp-Notebook .jp-Cell")
    shown = book.output(1)
    pages.says(shown, "Running")
    expect(pages.curves(shown).first).to_be_attached()
    first = pages.lines(shown).all_inner_texts()[-1]
    wait_for(lambda: pages.lines(shown).all_inner_texts()[-1] != first, what="another line of the log")
    book.picture("story-3-live-again")
    ends(lab, "patient")
    pages.says(shown, "Completed")
    points = book.page.evaluate(
        "() => document.querySelector('.js-plotly-plot').data.find((t) => t.name.startsWith('mean')).x.length"
    )
    assert points >= 0.8 * steps_of(lab.newest())
    pages.to_the_top(shown)
    expect(pages.lines(shown).filter(has_text="step 0 of rank").first).to_be_visible()
    assert not book.errors


@pytest.mark.full
@pytest.mark.fault("viewers", "a job that ended in the meantime is shown completely")
def test_4_a_job_that_ended_while_the_server_was_away_is_shown_whole(desk: Callable[..., Book], lab: Lab) -> None:
    book = desk([TRAIN, steps(lab, "alone")])
    book.run_all()
    pages.says(book.output(1), "Running")
    folder = lab.newest()
    book.save()
    lab.stop()
    ends(lab, "alone")
    banner = Sidebar(book.page).root.get_by_text("Server not responding")
    wait_for(lambda: state_of(folder) == "completed", what="the end of the job")
    lab.start()
    book.open_desk(book.name, reset=False)
    shown = book.output(1)
    pages.says(shown, "Completed")
    expect(pages.curves(shown).first).to_be_attached()
    row = book.sidebar().job(re.compile("alone"))
    expect(row).to_contain_text(re.compile(r"\d\.\d+ *loss"))
    row.dblclick()
    page = book.page.locator(".dd-page:visible")
    pages.says(page, "Completed")
    expect(pages.lines(page).filter(has_text=f"step {steps_of(folder) - 1} of rank").first).to_be_visible()
    expect(banner).to_have_count(0)
    book.picture("story-4-job-page")


@pytest.mark.readme("JupyterLab")
def test_6_a_failing_rank_shows_its_traceback_and_the_line_of_the_cell(desk: Callable[..., Book]) -> None:
    cell = (
        "%%distributed -p 2 -b torch --name broken\nimport os, time\nbatch = {'image': 1, 'target': 2}\n"
        "if os.environ['RANK'] == '1':\n    batch['label']\ntime.sleep(60)"
    )
    book = desk([TRAIN, cell])
    book.run_all()
    shown = book.output(1)
    pages.says(shown, "Failed")
    expect(shown.get_by_role("alert")).to_contain_text("Rank 1 of 2 failed first")
    expect(shown.get_by_role("alert")).to_contain_text("KeyError: 'label'")
    expect(pages.hit_lines(shown).last).to_contain_text("batch['label']")
    expect(pages.hit_lines(shown).last).to_contain_text("5")
    book.picture("story-6-failure")
    shown.get_by_role("button", name="Open cell").click()
    expect(book.page.locator(".dd-found")).to_contain_text("batch['label']")
    row = book.sidebar().job(re.compile("broken"))
    expect(row).to_contain_text("KeyError on rank 1")


#: What Notebook 7.6 throws while it starts: the first also where the extension is disabled, the second for a command
#: that the extension never calls.
OF_NOTEBOOK_7 = ("reading 'schema'", "'filebrowser:open-path' not registered")


@pytest.mark.full
def test_9_notebook_7_shows_the_job_live_and_again_after_a_reload(books: Callable[..., Book], lab: Lab) -> None:
    book = books([TRAIN, steps(lab, "seven")], 1200, 1000, dark=False, scale=1.5)
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
    book.picture("story-9-notebook-7")
    ends(lab, "seven")
    pages.says(book.output(1), "Completed")
    assert not [error for error in book.errors if not any(known in error for known in OF_NOTEBOOK_7)]
