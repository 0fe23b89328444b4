"""A job's page, jobs compared, and what an output shows of a job that this server does not have."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from contextlib import closing
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Locator, Page, expect

from distdl_jupyter.core.spec import CodeSource
from tests.browser import pages
from tests.browser.conftest import Book, Lab
from tests.widgets.recorded import Recording, begin

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

JOB_MIME = "application/vnd.distdl.job+json"
#: Of the form of an id, and of no job.
NOBODY = "20200101-000000-aaaaa"


def tab(page: Page, name: str) -> Locator:
    """The tab of the main area with a name."""
    return page.locator("#jp-main-dock-panel .lm-TabBar-tab").filter(has_text=name)


def test_a_running_job_s_page_moves_and_is_restored_as_it_was_left(
    shared_page: Book, told: Callable[[str], Recording]
) -> None:
    story, book = told("running"), shared_page
    page = book.open_job(story.id)
    pages.says(page, "Running")
    expect(page.get_by_role("table").locator("tbody tr")).to_have_count(4)
    expect(pages.curves(page).first).to_be_attached()
    story.train(800, 0.0)
    expect(page.locator(".dd-work")).to_contain_text("792 of 1,200")
    page.get_by_role("radio", name="Each rank").click()
    expect(pages.curves(page)).to_have_count(4)
    assert pages.misheard(book.page, f"#distdl-job-{story.id}") == []
    page.get_by_role("tab", name="Spec").click()
    expect(page.get_by_role("definition").filter(has_text="2 × 2 = 4 processes")).to_be_visible()
    book.layout_saved('"tab":"spec"')
    book.open_lab(reset=False)
    tab(book.page, "digits").click()
    again = book.page.locator(f"#distdl-job-{story.id}")
    expect(again.get_by_role("tab", name="Spec")).to_have_attribute("aria-selected", "true")
    again.get_by_role("tab", name="Overview").click()
    expect(again.get_by_role("radio", name="Each rank")).to_have_attribute("aria-checked", "true")
    expect(pages.curves(again)).to_have_count(4)
    assert not book.errors


def test_the_lines_of_the_spec_have_the_numbers_of_the_traceback(shared_page: Book, lab: Lab) -> None:
    source = CodeSource(
        code="batch = {}\nbatch['label']\n", first_line=2, command="%%distributed -p 2", execution_count=7
    )
    with closing(begin(5, lab.store, source=source)) as story:
        page = shared_page.open_job(story.id)
        page.get_by_role("tab", name="Spec").click()
        lines = page.get_by_role("region", name="Cell [7]").locator(".dd-line")
        expect(lines).to_have_text(["1%%distributed -p 2", "2batch = {}", "3batch['label']"])


def test_log_and_files_are_downloaded(shared_page: Book, told: Callable[[str], Recording]) -> None:
    story = told("completed")
    (story.folder.outputs / "final").mkdir(parents=True)
    (story.folder.outputs / "final" / "model.pt").write_bytes(b"weights")
    page = shared_page.open_job(story.id)
    page.get_by_role("tab", name="Outputs").click()
    with shared_page.page.expect_download() as file:
        page.get_by_role("link", name="final/model.pt").click()
    assert file.value.suggested_filename == "model.pt"
    assert file.value.path().read_bytes() == b"weights"
    page.get_by_role("tab", name="Log", exact=True).click()
    with shared_page.page.expect_download() as log:
        page.get_by_role("link", name="Download the log").click()
    assert "epoch 100" in re.sub(" +", " ", log.value.path().read_text())


def test_a_deleted_job_keeps_its_last_state_and_offers_nothing_more(
    shared_page: Book, told: Callable[[str], Recording]
) -> None:
    story, lab = told("completed"), shared_page.lab
    page = shared_page.open_job(story.id)
    expect(pages.curves(page).first).to_be_attached()
    story.close()
    url = f"{lab.url}distdl/api/jobs/{story.id}"
    headers = {"Authorization": f"token {lab.token}"}
    urllib.request.urlopen(urllib.request.Request(url, method="DELETE", headers=headers)).close()
    expect(page.get_by_text("This job was deleted. Its last state is shown.")).to_be_visible()
    expect(pages.curves(page).first).to_be_attached()
    expect(page.get_by_role("button", name="Rerun")).to_be_hidden()


@pytest.mark.full
def test_jobs_are_compared_and_the_page_is_restored(shared_page: Book, told: Callable[[str], Recording]) -> None:
    first, second, third = told("completed"), told("failed"), told("running")
    book = shared_page
    bar = book.sidebar()
    bar.root.locator(f'[data-id="{second.id}"]').click(modifiers=["Control"])
    book.command("launcher:create")  # another page in front takes no choice away
    bar.root.locator(f'[data-id="{first.id}"]').click(modifiers=["Control"])
    bar.root.get_by_role("button", name="Compare").click()
    page = book.page.locator(".dd-comparing")
    expect(page).to_have_count(1)
    expect(pages.curves(page)).to_have_count(2)
    book.command("distdl:compare", ids=[second.id, first.id])
    expect(page).to_have_count(1)
    book.command("distdl:compare", ids=[first.id, second.id, third.id])
    expect(page).to_have_count(2)
    tab(book.page, "Compare 2 jobs").locator(".lm-TabBar-tabCloseIcon").click()
    expect(page).to_have_count(1)
    expect(pages.curves(page)).to_have_count(3)
    expect(page.get_by_role("heading", name="Compare 3 jobs")).to_be_visible()
    expect(page.get_by_role("rowheader", name="Cluster")).to_be_hidden()
    third.train(1100, 0.0)
    third.complete()
    page.get_by_role("tab", name="accuracy").click()
    expect(page.locator(".dd-plot")).to_have_attribute("aria-label", re.compile("^accuracy: .* ends at "))
    book.layout_saved(third.id)
    book.open_lab(reset=False)
    tab(book.page, "Compare 3 jobs").click()
    expect(pages.curves(book.page.locator(".dd-comparing"))).to_have_count(3)
    assert not book.errors


def keep(lab: Lab, name: str, job: object, html: str) -> None:
    """Write a notebook whose one cell has left the output of a job."""
    v4: Any = nbformat.v4
    output = v4.new_output("display_data", data={JOB_MIME: job, "text/html": html, "text/plain": "kept"})
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell("1", outputs=[output])], metadata=kernel), lab.root / name)


@pytest.mark.full
def test_an_output_of_a_job_that_is_not_here_shows_what_the_notebook_kept(shared_page: Book) -> None:
    script = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"
    asked: list[str] = []
    shared_page.page.on("request", lambda request: asked.append(request.url))
    for number, (job, why) in enumerate((
        ({"id": NOBODY, "version": 1}, "This job is not on this server."),
        ({"id": NOBODY, "version": 99}, "written by a newer version"),
        ({"id": "../../api/contents", "version": 1}, "written by a newer version"),
    )):  # fmt: skip
        asked.clear()
        keep(shared_page.lab, f"kept-{number}.ipynb", job, f"<b>kept page</b>{script}")
        shared_page.command("docmanager:open", path=f"kept-{number}.ipynb", kernel={"shouldStart": False})
        shown = shared_page.page.locator(".jp-NotebookPanel:visible .dd-output")
        expect(shown.get_by_role("note")).to_contain_text(why)
        expect(shown.get_by_text("kept page")).to_be_visible()
        assert shared_page.page.evaluate("() => window.pwned") is None, "the notebook is not trusted"
        assert not [url for url in asked if "distdl/api/jobs/" in url]
        shared_page.close_all()
