"""The sidebar in JupyterLab, as a user has it before their eyes and under their fingers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import processes
from tests.browser.conftest import Book, Lab, new_book
from tests.browser.pages import Sidebar, misheard
from tests.conftest import until_gone, wait_for
from tests.widgets import recorded
from tests.widgets.recorded import Recording

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

SETTINGS = "distdl-jupyter:plugin"


@pytest.fixture(autouse=True)
def no_jobs(lab: Lab) -> Iterator[None]:
    """What other tests have left is not in the list."""
    lab.forget_jobs()
    yield
    lab.forget_jobs()


@pytest.fixture
def write(lab: Lab) -> Iterator[Callable[..., Recording]]:
    """Return a function that makes a job whose events the test writes itself, with the real writer."""
    with ExitStack() as stories:

        def make(name: str, *, ended: bool = False) -> Recording:
            story = stories.enter_context(closing(recorded.begin(0.0, lab.store, name=name, node_count=1)))
            story.event("state", state="running", reason="")
            if ended:
                story.event("state", state="completed", reason="")
            return story

        yield make


@pytest.fixture(scope="module")
def asking(lab: Lab) -> Iterator[None]:
    """A page that opens now asks before it cancels a job."""
    lab.settings(SETTINGS, {"confirmCancel": "always"})
    yield
    lab.settings(SETTINGS, {})


@pytest.fixture
def bar(asking: None, shared_page: Book, no_jobs: None) -> Sidebar:
    """The sidebar, which has the focus and no job any more of the test before."""
    found = shared_page.sidebar()
    expect(found.root.get_by_text("No jobs yet")).to_be_visible()
    return shared_page.sidebar()


def count(bar: Sidebar, number: int) -> None:
    """Wait until so many jobs are listed."""
    expect(bar.root.locator(".dd-fold-jobs .dd-fold-count")).to_have_text(str(number))


def active(bar: Sidebar) -> Locator:
    return bar.root.locator(".dd-job.dd-active")


def test_before_the_first_job_it_says_how_to_begin(bar: Sidebar, shared_page: Book) -> None:
    expect(bar.root.get_by_text("No jobs yet")).to_be_visible()
    expect(bar.root.locator("code")).to_have_text("%%distributed -p 2")
    expect(bar.root.get_by_role("button", name="New job").last).to_be_focused()
    expect(bar.root.get_by_role("grid")).to_be_hidden()
    bar.widen(380)
    bar.root.get_by_role("button", name="Open quickstart").click()
    expect(bar.page.locator(".jp-Notebook .jp-Cell").first).to_be_visible()
    expect(bar.page.locator(".jp-Notebook")).to_contain_text("%%distributed")
    assert bar.page.locator(".jp-Notebook .jp-OutputArea-output").count() == 0


@pytest.mark.fault("log", "in a real browser no script of a log runs and its text is shown")
def test_a_row_is_heard_and_a_hostile_name_stays_text(bar: Sidebar, write: Callable[..., Recording]) -> None:
    hostile = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"
    write(hostile).event("metric", rank=0, step=1, values={hostile: 0.5})
    write("digits")
    count(bar, 2)
    expect(bar.root).to_contain_text("<script>window.pwned = 1</script>")
    assert bar.root.locator("img[src=x]").count() == 0
    assert bar.page.evaluate("() => window.pwned") is None
    assert misheard(bar.page, "#distdl-sidebar") == []
    row = bar.job(re.compile("^digits"))
    expect(row.get_by_role("gridcell").get_by_role("button", name="More actions")).to_have_count(1)
    bar.widen(300)


def place_in(listed: Locator, row: Locator) -> float:
    """How far a row stands below the top of its list: what stands above the list may still be growing."""
    outer, inner = listed.bounding_box(), row.bounding_box()
    assert outer is not None
    assert inner is not None
    return inner["y"] - outer["y"]


@pytest.mark.full
def test_news_take_neither_focus_nor_scroll_nor_an_open_menu(
    bar: Sidebar, write: Callable[..., Recording], shared_page: Book
) -> None:
    for number in range(40):
        write(f"old-{number}", ended=True)
    writer = write("digits")
    shared_page.open_lab()
    shared_page.sidebar()
    count(bar, 41)
    page, listed = bar.page, bar.root.locator(".dd-jobs")
    bar.root.get_by_role("grid").focus()
    page.keyboard.press("Home")
    page.keyboard.press("/")
    expect(bar.root.get_by_role("grid")).not_to_be_focused()
    listed.evaluate("(list) => { list.scrollTop = 600; }")
    row = bar.jobs.filter(has_text="old-20 ")
    row.click(button="right")
    menu = page.locator(".lm-Menu")
    expect(menu.get_by_text("Copy id")).to_be_visible()
    before = place_in(listed, row)
    for step in range(30):
        writer.event("metric", rank=0, step=step, values={"loss": 2 / (step + 1)})
    write("newer")
    count(bar, 42)
    expect(menu.get_by_text("Copy id")).to_be_visible()
    assert abs(before - place_in(listed, row)) < 2
    page.keyboard.press("Escape")
    expect(bar.root.get_by_role("grid")).to_be_focused()
    write("newest")
    count(bar, 43)
    expect(bar.root.get_by_role("grid")).to_be_focused()
    expect(active(bar)).to_contain_text("old-20")


SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)"


def submitted(lab: Lab, page: Page) -> JobFolder:
    """Submit a job over HTTP, from the page, and wait until it runs."""
    page.evaluate(
        """async (code) => {
            const { serverSettings } = window.jupyterapp.serviceManager;
            const { token, baseUrl } = serverSettings;
            const headers = { Authorization: `token ${token}`, 'Content-Type': 'application/json' };
            const options = { name: 'sleeper', distributed_backend: 'plain' };
            const body = JSON.stringify({ code, options });
            const response = await fetch(`${baseUrl}distdl/api/jobs`, { method: 'POST', headers, body });
            if (!response.ok) throw new Error(await response.text());
        }""",
        SLEEP,
    )
    folder = lab.newest()
    wait_for(lambda: processes.find_job_pids({processes.MARK: folder.id}), what="a process of the job")
    return folder


def test_a_job_is_handled_with_the_keys_alone(bar: Sidebar, shared_page: Book) -> None:
    page, root = bar.page, bar.root
    folder = submitted(shared_page.lab, page)
    expect(bar.jobs).to_have_attribute("aria-label", re.compile(r"^sleeper \w+, Running"))
    expect(page.get_by_role("button", name="1 job active")).to_be_visible()
    shared_page.sidebar()
    page.keyboard.press("Control+c")
    wait_for(lambda: shared_page.copied() == folder.id, what="the id to be copied")
    page.keyboard.press("Delete")
    question = root.get_by_role("group", name="Cancel sleeper?")
    expect(question.get_by_role("button", name="No")).to_be_focused()
    page.keyboard.press("Escape")
    expect(root.get_by_role("grid")).to_be_focused()
    assert processes.find_job_pids({processes.MARK: folder.id})
    page.keyboard.press("Delete")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(bar.jobs).to_have_attribute("aria-label", re.compile("Canceled"))
    expect(root.get_by_role("status")).to_have_text(re.compile(r"^sleeper \w+: Canceled$"))
    assert not until_gone(folder.id)
    expect(root.get_by_role("grid")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(f"#distdl-job-{folder.id}")).to_be_visible()
    shared_page.sidebar()
    page.keyboard.press("Delete")
    expect(root.get_by_role("group", name=re.compile("^Delete 1 job, sleeper"))).to_be_visible()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(root.get_by_text("No jobs yet")).to_be_visible()
    assert not folder.path.exists()


def test_the_menu_of_a_row_puts_a_cell_into_the_notebook(
    bar: Sidebar, write: Callable[..., Recording], shared_page: Book
) -> None:
    write("digits", ended=True)
    count(bar, 1)
    shared_page.lab.write("book.ipynb", ["x = 1"])
    cells = shared_page.page.locator(".jp-Notebook .jp-Cell")
    shared_page.command("docmanager:open", path="book.ipynb", kernel={"shouldStart": False})
    expect(cells).to_have_count(1)
    shared_page.sidebar()
    bar.page.keyboard.press("ContextMenu")
    menu = bar.page.locator(".lm-Menu")
    expect(menu.get_by_text("Delete", exact=True)).to_be_visible()
    expect(menu.get_by_text("Cancel", exact=True)).to_be_hidden()
    menu.get_by_text("Insert code").click()
    expect(cells).to_have_count(2)
    (folder,) = shared_page.lab.store.list_folders()
    expect(cells.last).to_contain_text(f'job = attach("{folder.id}")')


def test_what_runs_is_listed_with_what_else_runs_and_canceled_there(lab: Lab, chromium: Browser) -> None:
    lab.settings(SETTINGS, {"confirmCancel": "never"})
    book = new_book(chromium, lab, 1280, 900)
    book.name = "running"
    book.open_lab()
    folder = submitted(lab, book.page)
    book.page.evaluate("() => window.jupyterapp.shell.activateById('jp-running-sessions')")
    item = book.page.locator(".jp-RunningSessions-item", has_text="sleeper").last
    expect(item).to_be_visible()
    item.hover()
    item.locator(".jp-RunningSessions-itemShutdown").click()
    assert not until_gone(folder.id)
    expect(item).to_have_count(0)
    expect(book.page.get_by_role("button", name="1 job active")).to_have_count(0)
    book.page.context.close()
