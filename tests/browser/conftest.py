"""A real JupyterLab and a real Chromium for stories that a user would tell.

``lab`` is a server with its own home, settings and data directory; ``notebook(cells, ...)`` opens a notebook of it in
a page of its own; ``run_all`` runs the cells as the menu would. Pictures go to ``tests/artifacts`` (not kept by git).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from distdl_jupyter.clusters import processes
from distdl_jupyter.core.store import JobStore

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


@dataclass
class Lab:
    """A running JupyterLab: where it listens and which directories it uses."""

    url: str
    token: str
    root: Path
    home: Path

    def set_theme(self, name: str) -> None:
        """Choose the theme that the next page opens with."""
        self._settings("apputils-extension/themes", {"theme": name})

    def _settings(self, plugin: str, values: dict[str, Any]) -> None:
        path = self.home / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))

    def write(self, name: str, cells: list[str], metadata: dict[str, Any] | None = None) -> None:
        """Put a notebook of code cells into the server's root."""
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
        book.metadata.update({"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
        book.metadata.update(metadata or {})
        nbformat.write(book, self.root / name)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    home = tmp_path_factory.mktemp("lab")
    root = home / "notebooks"
    root.mkdir()
    token = "story"
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "JPY", "DISTDL"))},
        "HOME": str(home),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        "DISTDL_HOME": str(home / "distdl"),
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ServerApp.ip=127.0.0.1", "--port=0",
        f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={token}", "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    started = Lab("", token, root, home)
    started._settings("apputils-extension/notification", {"fetchNews": "false", "checkForUpdates": False})
    started._settings("docmanager-extension/plugin", {"autosave": False})
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=root)
    try:
        started.url = _address(home / "runtime", server, home / "server.log")
        yield started
    finally:
        for folder in JobStore(home / "distdl").folders():
            processes.kill_all(folder.id)
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _address(runtime: Path, server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server has written where it listens."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            try:
                return str(json.loads(file.read_text())["url"])
            except (ValueError, KeyError):
                break
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


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

    def __init__(self, page: Page, lab: Lab) -> None:
        self.page = page
        self.lab = lab
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, name: str) -> None:
        """Load the page of the notebook ``name`` (one document, without side bars) and wait for its kernel."""
        self.page.goto(f"{self.lab.url}doc/tree/{name}?token={self.lab.token}&reset", timeout=PATIENCE * 1000)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE * 1000)
        self.kernel_idle()

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
def notebook(lab: Lab, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Book]]:
    """Return ``open(cells, *, width=1100, height=900, dark=False, scale=1.5) -> Book``."""
    books: list[Book] = []

    def open_(
        cells: list[str], *, width: int = 1100, height: int = 900, dark: bool = False, scale: float = 1.5
    ) -> Book:
        lab.set_theme("JupyterLab Dark" if dark else "JupyterLab Light")
        name = f"{re.sub(r'[^a-z0-9]+', '-', request.node.name.lower())}-{len(books)}.ipynb"
        lab.write(name, cells)
        context = chromium.new_context(
            viewport={"width": width, "height": height}, device_scale_factor=scale, reduced_motion="no-preference"
        )
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(PATIENCE * 1000)
        book = Book(context.new_page(), lab)
        books.append(book)
        book.open(name)
        return book

    yield open_
    for number, book in enumerate(books):
        book.picture(f"last-{re.sub(r'[^a-z0-9]+', '-', request.node.name.lower())}-{number}")
        _shut_kernel(book)
        book.page.context.close()


def _shut_kernel(book: Book) -> None:
    book.page.evaluate(
        """async () => {
            const panel = window.jupyterapp?.shell?.currentWidget;
            await panel?.sessionContext?.shutdown?.();
        }"""
    )
