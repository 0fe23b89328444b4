"""A page without JupyterLab that draws what a notebook draws: the real views, with real widgets and a real server.

``static_page(cells)`` runs cells in an IPython shell of this process and shows their widgets in JupyterLab's look. What
replaces JupyterLab is its transport and the frame around an output (static_page.html).
"""

from __future__ import annotations

import atexit
import json
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import comm
import ipywidgets
import pytest
from comm.base_comm import BaseComm
from IPython.core.interactiveshell import InteractiveShell
from playwright.sync_api import Browser, Locator, Page

from tests.front_end import ROOT, bundle
from tests.server.running import TOKEN, serve

HTML = Path(__file__).with_suffix(".html")
THEMES = Path(sys.prefix, "share/jupyter/lab/themes/@jupyterlab")


class Wire:
    """The messages of all widgets in the order in which they were sent, for pages to follow from the first on."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self._grew = threading.Condition()
        self._closed = False
        self.comms: dict[str, Comm] = {}

    def comm(self, *args: Any, **kwargs: Any) -> Comm:
        """Make the comm of a new widget."""
        return Comm(self, *args, **kwargs)

    def put(self, message: dict[str, Any]) -> None:
        with self._grew:
            self._messages.append(json.dumps(message).encode())
            self._grew.notify_all()

    def follow(self) -> Iterator[bytes]:
        """Yield every message until the wire is closed."""
        for at in range(sys.maxsize):
            with self._grew:
                self._grew.wait_for(lambda at=at: self._closed or len(self._messages) > at)
                if self._closed:
                    return
                message = self._messages[at]
            yield message

    def take(self, message: dict[str, Any]) -> None:
        """Hand a page's message to its widget."""
        # One page serves all tests: a last word of an earlier test's widget belongs to no comm of this one.
        if (comm := self.comms.get(message["id"])) is not None:
            comm.handle_msg({"content": {"data": message["data"]}, "buffers": []})

    def close(self) -> None:
        with self._grew:
            self._closed = True
            self._messages.clear()
            self._grew.notify_all()


class Comm(BaseComm):
    """A widget's end of the wire."""

    def __init__(self, wire: Wire, *args: Any, **kwargs: Any) -> None:
        self._wire = wire
        super().__init__(*args, **kwargs)
        wire.comms[self.comm_id] = self

    def publish_msg(self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **_: Any) -> None:
        parts = [b64encode(part).decode() for part in buffers or ()]
        self._wire.put({"type": msg_type, "id": self.comm_id, "data": data, "buffers": parts})


class Handler(BaseHTTPRequestHandler):
    """Answers a page: its HTML, JupyterLab's themes, the stream of a wire's messages, and messages that it sends."""

    wires: ClassVar[list[Wire]] = []
    #: The folder with the bundled views.
    views: ClassVar[Path]

    def do_GET(self) -> None:
        if self.path.startswith("/wires/"):
            self._begin("text/event-stream")
            with suppress(ConnectionError):  # the page has gone on to the next wire
                for message in self._wire().follow():
                    self.wfile.write(b"data: " + message + b"\n\n")
        elif self.path.startswith("/views."):
            self._begin("text/css" if self.path.endswith(".css") else "text/javascript")
            self.wfile.write((self.views / self.path[1:]).read_bytes())
        elif self.path.endswith(".css"):
            self._begin("text/css")
            self.wfile.write((THEMES / f"{self.path[1:-4]}-extension" / "index.css").read_bytes())
        else:
            self._begin("text/html")
            self.wfile.write(HTML.read_bytes())

    def do_POST(self) -> None:
        self._wire().take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._begin("text/plain")

    def _wire(self) -> Wire:
        return self.wires[int(self.path.removeprefix("/wires/"))]

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class StaticPage:
    """An open page and the shell whose widgets it shows."""

    def __init__(self, page: Page, wire: Wire, shell: InteractiveShell) -> None:
        self.page = page
        self._wire, self._shell = wire, shell
        self.errors: list[str] = []

    def run(self, source: str) -> Any:
        """Run a cell and show its value when that is a widget; returns the value. An exception fails the test."""
        ran = self._shell.run_cell(source, store_history=True)
        ran.raise_error()
        shown = ran.result.model_id if isinstance(ran.result, ipywidgets.Widget) else None
        self._wire.put({"type": "cell", "number": ran.execution_count, "source": source, "id": shown})
        return ran.result

    def cell(self, number: int) -> Locator:
        """The cell at a place, from 0."""
        return self.page.locator(".jp-Cell").nth(number)

    def theme(self, *, dark: bool) -> None:
        """Put the page into one of JupyterLab's themes."""
        # It is looked at whether it is there: Chromium 150 forgets the promise of a busy page.
        self.page.evaluate("(name) => void setTheme(name)", "theme-dark" if dark else "theme-light")
        self.page.wait_for_function("(dark) => document.body.dataset.jpThemeLight === String(!dark)", arg=dark)


@pytest.fixture(scope="package")
def tab(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One page for all tests of a worker: a new one takes long, and so does the drawing code that it loads once."""
    Handler.views = tmp_path_factory.mktemp("views")
    bundle("site", Handler.views / "views.js")
    bundle(ROOT / "style" / "widgets.css", Handler.views / "views.css")
    context = chromium.new_context(device_scale_factor=1.5)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}")
        yield page
        context.close()
        server.shutdown()


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """What the widgets of this test send on."""
    wire = Wire()
    Handler.wires.append(wire)
    monkeypatch.setattr(comm, "create_comm", wire.comm)
    yield wire
    ipywidgets.Widget.close_all()
    wire.close()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """An IPython shell with a home of its own."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    shell = InteractiveShell.instance()
    yield shell
    atexit.unregister(shell.atexit_operations)
    shell.atexit_operations()
    InteractiveShell.clear_instance()


@pytest.fixture
def static_page(tab: Page, wire: Wire, shell: InteractiveShell, tmp_path: Path) -> Iterator[Callable[..., StaticPage]]:
    """Return ``open(cells, *, width=1100, height=900, dark=False) -> StaticPage``."""
    shown = StaticPage(tab, wire, shell)

    def hear(error: Any) -> None:
        shown.errors.append(str(error))

    def open_(cells: list[str], *, width: int = 1100, height: int = 900, dark: bool = False) -> StaticPage:
        tab.set_viewport_size({"width": width, "height": height})
        shown.theme(dark=dark)
        tab.evaluate("([wire, server]) => follow(wire, server)", [Handler.wires.index(wire), [server.url, TOKEN]])
        for source in cells:
            shown.run(source)
        return shown

    tab.on("pageerror", hear)
    with serve(tmp_path, allow_origin="*") as server:
        yield open_
        tab.evaluate("() => follow(null)")
    tab.remove_listener("pageerror", hear)
