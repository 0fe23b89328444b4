"""The sidebar in JupyterLab, as a user has it before their eyes and under their fingers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from distdl_jupyter.clusters import processes
from distdl_jupyter.core.events import EventWriter, JobLock
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder, JobStore, new_id
from tests.browser.conftest import ARTIFACTS, PATIENCE, Lab
from tests.conftest import until_gone, wait_for
from tests.installation import Installation

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

SETTINGS = "distdl-jupyter:plugin"


@pytest.fixture
def own_lab(installed: Installation, tmp_path: Path) -> Iterator[Lab]:
    """A JupyterLab that no other test has left anything in."""
    lab = Lab(installed, tmp_path)
    lab.settings("@jupyterlab/apputils-extension:notification", {"fetchNews": "false", "checkForUpdates": False})
    try:
        yield lab
    finally:
        for folder in JobStore(lab.home / "distdl").folders():
            processes.kill_all(folder.id)
        lab.stop()


@pytest.fixture
def write(own_lab: Lab) -> Iterator[Callable[..., EventWriter]]:
    """Return a function that makes a job whose events the test writes itself, with the real writer."""
    held: list[tuple[EventWriter, JobLock]] = []
    jobs = JobStore(own_lab.home / "distdl")

    def make(name: str, *, ended: bool = False) -> EventWriter:
        folder = jobs.prepare(new_id())
        spec = JobSpec(id=folder.id.removeprefix(".new-"), name=name, process_count_per_node=2, created=time.time())
        folder.spec_file.write_text(spec.dumps())
        lock = JobLock.acquire(folder.lock)
        assert lock is not None
        writer = EventWriter(folder.events)
        writer.write("state", state="running", reason="")
        if ended:
            writer.write("state", state="completed", reason="")
        jobs.publish(folder)
        if ended:
            writer.close()
            lock.release()
        else:
            held.append((writer, lock))
        return writer

    yield make
    for writer, lock in held:
        writer.close()
        lock.release()


@pytest.fixture
def bar(own_lab: Lab, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Locator]]:
    """Return ``open() -> the sidebar`` of a new page of JupyterLab; the server is started with the first."""
    pages: list[Page] = []

    def open_(*, dark: bool = False) -> Locator:
        if not own_lab.url:
            own_lab.start()
        own_lab.set_theme("JupyterLab Dark" if dark else "JupyterLab Light")
        context = chromium.new_context(viewport={"width": 1280, "height": 900}, device_scale_factor=1.5)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(PATIENCE * 1000)
        page = context.new_page()
        pages.append(page)
        page.goto(f"{own_lab.url}lab?token={own_lab.token}&reset")
        page.wait_for_function("() => window.jupyterapp?.restored")
        # The launcher comes a little later than the rest, and takes the focus.
        page.wait_for_function("() => document.activeElement.closest('.jp-Launcher')")
        page.evaluate("() => window.jupyterapp.commands.execute('distdl:focus-sidebar')")
        found = page.locator("#distdl-sidebar")
        expect(found).to_be_visible()
        return found

    yield open_
    for number, page in enumerate(pages):
        page.screenshot(path=ARTIFACTS / f"last-{re.sub(r'[^a-z0-9]+', '-', request.node.name)}-{number}.png")
        page.context.close()


def picture(element: Locator, name: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    element.screenshot(path=ARTIFACTS / f"{name}.png")


def widen(bar: Locator, width: int) -> None:
    """Drag the edge of the sidebar."""
    box = bar.bounding_box()
    assert box is not None
    mouse, y = bar.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + box["width"] + 1, y)
    mouse.down()
    mouse.move(box["x"] + width + 1, y, steps=5)
    mouse.up()
    wait_for(lambda: (bar.bounding_box() or {}).get("width") == width, what=f"a sidebar of {width} px")


def rows(bar: Locator) -> Locator:
    return bar.get_by_role("option")


def focused(page: Page, selector: str) -> bool:
    return bool(page.evaluate("(selector) => document.activeElement.matches(selector)", selector))


def test_before_the_first_job_it_says_how_to_begin(bar: Callable[..., Locator]) -> None:
    shown = bar()
    expect(shown.get_by_text("No jobs yet")).to_be_visible()
    expect(shown.locator("code")).to_have_text("%%distributed -p 2")
    expect(shown.get_by_role("button", name="New job").last).to_be_focused()
    expect(shown.get_by_role("listbox")).to_be_hidden()
    widen(shown, 380)
    picture(shown, "sidebar-empty")
    shown.get_by_role("button", name="Open quickstart").click()
    expect(shown.page.locator(".jp-Notebook .jp-Cell").first).to_be_visible()
    expect(shown.page.locator(".jp-Notebook")).to_contain_text("%%distributed")
    assert shown.page.locator(".jp-Notebook .jp-OutputArea-output").count() == 0


def test_of_a_thousand_jobs_only_those_that_are_seen_are_drawn(
    bar: Callable[..., Locator], write: Callable[..., EventWriter]
) -> None:
    for number in range(1000):
        write(f"job-{number}", ended=True)
    shown = bar()
    expect(shown.locator(".dd-fold-jobs .dd-fold-count")).to_have_text("1000", timeout=PATIENCE * 1000)
    assert rows(shown).count() < 60
    first = rows(shown).first.get_attribute("data-id")
    page = shown.page
    page.keyboard.press("End")
    expect(shown.locator(".dd-job.dd-active")).to_have_attribute("aria-posinset", "1000")
    expect(shown.locator(".dd-job.dd-active")).to_be_in_viewport()
    assert rows(shown).count() < 60
    page.keyboard.press("Home")
    expect(shown.locator(".dd-job.dd-active")).to_have_attribute("data-id", str(first))
    page.keyboard.press("/")
    page.keyboard.type("job-77")
    expect(rows(shown).first).to_have_attribute("aria-setsize", "11")
    page.keyboard.press("Escape")
    expect(rows(shown).first).to_have_attribute("aria-setsize", "1000")
    page.keyboard.type("nothing of the kind")
    expect(shown.get_by_text("No job matches")).to_be_visible()


def place_in(listed: Locator, row: Locator) -> float:
    """How far a row stands below the top of its list: what stands above the list may still be growing."""
    outer, inner = listed.bounding_box(), row.bounding_box()
    assert outer is not None
    assert inner is not None
    return inner["y"] - outer["y"]


def test_news_take_neither_focus_nor_scroll_nor_an_open_menu(
    bar: Callable[..., Locator], write: Callable[..., EventWriter]
) -> None:
    for number in range(40):
        write(f"old-{number}", ended=True)
    writer = write("digits")
    shown = bar()
    page = shown.page
    expect(shown.locator(".dd-fold-jobs .dd-fold-count")).to_have_text("41", timeout=PATIENCE * 1000)
    shown.locator(".dd-jobs").evaluate("(list) => { list.scrollTop = 600; }")
    row = rows(shown).filter(has_text="old-20 ")
    row.click(button="right")
    menu = page.locator(".lm-Menu")
    expect(menu.get_by_text("Copy id")).to_be_visible()
    before = place_in(shown.locator(".dd-jobs"), row)
    for step in range(30):
        writer.write("metric", rank=0, step=step, values={"loss": 2 / (step + 1)})
    write("newer")
    expect(shown.locator(".dd-fold-jobs .dd-fold-count")).to_have_text("42", timeout=PATIENCE * 1000)
    expect(menu.get_by_text("Copy id")).to_be_visible()
    assert abs(before - place_in(shown.locator(".dd-jobs"), row)) < 2
    page.keyboard.press("Escape")
    expect(shown.get_by_role("listbox")).to_be_focused()
    write("newest")
    expect(shown.locator(".dd-fold-jobs .dd-fold-count")).to_have_text("43", timeout=PATIENCE * 1000)
    expect(shown.get_by_role("listbox")).to_be_focused()
    expect(shown.locator(".dd-job.dd-active")).to_contain_text("old-20")


SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)"


def submitted(own_lab: Lab, page: Page) -> JobFolder:
    """Submit a job over HTTP, from the page, and wait until it runs."""
    page.evaluate(
        """async (code) => {
            const { serverSettings } = window.jupyterapp.serviceManager;
            const { token, baseUrl } = serverSettings;
            const headers = { Authorization: `token ${token}`, 'Content-Type': 'application/json' };
            const options = { distributed_backend: 'plain' };
            const body = JSON.stringify({ code, name: 'sleeper', options });
            const response = await fetch(`${baseUrl}distdl/api/jobs`, { method: 'POST', headers, body });
            if (!response.ok) throw new Error(await response.text());
        }""",
        SLEEP,
    )
    jobs = JobStore(own_lab.home / "distdl")
    folder: JobFolder = wait_for(lambda: next(iter(jobs.folders()), None), what="the job")
    wait_for(lambda: processes.marked(folder.id), what="a process of the job")
    return folder


def test_a_job_is_handled_with_the_keys_alone(bar: Callable[..., Locator], own_lab: Lab) -> None:
    own_lab.settings(SETTINGS, {"confirmCancel": "always"})
    shown = bar()
    page = shown.page
    folder = submitted(own_lab, page)
    expect(rows(shown)).to_have_attribute("aria-label", re.compile(r"^sleeper \w+, Running"), timeout=PATIENCE * 1000)
    expect(page.get_by_role("button", name="1 job active")).to_be_visible()
    page.evaluate("() => window.jupyterapp.commands.execute('distdl:focus-sidebar')")
    page.keyboard.press("Control+c")
    wait_for(lambda: page.evaluate("() => navigator.clipboard.readText()") == folder.id, what="the id to be copied")
    page.keyboard.press("Delete")
    question = shown.get_by_role("group", name="Cancel sleeper?")
    expect(question.get_by_role("button", name="No")).to_be_focused()
    page.keyboard.press("Escape")
    expect(shown.get_by_role("listbox")).to_be_focused()
    assert processes.marked(folder.id)
    page.keyboard.press("Delete")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(rows(shown)).to_have_attribute("aria-label", re.compile("Canceled"), timeout=PATIENCE * 1000)
    expect(shown.get_by_role("status")).to_have_text(re.compile(r"^sleeper \w+: Canceled$"))
    assert not until_gone(folder.id)
    expect(shown.get_by_role("listbox")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(f"#distdl-job-{folder.id}")).to_be_visible()
    page.evaluate("() => window.jupyterapp.commands.execute('distdl:focus-sidebar')")
    page.keyboard.press("Delete")
    expect(shown.get_by_role("group", name=re.compile("^Delete 1 job, sleeper"))).to_be_visible()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(shown.get_by_text("No jobs yet")).to_be_visible(timeout=PATIENCE * 1000)
    assert not folder.path.exists()


def test_the_menu_of_a_row_puts_a_cell_into_the_notebook(
    bar: Callable[..., Locator], write: Callable[..., EventWriter], own_lab: Lab
) -> None:
    write("digits", ended=True)
    own_lab.write("book.ipynb", ["x = 1"])
    shown = bar()
    page = shown.page
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:open', { path: 'book.ipynb' })")
    expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(1)
    page.evaluate("() => window.jupyterapp.commands.execute('distdl:focus-sidebar')")
    page.keyboard.press("ContextMenu")
    page.locator(".lm-Menu").get_by_text("Insert code").click()
    expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(2)
    (folder,) = JobStore(own_lab.home / "distdl").folders()
    expect(page.locator(".jp-Notebook .jp-Cell").last).to_contain_text(f'job = attach("{folder.id}")')


def test_a_cluster_gets_a_name_and_loses_it(bar: Callable[..., Locator]) -> None:
    shown = bar()
    clusters = shown.get_by_role("list", name="Clusters").get_by_role("listitem")
    expect(clusters).to_have_count(1, timeout=PATIENCE * 1000)
    shown.get_by_role("button", name="Add cluster").click()
    form = shown.get_by_role("form", name="Add cluster")
    name = form.get_by_role("textbox", name="Name")
    expect(name).to_be_focused()
    form.get_by_role("combobox", name="Kind").select_option("local")
    form.get_by_role("button", name="Add").click()
    expect(form).to_contain_text("This is needed.")
    name.fill("local")
    form.get_by_role("button", name="Add").click()
    expect(name).to_have_attribute("aria-invalid", "true")
    expect(form.locator(".dd-schema-field").first).to_contain_text("local is a kind of cluster")
    picture(shown, "sidebar-add-cluster")
    name.fill("mini")
    page = shown.page
    page.keyboard.press("Enter")
    expect(form).to_be_hidden()
    mini = clusters.filter(has_text="mini")
    expect(mini).to_be_visible(timeout=PATIENCE * 1000)
    mini.hover()
    mini.get_by_role("button", name="Remove").click()
    question = mini.get_by_role("group", name="Remove mini with 1 node from the list?")
    expect(question.get_by_role("button", name="Keep")).to_be_focused()
    question.get_by_role("button", name="Remove").click()
    expect(mini).to_have_count(0, timeout=PATIENCE * 1000)
    expect(clusters).to_have_count(1)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_narrow_sidebars_keep_what_is_most_worth_knowing(
    bar: Callable[..., Locator],
    write: Callable[..., EventWriter],
    dark: bool,
) -> None:
    write("digits", ended=True)
    writer = write("resnet50-synth")
    writer.write("progress", rank=0, done=62, total=100, unit="epoch")
    for step in range(30):
        writer.write("metric", rank=0, step=step, values={"loss": 2 / (step + 1)})
    shown = bar(dark=dark)
    row = rows(shown).filter(has_text="resnet50-synth")
    expect(row).to_contain_text("62 %", timeout=PATIENCE * 1000)
    line = row.locator(".dd-job-line")
    for width, curve, value, begins in (
        (380, True, True, "local"),
        (300, False, True, "local"),
        (250, False, False, "62 %"),
    ):
        widen(shown, width)
        expect(row.locator(".dd-spark")).to_be_visible(visible=curve)
        expect(row.locator(".dd-job-value")).to_be_visible(visible=value)
        strong, place = line.locator(".dd-job-strong").bounding_box(), line.locator(".dd-job-place").bounding_box()
        assert strong is not None
        assert place is not None
        assert (place["x"] < strong["x"]) is (begins == "local")
        overflow = shown.evaluate("(bar) => bar.scrollWidth - bar.clientWidth")
        assert overflow <= 0
        picture(shown, f"sidebar-{width}-{'dark' if dark else 'light'}")


def test_what_runs_is_listed_with_what_else_runs_and_canceled_there(bar: Callable[..., Locator], own_lab: Lab) -> None:
    own_lab.settings(SETTINGS, {"confirmCancel": "never"})
    shown = bar()
    page = shown.page
    folder = submitted(own_lab, page)
    page.evaluate("() => window.jupyterapp.shell.activateById('jp-running-sessions')")
    item = page.locator(".jp-RunningSessions-item", has_text="sleeper").last
    expect(item).to_be_visible(timeout=PATIENCE * 1000)
    item.hover()
    item.locator(".jp-RunningSessions-itemShutdown").click()
    assert not until_gone(folder.id)
    expect(item).to_have_count(0, timeout=PATIENCE * 1000)
    expect(page.get_by_role("button", name="1 job active")).to_have_count(0)
