"""Run distributed, as a user does it: from a cell of a notebook, and from the page New job."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser import pages
from tests.browser.conftest import Book, Lab
from tests.conftest import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

Open = Callable[..., Book]
DATA = "import numpy as np\ndata = np.arange(10.0)\nlr = 0.01"
TRAIN = """import horovod.torch as hvd
from distdl_jupyter import log

hvd.init()
for step in range(20):
    log(step=step, loss=lr / (1 + step))
float(data.sum()), hvd.rank(), hvd.size()"""


def source(book: Book, number: int) -> str:
    return str(
        book.page.evaluate(
            "(n) => window.jupyterapp.shell.currentWidget.content.widgets[n].model.sharedModel.getSource()", number
        )
    )


def test_the_button_opens_the_form_and_submit_runs_the_cell_on_two_processes(notebook: Open, lab: Lab) -> None:
    book = notebook([DATA, TRAIN, "job.results()"], height=1200, scale=1)
    page = book.page
    book.run(0)
    book.choose(1)
    page.locator(".jp-NotebookPanel-toolbar").get_by_text("Run distributed").click()
    form = pages.form(book.cell(1))
    expect(pages.captured(form)).to_contain_text("data")
    expect(pages.backends(form).locator(".dd-on").first).to_have_text("horovod-gloo")
    expect(form).to_contain_text("2 processes")
    form.get_by_label("Name", exact=True).fill("arange")
    form.get_by_label("Name", exact=True).press("Enter")
    expect(form.locator("footer")).to_contain_text("--name arange")
    form.get_by_role("button", name="Submit").click()
    expect(form).to_have_count(0)
    assert source(book, 1) == f"%%distributed -N 1 -p 2 -b horovod-gloo --name arange -o job\n{TRAIN}"
    expect(book.output(1)).to_contain_text("Completed")
    book.run(2)
    expect(book.cell(2)).to_contain_text("[(45.0, 0, 2), (45.0, 1, 2)]")
    spec = lab.newest().read_spec()
    assert (spec.name, spec.process_count, spec.distributed_backend) == ("arange", 2, "horovod-gloo")
    assert spec.source.first_line == 2
    assert book.errors == []


@pytest.mark.full
def test_the_cells_own_line_is_read_and_written_and_what_is_wrong_stands_beside_its_field(
    notebook: Open, lab: Lab
) -> None:
    line = "%%distributed -p 1 -b plain --name mine --max-log-bytes 5000"
    body = "import os\nlen(os.environ['MY_TOKEN']), nobody"
    book = notebook([f"{line}\n{body}", "job.result()"], height=1300, scale=1)
    page = book.page
    book.cell(0).locator(".cm-content").click()
    page.keyboard.press("Alt+Shift+Enter")
    form = pages.form(book.cell(0))
    expect(form.get_by_label("Name", exact=True)).to_have_value("mine")
    submit = form.get_by_role("button", name="Submit")
    expect(submit).to_be_disabled()
    expect(submit).to_have_attribute("title", re.compile("nobody"))
    # Keys that are typed into the form are not the notebook's.
    form.get_by_label("Name", exact=True).fill("")
    page.keyboard.type("xx dd aa")
    page.keyboard.press("Tab")
    assert page.locator(".jp-Notebook .jp-Cell").count() == 2
    form.get_by_role("button", name="More processes").click()
    expect(form.locator(".dd-place [role=alert]").first).to_contain_text("plain runs one process, but the job has 2")
    form.get_by_role("button", name="Fewer processes").click()
    expect(form.locator(".dd-place [role=alert]").first).to_be_hidden()
    form.get_by_text("More options").click()
    form.get_by_text("Add variable").click()
    page.keyboard.type("MY_TOKEN")
    page.keyboard.press("Tab")
    page.keyboard.type("s3cret")
    page.keyboard.press("Tab")
    expect(form.locator("footer")).to_contain_text("--env MY_TOKEN --max-log-bytes 5000")
    # The form follows the text of the cell.
    page.evaluate(
        "(text) => window.jupyterapp.shell.currentWidget.content.widgets[0].model.sharedModel.setSource(text)",
        f"{line}\n{body.removesuffix(', nobody')}",
    )
    expect(submit).to_be_enabled()
    submit.focus()
    page.keyboard.press("Control+Enter")
    expect(form).to_have_count(0)
    assert source(book, 0).partition("\n")[0] == (
        "%%distributed -N 1 -p 1 -b plain --name 'xx dd aa' --env MY_TOKEN --max-log-bytes 5000"
    )
    expect(book.output(0)).to_contain_text("Completed")
    spec = lab.newest().read_spec()
    assert (spec.name, spec.secret_variables, spec.max_log_bytes) == ("xx dd aa", ("MY_TOKEN",), 5000)
    assert "s3cret" not in page.evaluate(
        "() => JSON.stringify(window.jupyterapp.shell.currentWidget.context.model.toJSON())"
    )


#: Holds the kernel until a file is there.
BUSY = """import pathlib, time
folder = pathlib.Path({folder!r})
(folder / 'begun').touch()
while not (folder / 'free').exists():
    time.sleep(0.02)"""


@pytest.mark.full
def test_a_busy_kernel_is_not_waited_for_and_escape_closes(notebook: Open, tmp_path: Path) -> None:
    book = notebook(["x = 1\nprint('seven')", BUSY.format(folder=str(tmp_path)), "x"], height=1200, scale=1)
    page = book.page
    book.run(0)
    expect(book.output(0)).to_contain_text("seven")
    book.choose(1)
    page.evaluate("() => { void window.jupyterapp.commands.execute('notebook:run-cell'); }")
    wait_for((tmp_path / "begun").exists, what="the kernel's work")
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'"
    )
    book.choose(2)
    book.command("distdl:run-cell")
    form = pages.form(book.cell(2))
    expect(form).to_contain_text("available when the kernel is idle")
    (tmp_path / "free").touch()
    expect(pages.captured(form)).to_contain_text("int = 1")
    form.get_by_role("button", name="Submit").focus()
    page.keyboard.press("Escape")
    expect(form).to_have_count(0)
    assert source(book, 2) == "x"


def new_job(book: Book) -> Locator:
    page = book.page
    page.evaluate("() => { void window.jupyterapp.commands.execute('distdl:new-job'); }")
    return page.locator(".dd-newjob")


@pytest.mark.full
def test_a_new_job_runs_a_script_with_the_modules_beside_it(shared_page: Book, lab: Lab) -> None:
    folder = lab.root / "proj"
    folder.mkdir()
    (folder / "net.py").write_text("NAME = 'net'\n")
    (folder / "train.py").write_text("import net\nfrom distdl_jupyter import log\nlog(step=1, loss=0.5)\nnet.NAME\n")
    page = shared_page.page
    view = new_job(shared_page)
    view.get_by_label("Script").fill("proj/none.py")
    view.get_by_label("Script").press("Enter")
    expect(view.locator(".dd-newjob-code [role=alert]")).to_contain_text("proj/none.py cannot be opened as text")
    view.get_by_label("Script").fill("proj/train.py")
    view.get_by_label("Script").press("Enter")
    expect(view.locator(".cm-content")).to_contain_text("net.NAME")
    expect(view.get_by_label("Name", exact=True)).to_have_value("train")
    expect(pages.captured(view)).to_contain_text("net.py")
    view.get_by_label("Processes per node").fill("1")
    view.get_by_label("Processes per node").press("Enter")
    pages.backends(view).get_by_text("plain", exact=True).click()
    expect(pages.total(view)).to_have_text("1 process")
    view.get_by_role("button", name="Submit").click()
    expect(page.locator(".lm-TabBar-tab.jp-mod-current")).to_contain_text("train")
    spec = lab.newest().read_spec()
    assert spec.name == "train"
    assert spec.working_directory == str(folder)
    assert (spec.distributed_backend, spec.process_count) == ("plain", 1)
    # The text is still there after a reload.
    shared_page.layout_saved("net.NAME")
    shared_page.open_lab(reset=False)
    page.locator(".lm-TabBar-tab", has_text="New job").click()
    expect(page.locator(".dd-newjob .cm-content")).to_contain_text("net.NAME")


WARNINGS = """import torch
for step in range(10):
    torch.save({"step": step}, "model.pt")
"""


def test_new_job_shows_its_warnings_beside_submit_and_no_row_below_it(lab: Lab, desk: Callable[..., Book]) -> None:
    book = desk(["1"], width=1366, height=768, scale=1)
    book.command("distdl:new-job", draft={"code": WARNINGS, "kernel": "", "path": ""})
    form = pages.form(book.page)
    expect(form.get_by_role("button", name="Submit")).to_be_in_viewport(ratio=1)
    form.get_by_role("button", name="More processes").click()
    expect(form.locator(".dd-submit-part")).to_contain_text("2 warnings")
    expect(form.locator(".dd-checks li")).to_have_count(2)
    expect(form.locator(".dd-checks code", has_text="if rank == 0:")).to_have_count(1)
    expect(form).not_to_contain_text("`")
    form.get_by_role("button", name="Details").click()
    expect(form.locator(".dd-checks li")).not_to_have_count(2)
    form.get_by_role("button", name="Details").click()
    expect(form.locator(".dd-checks")).to_be_hidden()
    form.get_by_role("button", name="2 warnings").click()
    expect(form.locator(".dd-checks li")).to_have_count(2)
    page = book.page.locator(".dd-newjob")
    page.evaluate("(page) => page.scrollTo(0, 200)")
    edge, bar = (
        one.evaluate("(it) => it.getBoundingClientRect().bottom") for one in (page, form.locator(".dd-form-end"))
    )
    assert edge - bar <= 2  # pixels: nothing shows between the bar of Submit and the edge of the page
