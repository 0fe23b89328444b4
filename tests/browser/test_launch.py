"""Stories of the launch form: read, choose, submit, by mouse and by keyboard; in JupyterLab what needs a kernel."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Locator, expect

from distdl_jupyter.widgets.launch import LaunchForm
from tests.browser import pages
from tests.browser.pages import card, says, total

if TYPE_CHECKING:
    from tests.browser.conftest import Book
    from tests.browser.static_page import StaticPage

pytest_plugins = ("tests.browser.static_page",)
pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
Open = Callable[..., "StaticPage"]

PREPARE = """
import numpy as np
from distdl_jupyter import launcher
digits, batch_size, lr, epochs = np.zeros((1797, 64)), 32, 0.01, 3
class DigitsCNN: pass
"""
TRAIN = """
def train():
    import horovod.torch as hvd
    from distdl_jupyter import log
    hvd.init()
    for step in range(epochs):
        log(step=step, loss=1 / (step + 1))
    return DigitsCNN, digits.shape, batch_size, lr
"""
PICTURE = "launcher(train, vm_size='NC96ads_A100_v4', node_count=2, process_count_per_node='auto', name='digits')"
SMALL = "form = launcher(train, process_count_per_node=2, name='digits')\nform"


def opened(static_page: Open, show: str = SMALL, **how: object) -> tuple[StaticPage, Locator]:
    book = static_page([PREPARE, TRAIN, show], **how)
    form = pages.form(book.page)
    expect(form).to_be_visible()
    return book, form


def test_the_form_shows_where_how_many_what_travels_and_takes_advice_by_one_click(static_page: Open) -> None:
    book, form = opened(static_page, PICTURE, height=1400)
    expect(form.locator("tr.dd-chosen")).to_contain_text("NC96ads_A100_v4")
    expect(form.locator("tr.dd-chosen")).to_be_in_viewport()
    expect(total(form)).to_have_text("8 processes")
    expect(form).to_contain_text("train from cell [2]")
    expect(form).to_contain_text("ndarray 1797 × 64")
    expect(form).to_contain_text("One machine instead of 2")
    expect(form).to_contain_text("NC96ads_A100_v4, for cost planning only")
    expect(form).to_contain_text("global batch 256")
    expect(form.locator("footer")).to_contain_text(
        "%%distributed -N 2 -p 4 -b horovod-gloo --vm-size NC96ads_A100_v4 --name digits -o job"
    )
    assert pages.misheard(book.page, ".dd-form") == []
    form.get_by_role("button", name="Copy as magic").click()
    copied = book.page.evaluate("() => navigator.clipboard.readText()")
    assert copied.startswith("%%distributed -N 2 -p 4 ")
    assert copied.endswith(" --name digits -o job\ntrain()")
    form.get_by_role("button", name="Use 1 × ND96amsr_A100_v4").click()
    expect(form.locator("tr.dd-chosen")).to_contain_text("ND96amsr_A100_v4")
    expect(form.get_by_role("spinbutton", name="Nodes")).to_have_value("1")
    expect(total(form)).to_have_text("8 processes")
    expect(form).not_to_contain_text("One machine instead of 2")
    assert book.errors == []


def test_what_a_job_on_this_machine_needs_fits_a_screen(static_page: Open) -> None:
    """In 950 px of height with JupyterLab around it: about 190 px of bars and the cell, and nothing to scroll."""
    book, form = opened(static_page, width=1500, height=950)
    expect(total(form)).to_have_text("2 processes")
    box = form.bounding_box()
    assert box is not None
    assert box["height"] < 950 - 190
    for name in ("VM series", "Data", "Outputs", "More options"):
        fold = form.get_by_role("button", name=name, exact=False).filter(has=book.page.locator(".dd-b"))
        expect(fold).to_have_attribute("aria-expanded", "false")
    form.get_by_role("button", name="Choose a VM size").click()
    expect(form.locator("input.dd-radio:not(:disabled)").first).to_be_focused()


def test_the_list_of_sizes_is_filtered(static_page: Open) -> None:
    book, form = opened(static_page)
    rows = form.locator(".dd-vm tbody tr")
    expect(form.get_by_role("button", name="VM series")).to_have_attribute("aria-expanded", "false")
    expect(form).to_contain_text("not needed: this job runs here")
    form.get_by_role("button", name="VM series").click()
    expect(rows).to_have_count(33)
    form.get_by_text("InfiniBand only").click()
    expect(rows).to_have_count(8)
    form.get_by_role("searchbox").fill("a100")
    expect(rows).to_have_count(2)
    expect(form).to_contain_text("2 of 49 sizes. Catalogue of 2026-09-24")
    rows.first.click()
    form.get_by_role("button", name="sources").click()
    expect(form).to_contain_text("Sources of")
    expect(form).to_contain_text(".md@")
    form.get_by_role("button", name="Clear choice").click()
    expect(form.locator("tr.dd-chosen")).to_have_count(0)
    form.get_by_role("searchbox").fill("")
    form.get_by_text("InfiniBand only").click()
    model, memory = form.get_by_label("GPU model"), form.get_by_label("Memory of each GPU")
    model.select_option("T4")
    expect(rows).to_have_count(4)
    memory.select_option("80")
    expect(form).to_contain_text("No size matches.")
    memory.select_option("")
    form.get_by_role("radio", name="NC4as_T4_v3").focus()
    book.page.keyboard.press("ArrowDown")
    chosen = form.locator("tr.dd-chosen")
    expect(chosen).to_have_count(1)
    expect(chosen).not_to_contain_text("NC4as_T4_v3")
    expect(chosen.get_by_role("radio")).to_be_focused()


def test_a_variable_that_is_being_typed_outlives_the_answer_to_the_one_before(
    static_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed, on_message = threading.Event(), LaunchForm.on_message

    def late(form: LaunchForm, message: dict[str, Any]) -> None:
        typed.wait(60)
        on_message(form, message)

    typed.set()
    monkeypatch.setattr(LaunchForm, "on_message", late)
    book, form = opened(static_page)
    typed.clear()
    names = form.get_by_label("Name of the variable")
    form.get_by_role("button", name="More options").click()
    form.get_by_role("button", name="Add variable").click()
    book.page.keyboard.type("DEPTH")
    book.page.keyboard.press("Tab")
    book.page.keyboard.type("9")
    form.get_by_role("button", name="Add variable").click()
    book.page.keyboard.type("STE")
    typed.set()
    expect(form.locator("footer")).to_contain_text("--env DEPTH=9")
    expect(names.nth(1)).to_be_focused()
    book.page.keyboard.type("PS")
    book.page.keyboard.press("Tab")
    book.page.keyboard.type("7")
    book.page.keyboard.press("Tab")
    expect(form.locator("footer")).to_contain_text("--env DEPTH=9 --env STEPS=7")


def test_what_is_wrong_is_said_with_its_remedy(static_page: Open) -> None:
    book = static_page([PREPARE, TRAIN])
    book.page.evaluate("() => setDocs('https://docs.example/')")
    book.run(SMALL)
    form = pages.form(book.page)
    form.get_by_role("radio", name="plain").click()
    expect(form).to_contain_text("1 error")
    expect(form.get_by_role("button", name="Submit")).to_be_disabled()
    form.get_by_role("button", name="Details").click()
    wrong = form.locator(".dd-checks li", has_text="The backend plain runs one process, but the job has 2.")
    where = wrong.get_by_role("link", name="What to do")
    expect(where).to_have_attribute(
        "href", re.compile(r"^https://docs\.example/reference/troubleshooting\.html#[a-z-]+$")
    )
    form.get_by_role("button", name="Fewer processes").click()
    expect(form.get_by_role("button", name="Submit")).to_be_enabled()
    book.page.evaluate("() => setDocs('')")


OVERFLOWING = """root => [...root.querySelectorAll('*')]
    .filter((e) => !e.closest('.dd-vm-frame, .dd-ell, .dd-sr, select') && e.scrollWidth > e.clientWidth + 1
        && getComputedStyle(e).display !== 'inline')
    .map((e) => `${e.tagName}.${e.className}: ${e.scrollWidth} > ${e.clientWidth}`)"""


def test_nothing_is_cut_off_in_a_narrow_page(static_page: Open) -> None:
    book, form = opened(static_page, PICTURE, height=2200)
    form.get_by_role("button", name="Add cluster").click()
    adding = form.get_by_role("form", name="Add cluster")
    adding.get_by_role("combobox", name="Kind").select_option("ssh")
    adding.get_by_text("More options").click()
    for width in (1330, 840, 640, 500):
        book.page.set_viewport_size({"width": width, "height": 2200})
        assert form.evaluate(OVERFLOWING) == []


def cluster_list(form: Locator) -> Locator:
    return form.get_by_role("combobox", name="Cluster", exact=True)


# ---- in JupyterLab ----


def keep_busy(book: Book) -> None:
    """Let the kernel run something that goes on longer than the test."""
    book.page.evaluate(
        """() => {
            const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
            void kernel.requestExecute({code: 'import time; time.sleep(300)'});
        }"""
    )
    book.page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'"
    )


def test_a_form_serves_while_a_cell_runs_and_its_job_runs_horovod(notebook: Callable[..., Book]) -> None:
    book = notebook([PREPARE, TRAIN, SMALL], height=1400, dark=True)
    book.run_all()
    form = pages.form(book.page)
    expect(form.locator(".dd-form-head")).to_contain_text(re.compile("checks passed|warning"))
    book.kernel_idle()
    keep_busy(book)
    page = book.page
    form.get_by_role("button", name="Add cluster").focus()
    page.keyboard.press("Enter")
    adding = form.get_by_role("form", name="Add cluster")
    expect(adding.get_by_role("textbox", name="Name")).to_be_focused()
    page.keyboard.press("Escape")
    expect(adding).to_have_count(0)
    expect(form.get_by_role("button", name="Add cluster")).to_be_focused()
    expect(form).to_be_visible()

    page.keyboard.press("Enter")
    page.keyboard.type("local")
    adding.get_by_role("combobox", name="Kind").select_option("local")
    adding.get_by_role("button", name="Add", exact=True).click()
    expect(adding).to_contain_text("local is a cluster type")
    expect(adding.get_by_role("textbox", name="Name")).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("desk")
    page.keyboard.press("Control+Enter")  # of the small form: it submits no job
    page.keyboard.press("Enter")
    clusters = cluster_list(form)
    expect(clusters).to_have_value("desk")
    expect(clusters).to_be_focused()
    expect(card(page)).to_have_count(0)
    form.get_by_role("button", name="Remove desk").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(clusters).to_have_value("local")
    nodes = form.get_by_role("spinbutton", name="Nodes")
    nodes.press("ArrowUp")
    expect(total(form)).to_have_text("4 processes")
    expect(form.locator("footer")).to_contain_text("-N 2 -p 2")
    page.keyboard.press("Tab")
    expect(form.get_by_role("spinbutton", name="Processes per node")).to_be_focused()
    nodes.press("ArrowDown")
    expect(total(form)).to_have_text("2 processes")
    page.keyboard.press("Control+Enter")
    expect(form).to_contain_text("Submitted digits")
    says(book.cell(2), "Completed")
    book.command("notebook:insert-cell-below")
    assert book.errors == []


@pytest.mark.full
def test_a_secret_is_typed_hidden_and_stays_out_of_the_notebook_and_a_form_whose_kernel_is_gone_says_so(
    notebook: Callable[..., Book],
) -> None:
    book = notebook([PREPARE, TRAIN, SMALL])
    book.run_all()
    form = pages.form(book.page)
    expect(form).to_be_visible()
    book.kernel_idle()
    form.get_by_role("button", name="More options").click()
    form.get_by_role("button", name="Add variable").click()
    book.page.keyboard.type("HF_TOKEN")
    book.page.keyboard.press("Tab")
    value = form.get_by_label("Value of the variable")
    expect(value).to_have_attribute("type", "password")
    expect(value).to_be_focused()
    book.page.keyboard.type("hf_abc")
    book.page.keyboard.press("Tab")
    form.get_by_role("button", name="Add variable").click()
    book.page.keyboard.type("STEPS")
    book.page.keyboard.press("Tab")
    book.page.keyboard.type("7")
    book.page.keyboard.press("Tab")
    expect(form.locator("footer")).to_contain_text("--env STEPS=7")
    assert "hf_abc" not in form.inner_text()
    state = book.page.evaluate(
        """async () => {
            const panel = window.jupyterapp.shell.currentWidget;
            return JSON.stringify(panel.content.model.toJSON());
        }"""
    )
    assert "hf_abc" not in state

    # Without its kernel the form says that it does not respond.
    book.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    form.get_by_role("spinbutton", name="Nodes").press("ArrowUp")
    expect(form).to_contain_text("No response from the kernel yet")
