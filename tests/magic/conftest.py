"""A real kernel that runs cells as a front end would have them run."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
TIMEOUT = 120


@dataclass
class Ran:
    """What one cell left behind."""

    text: str = ""
    shown: list[dict[str, Any]] = field(default_factory=list)
    value: dict[str, Any] | None = None
    error: str = ""
    traceback: str = ""
    pager: str = ""


class Kernel:
    """One real ipykernel in a folder of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        # A port that is free now may be another process's when the kernel binds it; a socket's file is its own.
        self.sockets = tempfile.mkdtemp(prefix="kernel-", dir="/tmp")
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{self.sockets}/k")
        self.manager.start_kernel(cwd=str(folder), env=environment)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)

    def run(
        self, code: str, *, cell_id: str = "", during: Callable[[str], None] | None = None, by_program: bool = False
    ) -> Ran:
        """Run a cell to its end; ``during`` gets every piece of text as it comes; ``by_program``: as nbclient does."""
        ran = Ran()

        def hook(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                ran.text += content["text"]
                if during is not None:
                    during(ran.text)
            elif kind in ("display_data", "update_display_data"):
                ran.shown.append(content["data"])
                if during is not None:
                    during(ran.text)
            elif kind == "execute_result":
                ran.value = content["data"]
            elif kind == "error":
                ran.error = f"{content['ename']}: {content['evalue']}"
                ran.traceback = _ANSI.sub("", "\n".join(content["traceback"]))

        reply = self._execute(code, cell_id, hook, by_program=by_program)
        for payload in reply["content"].get("payload", []):
            ran.pager += _ANSI.sub("", payload.get("data", {}).get("text/plain", ""))
        return ran

    def _execute(
        self, code: str, cell_id: str, hook: Callable[[dict[str, Any]], None], *, by_program: bool
    ) -> dict[str, Any]:
        # Front ends name the cell in the message's metadata, which the client's own method cannot set.
        session, make = self.client.session, self.client.session.msg

        def msg(msg_type: str, *args: Any, **kwargs: Any) -> Any:
            message = make(msg_type, *args, **kwargs)
            if msg_type == "execute_request" and cell_id:
                message["metadata"]["cellId"] = cell_id
            return message

        session.msg = msg
        try:
            return self.client.execute_interactive(code, output_hook=hook, timeout=TIMEOUT, allow_stdin=not by_program)
        finally:
            session.msg = make

    def ok(self, code: str, **more: Any) -> Ran:
        """Run a cell that must not fail."""
        ran = self.run(code, **more)
        assert not ran.error, ran.traceback or ran.error
        return ran

    def interrupt(self) -> None:
        """Do what the stop button does."""
        self.manager.interrupt_kernel()

    def stop(self) -> None:
        """End the kernel at once."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        shutil.rmtree(self.sockets, ignore_errors=True)


@pytest.fixture
def notebooks(tmp_path: Path) -> Path:
    """The folder in which the kernel runs."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    return folder


def environment(notebooks: Path, ipython: Path) -> dict[str, str]:
    """What a Jupyter server sets for a kernel."""
    return {**os.environ, "IPYTHONDIR": str(ipython), "JPY_SESSION_NAME": str(notebooks / "quickstart.ipynb")}


@pytest.fixture
def plain_kernel(notebooks: Path, tmp_path: Path, distdl_home: Path) -> Iterator[Kernel]:
    """A kernel that has not loaded the extension."""
    one = Kernel(notebooks, environment(notebooks, tmp_path / "ipython"))
    yield one
    one.stop()


@pytest.fixture
def kernel(plain_kernel: Kernel) -> Kernel:
    """A kernel with the extension loaded."""
    plain_kernel.ok("%load_ext distdl_jupyter")
    return plain_kernel


@pytest.fixture(scope="module")
def one_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    folder = tmp_path_factory.mktemp("notebooks")
    one = Kernel(folder, environment(folder, folder / "ipython"))
    one.ok("%load_ext distdl_jupyter\nimport threading\nlock = threading.Lock()")
    yield one
    one.stop()


@pytest.fixture
def shared_kernel(one_for_all: Kernel, distdl_home: Path) -> Kernel:
    """One kernel for tests that start no job."""
    one_for_all.ok(f"import os\nos.environ['DISTDL_HOME'] = {str(distdl_home)!r}")
    return one_for_all
