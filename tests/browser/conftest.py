"""A real JupyterLab and a real Chromium for stories that a user would tell.

``lab`` is the server of the installed wheel, with its own home, settings and data directory, one for all tests of a
worker; a file that needs another one overrides ``lab`` by ``own_lab``. ``notebook(cells, ...)`` opens a notebook in a
page of its own, ``desk(cells, ...)`` in the whole of JupyterLab; ``shared_page`` is one page of JupyterLab without a
kernel for all tests of a file. A test that fails leaves a picture in ``tests/artifacts`` (not kept by git).
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
import psutil
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.node import processes
from tests.browser.pages import Sidebar
from tests.conftest import wait_for
from tests.installation import Installation
from tests.widgets import recorded

ARTIFACTS = Path(__file__).parent.parent / "artifacts"
#: Everything is slow on a small machine that others share.
TIMEOUT = 90.0
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
]
expect.set_options(timeout=TIMEOUT * 1000)


def _removed(path: Path) -> bool:
    """Remove a folder as far as possible, and say whether it is gone: a killed process may still write to it."""
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


class Lab:
    """The JupyterLab of an installation: where it listens, which directories it uses, how it is started and stopped."""

    token = "story"
    #: As a user has it behind a JupyterHub.
    base_url = "/user/ann/"

    def __init__(self, installed: Installation, home: Path) -> None:
        self.installed = installed
        self.home = home
        self.root = home / "notebooks"
        self.root.mkdir()
        self.settings("@jupyterlab/apputils-extension:notification", {"fetchNews": "false", "checkForUpdates": False})
        self.settings("@jupyterlab/docmanager-extension:plugin", {"autosave": False})
        self.url = ""
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server; once it was started, it listens at the same place again."""
        port = urlsplit(self.url).port or 0
        command = [
            str(self.installed.python), "-m", "jupyterlab", "--allow-root", "--no-browser", f"--port={port}",
            "--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={self.root}",
            f"--IdentityProvider.token={self.token}", "--LabApp.expose_app_in_browser=True",
            f"--ServerApp.base_url={self.base_url}",
        ]  # fmt: skip
        environment = self.installed.environment(**self.variables)
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.root)
        self.url = self._address(self._server)

    def stop(self) -> None:
        """End the server, and its kernels with it; a job goes on."""
        server, self._server = self._server, None
        if server is None:
            return
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        for left in self._listening():
            left.unlink()

    def kill(self) -> None:
        """Kill the server as it is, without a word to its kernels."""
        server, self._server = self._server, None
        assert server is not None
        server.kill()
        server.wait()
        for left in self._listening():
            left.unlink()

    def end(self) -> None:
        """Kill the server and its kernels, which would take seconds to end by themselves."""
        if self._server is not None:
            kernels = self.process.children()
            self.kill()
            for kernel in kernels:
                with suppress(psutil.NoSuchProcess):
                    kernel.kill()

    def start_again(self) -> None:
        """Start the server if a test has left it dead."""
        if self._server is None:
            self.start()

    def run(self, *arguments: str) -> str:
        """Run the command line as the user of this server; return what it printed."""
        return self.installed.run("distdl", *arguments, **self.variables)

    @property
    def store(self) -> JobStore:
        return JobStore(self.home / "distdl")

    def newest(self) -> JobFolder:
        """Wait for a job, and return the one that was submitted last."""
        folder: JobFolder = wait_for(lambda: next(iter(self.store.list_folders()), None), what="a job")
        return folder

    def forget_jobs(self) -> None:
        """End and remove all jobs."""
        for folder in self.store.list_folders():
            processes.kill_job(folder.id)
            wait_for(lambda path=folder.path: _removed(path), what=f"{folder.id} removed")

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that name this user's directories."""
        return {
            "HOME": str(self.home),
            "JUPYTER_CONFIG_DIR": str(self.home / "config"),
            "JUPYTER_DATA_DIR": str(self.home / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.home / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(self.home / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(self.home / "workspaces"),
            "IPYTHONDIR": str(self.home / "ipython"),
            "DISTDL_HOME": str(self.home / "distdl"),
        }

    @property
    def process(self) -> psutil.Process:
        """The server's process."""
        assert self._server is not None
        return psutil.Process(self._server.pid)

    @property
    def log(self) -> Path:
        """What the server printed."""
        return self.home / "server.log"

    def set_theme(self, name: str) -> None:
        """Choose the theme that the next page opens with."""
        self.settings("@jupyterlab/apputils-extension:themes", {"theme": name})

    def settings(self, plugin: str, values: dict[str, Any]) -> None:
        """Write a user's settings of a plugin, for the next page."""
        package, _, name = plugin.partition(":")
        path = self.home / "settings" / package / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))

    def write(self, name: str, cells: list[str], metadata: dict[str, Any] | None = None) -> None:
        """Put a notebook of code cells into the server's root."""
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
        book.metadata.update({"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
        book.metadata.update(metadata or {})
        nbformat.write(book, self.root / name)

    def _listening(self) -> list[Path]:
        return list((self.home / "runtime").glob("jpserver-*.json"))

    def _address(self, server: subprocess.Popen[bytes]) -> str:
        """Wait until the server has written where it listens, which it does a little before it listens."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and server.poll() is None:
            for file in self._listening():
                with suppress(ValueError, KeyError, OSError):
                    url = str(json.loads(file.read_text())["url"])
                    parts = urlsplit(url)
                    socket.create_connection((parts.hostname, parts.port), timeout=1.0).close()
                    return url
            time.sleep(0.05)
        raise RuntimeError(f"JupyterLab did not start:\n{self.log.read_text()[-3000:]}")


@contextmanager
def _lab(installed: Installation, home: Path) -> Iterator[Lab]:
    lab = Lab(installed, home)
    try:
        yield lab
    finally:
        lab.forget_jobs()
        lab.end()


# Of the package, not of the session: while Playwright's is open, its event loop runs in this thread, and no other can.
@pytest.fixture(scope="package")
def lab(installed: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab from the installed wheel, without Node.js and without the source tree."""
    with _lab(installed, tmp_path_factory.mktemp("lab")) as lab:
        lab.start()
        yield lab


@pytest.fixture
def own_lab(installed: Installation, tmp_path: Path) -> Iterator[Lab]:
    """A JupyterLab for one test, not started yet: for what its environment or its user's configuration must hold."""
    with _lab(installed, tmp_path) as lab:
        yield lab


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    with open_chromium() as browser:
        yield browser


@contextmanager
def open_chromium() -> Iterator[Browser]:
    """Start Chromium. Raises RuntimeError where there is none."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        raise RuntimeError("The browser tests need Chromium. Install Debian's package chromium.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=_FLAGS)
        yield browser
        browser.close()


class Book:
    """A page of JupyterLab, mostly with an open notebook."""

    artifacts = ARTIFACTS

    def __init__(self, page: Page, lab: Lab) -> None:
        self.page = page
        self.lab = lab
        self.name = ""
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(error.stack or str(error)))
        # What a failed test shows of them.
        page.on("requestfailed", lambda request: print(f"{request.method} {request.url}: {request.failure}"))

    def open(self, name: str) -> None:
        """Load the page of the notebook ``name`` (one document, without side bars) and wait for its kernel."""
        self.page.goto(f"{self.lab.url}doc/tree/{name}?token={self.lab.token}&reset", timeout=TIMEOUT * 1000)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=TIMEOUT * 1000)
        self.kernel_idle()

    def open_desk(self, name: str, *, reset: bool = True) -> None:
        """Load JupyterLab as a whole, in a workspace of its own, with the notebook ``name``."""
        self.name = name
        where = f"{self.lab.url}lab/workspaces/{Path(name).stem}/tree/{name}?token={self.lab.token}"
        self.page.goto(where + ("&reset" if reset else ""), timeout=TIMEOUT * 1000)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=TIMEOUT * 1000)
        self.kernel_idle()

    def open_lab(self, *, reset: bool = True) -> None:
        """Load JupyterLab as a whole, in a workspace named like ``name``, without a notebook and without a kernel."""
        where = f"{self.lab.url}lab/workspaces/{Path(self.name).stem}?token={self.lab.token}"
        self.page.goto(where + ("&reset" if reset else ""), timeout=TIMEOUT * 1000)
        self.page.wait_for_function("() => window.jupyterapp?.restored.then(() => true)")
        if reset:  # The launcher comes a little later than the rest, and takes the focus.
            self.page.wait_for_function("() => document.activeElement.closest('.jp-Launcher') !== null")

    def command(self, name: str, **args: Any) -> None:
        """Execute a command and wait for it; what it returns stays in the page, it may be a widget of any size."""
        self.page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => null)", [name, args]
        )

    def open_job(self, id_: str) -> Locator:
        """Open the page of a job and return it."""
        self.command("distdl:open-job", id=id_)
        page = self.page.locator(f"#distdl-job-{id_}")
        page.wait_for()
        return page

    def sidebar(self) -> Sidebar:
        """Open the sidebar of distributed training, which takes the focus."""
        self.command("distdl:focus-sidebar")
        bar = Sidebar(self.page)
        expect(bar.root).to_be_visible()
        return bar

    def theme(self, *, dark: bool) -> None:
        """Change the theme of this page, and wait until it is seen.

        JupyterLab covers the page meanwhile, and takes its cover away once too often when the next change comes before
        that: the page would have an error that is not ours.
        """
        name = "JupyterLab Dark" if dark else "JupyterLab Light"
        self.command("apputils:change-theme", theme=name)
        expect(self.page.locator("body")).to_have_attribute("data-jp-theme-name", name)
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)

    def close_all(self) -> None:
        """Close everything in the main area, without a question, and end its kernels."""
        self.page.evaluate(
            """async () => {
                const { shell, serviceManager } = window.jupyterapp;
                for (const widget of [...shell.widgets('main')]) widget.dispose();
                await serviceManager.sessions.shutdownAll();
            }"""
        )

    def layout_saved(self, text: str) -> None:
        """Wait until the workspace that JupyterLab keeps on the server holds a text; it is written some time later."""
        url = f"{self.lab.url}lab/api/workspaces/{Path(self.name).stem}"
        request = urllib.request.Request(url, headers={"Authorization": f"token {self.lab.token}"})

        def there() -> bool:
            with urllib.request.urlopen(request) as answer:
                return text in json.dumps(json.load(answer), separators=(",", ":"))

        wait_for(there, what=f"{text} in the saved layout")

    def save(self) -> None:
        """Save the notebook."""
        self.command("docmanager:save")

    def choose(self, number: int) -> None:
        """Make a cell the active one."""
        self.page.evaluate("(n) => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = n; }", number)

    def kernel_idle(self, timeout: float = TIMEOUT) -> None:
        """Wait until the kernel is there and free."""
        self.page.wait_for_function(
            """() => {
                const panel = window.jupyterapp.shell.currentWidget;
                return panel?.sessionContext?.session?.kernel?.status === 'idle';
            }""",
            timeout=timeout * 1000,
        )

    def run_all(self) -> None:
        """Run all cells, without waiting for them."""
        self.page.evaluate("() => { void window.jupyterapp.commands.execute('notebook:run-all-cells'); }")

    def run(self, number: int) -> None:
        """Run one cell and wait until the kernel is free again."""
        self.page.evaluate(
            """async (number) => {
                const { commands, shell } = window.jupyterapp;
                shell.currentWidget.content.activeCellIndex = number;
                await commands.execute('notebook:run-cell');
            }""",
            number,
        )
        self.kernel_idle()

    def cell(self, number: int) -> Locator:
        """The cell at a place, from 0."""
        return self.page.locator(".jp-Notebook:visible .jp-Cell").nth(number)

    def output(self, number: int) -> Locator:
        """What a cell has put out."""
        return self.cell(number).locator(".jp-OutputArea")

    def copied(self) -> str:
        """Wait for text in the clipboard and return it."""
        return str(wait_for(lambda: self.page.evaluate("() => navigator.clipboard.readText()"), what="copied text"))

    def picture(self, name: str, of: Locator | None = None) -> Path:
        """Take a picture of the page or of one element and return where it lies."""
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{name}.png"
        (of or self.page).screenshot(path=path)
        return path


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test failed: then its pages are worth a last picture."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


def new_book(chromium: Browser, lab: Lab, width: int, height: int, scale: float = 1.5) -> Book:
    """Return an empty page."""
    context = chromium.new_context(
        viewport={"width": width, "height": height}, device_scale_factor=scale, reduced_motion="reduce"
    )
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(TIMEOUT * 1000)
    return Book(context.new_page(), lab)


@pytest.fixture
def books(lab: Lab, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Book]]:
    """Return a function that makes a page for a new notebook of the given cells."""
    made: list[Book] = []
    title = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())

    def make(cells: list[str], width: int, height: int, *, dark: bool, scale: float) -> Book:
        lab.set_theme("JupyterLab Dark" if dark else "JupyterLab Light")
        book = new_book(chromium, lab, width, height, scale)
        book.name = f"{title}-{len(made)}.ipynb"
        lab.write(book.name, cells)
        made.append(book)
        return book

    yield make
    for number, book in enumerate(made):
        if request.node.stash.get(_FAILED, False):
            book.picture(f"last-{title}-{number}")
        _shut_kernel(book)
        book.page.context.close()


@pytest.fixture(scope="module")
def _module_page(lab: Lab, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Book]:
    lab.set_theme("JupyterLab Light")
    book = new_book(chromium, lab, 1440, 980)
    book.name = Path(request.node.name).stem
    book.open_lab()
    yield book
    book.page.context.close()


@pytest.fixture
def shared_page(_module_page: Book, request: pytest.FixtureRequest) -> Iterator[Book]:
    """JupyterLab as a whole, without a kernel, loaded once for all tests of a file; its main area is empty."""
    _module_page.errors.clear()
    yield _module_page
    if request.node.stash.get(_FAILED, False):
        _module_page.picture(f"last-{request.node.name}")
    _module_page.close_all()


def _opener(books: Callable[..., Book], way: Callable[[Book, str], None], size: tuple[int, int]) -> Callable[..., Book]:
    def open_(
        cells: list[str], *, width: int = size[0], height: int = size[1], dark: bool = False, scale: float = 1.5
    ) -> Book:
        book = books(cells, width, height, dark=dark, scale=scale)
        way(book, book.name)
        return book

    return open_


@pytest.fixture
def notebook(books: Callable[..., Book]) -> Callable[..., Book]:
    """Return ``open(cells, *, width=1100, height=900, dark=False, scale=1.5) -> Book``, without side bars."""
    return _opener(books, Book.open, (1100, 900))


@pytest.fixture
def desk(books: Callable[..., Book]) -> Callable[..., Book]:
    """Return ``open(cells, *, width=1440, height=980, dark=False, scale=1.5) -> Book``, the whole of JupyterLab."""
    return _opener(books, Book.open_desk, (1440, 980))


def _shut_kernel(book: Book) -> None:
    book.page.evaluate(
        """async () => {
            const panel = window.jupyterapp?.shell?.currentWidget;
            await panel?.sessionContext?.shutdown?.();
        }"""
    )


@pytest.fixture
def told(lab: Lab) -> Iterator[Callable[[str], recorded.Recording]]:
    """Return a function that writes a job of a kind, with the real writer, for the server to show."""
    with recorded.telling(lab.store) as write:
        yield write


@pytest.fixture
def tell() -> Iterator[Callable[..., recorded.Recording]]:
    """Return a function that begins a recorded job."""
    with recorded.telling() as tell_:
        yield tell_
