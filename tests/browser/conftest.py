"""A real JupyterLab and a real Chromium for stories that a user would tell.

``lab`` is the server of the installed wheel, with its own home, settings and data directory; ``notebook(cells, ...)``
opens a notebook of it in a page of its own; ``run_all`` runs the cells as the menu would. Pictures go to
``tests/artifacts`` (not kept by git).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nbformat
import psutil
import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from distdl_jupyter.clusters import processes
from distdl_jupyter.core.store import JobStore
from tests.installation import Installation

ARTIFACTS = Path(__file__).parent.parent / "artifacts"
#: Everything is slow on a small machine that others share.
PATIENCE = 90.0
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
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(command, env=self._environment(), stdout=log, stderr=log, cwd=self.root)
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

    def start_again(self) -> None:
        """Start the server if a test has left it dead."""
        if self._server is None:
            self.start()

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

    def _environment(self) -> dict[str, str]:
        return self.installed.environment(
            HOME=str(self.home),
            JUPYTER_CONFIG_DIR=str(self.home / "config"),
            JUPYTER_DATA_DIR=str(self.home / "data"),
            JUPYTER_RUNTIME_DIR=str(self.home / "runtime"),
            JUPYTERLAB_SETTINGS_DIR=str(self.home / "settings"),
            JUPYTERLAB_WORKSPACES_DIR=str(self.home / "workspaces"),
            IPYTHONDIR=str(self.home / "ipython"),
            DISTDL_HOME=str(self.home / "distdl"),
        )

    def _listening(self) -> list[Path]:
        return list((self.home / "runtime").glob("jpserver-*.json"))

    def _address(self, server: subprocess.Popen[bytes]) -> str:
        """Wait until the server has written where it listens."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and server.poll() is None:
            for file in self._listening():
                try:
                    return str(json.loads(file.read_text())["url"])
                except (ValueError, KeyError):
                    break
            time.sleep(0.2)
        raise RuntimeError(f"JupyterLab did not start:\n{self.log.read_text()[-3000:]}")


@pytest.fixture(scope="session")
def lab(installed: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab from the installed wheel, without Node.js and without the source tree."""
    lab = Lab(installed, tmp_path_factory.mktemp("lab"))
    lab.settings("@jupyterlab/apputils-extension:notification", {"fetchNews": "false", "checkForUpdates": False})
    lab.settings("@jupyterlab/docmanager-extension:plugin", {"autosave": False})
    try:
        lab.start()
        yield lab
    finally:
        for folder in JobStore(lab.home / "distdl").folders():
            processes.kill_all(folder.id)
        lab.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        raise RuntimeError("The browser tests need Chromium. Install Debian's package chromium.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=_FLAGS)
        yield browser
        browser.close()


class Book:
    """An open notebook."""

    artifacts = ARTIFACTS

    def __init__(self, page: Page, lab: Lab) -> None:
        self.page = page
        self.lab = lab
        self.name = ""
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, name: str) -> None:
        """Load the page of the notebook ``name`` (one document, without side bars) and wait for its kernel."""
        self.page.goto(f"{self.lab.url}doc/tree/{name}?token={self.lab.token}&reset", timeout=PATIENCE * 1000)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE * 1000)
        self.kernel_idle()

    def open_desk(self, name: str, *, reset: bool = True) -> None:
        """Load JupyterLab as a whole, in a workspace of its own, with the notebook ``name``."""
        self.name = name
        where = f"{self.lab.url}lab/workspaces/{Path(name).stem}/tree/{name}?token={self.lab.token}"
        self.page.goto(where + ("&reset" if reset else ""), timeout=PATIENCE * 1000)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE * 1000)
        self.kernel_idle()

    def open_job(self, id_: str) -> Locator:
        """Open the page of a job and return it."""
        self.page.evaluate("(id) => window.jupyterapp.commands.execute('distdl:open-job', { id })", id_)
        page = self.page.locator(f"#distdl-job-{id_}")
        page.wait_for()
        return page

    def save(self) -> None:
        """Save the notebook."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    def kernel_idle(self, timeout: float = PATIENCE) -> None:
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
        return self.page.locator(".jp-Notebook .jp-Cell").nth(number)

    def picture(self, name: str, of: Locator | None = None) -> Path:
        """Take a picture of the page or of one element and return where it lies."""
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{name}.png"
        (of or self.page).screenshot(path=path)
        return path


@pytest.fixture
def books(lab: Lab, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Book]]:
    """Return a function that makes a page for a new notebook of the given cells."""
    made: list[Book] = []
    title = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())

    def make(cells: list[str], width: int, height: int, *, dark: bool, scale: float) -> Book:
        lab.set_theme("JupyterLab Dark" if dark else "JupyterLab Light")
        context = chromium.new_context(
            viewport={"width": width, "height": height}, device_scale_factor=scale, reduced_motion="no-preference"
        )
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(PATIENCE * 1000)
        book = Book(context.new_page(), lab)
        book.name = f"{title}-{len(made)}.ipynb"
        lab.write(book.name, cells)
        made.append(book)
        return book

    yield make
    for number, book in enumerate(made):
        book.picture(f"last-{title}-{number}")
        _shut_kernel(book)
        book.page.context.close()


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
