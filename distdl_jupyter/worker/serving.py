"""The main loop of a persistent rank: it runs one request at a time until it receives ``stop``.

User code runs in the main thread, because Python delivers interrupts there and some libraries require it.
"""

from __future__ import annotations

import base64
import builtins
import contextlib
import ctypes
import faulthandler
import io
import os
import queue
import shutil
import signal
import sys
import tarfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from distdl_jupyter.worker import channel, failure, payload, report, secret_patterns, values
from distdl_jupyter.worker.data import data_path
from distdl_jupyter.worker.frames import CellSources
from distdl_jupyter.worker.hooks import distributed
from distdl_jupyter.worker.identity import Identity, identify
from distdl_jupyter.worker.rank_socket import NOTES, Listener, RankMessage, ServedConnection

#: Maximum size in bytes of a value that is sent to a client.
MAX_VALUE_BYTES = 256 * 1024 * 1024
#: Maximum number of characters in one representation of a value. Longer representations are omitted.
_MAX_REPR_CHARS = 2_000_000
#: The text of a container or string is shortened above ``_MAX_ITEMS`` items, other text above ``_MAX_TEXT`` characters.
_MAX_ITEMS, _MAX_TEXT = 1_000, 4_000
#: IPython's representation methods and the MIME types of their results.
_REPR_METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
}
#: Seconds within which a signal is attributed to a client's interrupt request.
_SIGNAL_SECONDS = 10.0


def serve(folder: Path, session: payload.Payload, sources: CellSources) -> None:
    """Run the requests of clients until one stops the rank. Raises KeyboardInterrupt when the job is canceled."""
    payload.extend_path(folder, session)
    if session.working_directory:
        with contextlib.suppress(OSError):
            os.chdir(session.working_directory)
    Server(identify(os.environ), sources).run()


class Server:
    """Runs requests in a new ``__main__`` module. ``_listen`` and ``_on_message`` run in other threads."""

    def __init__(self, identity: Identity, sources: CellSources) -> None:
        self._identity = identity
        self._sources = sources
        self._main_module = payload.create_main()
        self._namespace = self._main_module.__dict__
        self._namespace.update(rank=identity.rank, local_rank=identity.local_rank, world_size=identity.world_size)
        self._namespace.update(log=report.log, progress=report.progress, data_path=data_path)
        builtins.display = report.display  # type: ignore[attr-defined]
        builtins.input = _refuse_input
        #: Channels to the original streams, which user code may redirect, to keep marks and output in order.
        self._channels = {
            name: channel.Channel(os.dup(fd), identity.nonce, identity.rank) for name, fd in (("out", 1), ("err", 2))
        }
        self._c_library = ctypes.CDLL(None)
        self._requests: queue.SimpleQueue[tuple[ServedConnection, RankMessage] | None] = queue.SimpleQueue()
        self._claim_lock = threading.Lock()
        self._current_label: str | None = None
        self._main_thread = threading.get_ident()
        #: Whether a signal may interrupt the running code, and whether the job was canceled.
        self._is_interruptible = self._is_canceled = False
        #: Times of signals that were sent for clients and have not arrived yet. Two may be delivered as one.
        self._client_signals: deque[float] = deque(maxlen=100)
        if identity.pipes is None:
            raise RuntimeError("This rank cannot accept connections because it was not started by an agent.")
        self._listener = Listener(identity.pipes, identity.rank)
        # Write crash traces to the rank's original stderr, even while a cell redirects descriptor 2.
        faulthandler.enable(os.dup(2))

    def run(self) -> None:
        """Accept connections and run requests until one stops the rank."""
        signal.signal(signal.SIGINT, self._on_signal)
        threading.Thread(target=self._listen, name="distdl-listen", daemon=True).start()
        # The rank is ready without a process group, because only cells create one.
        channel.send("ready", backend="", size=self._identity.world_size)
        try:
            while (request := self._requests.get()) is not None:
                self._handle_request(*request)
                del request  # and the values in it
                if self._is_canceled:
                    raise KeyboardInterrupt
        finally:
            self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ServedConnection(self._listener.accept(), self._listener, self._on_message)

    def _on_message(self, connection: ServedConnection, message: RankMessage) -> None:
        request = message.header.get("do")
        if request == "hello":
            connection.reply({"say": "hello", "doing": self._current_label or ""})
            return
        if request == "interrupt":
            if self._is_interruptible:
                self._client_signals.append(time.monotonic())
                signal.pthread_kill(self._main_thread, signal.SIGINT)
            return
        with self._claim_lock:
            if self._current_label is not None:
                connection.reply({"say": "busy", "doing": self._current_label})
                return
            self._current_label = str(message.header.get("label") or request)
        self._requests.put(None if request == "stop" else (connection, message))

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Interrupt the user's code. A signal that no client has requested cancels the job and stops the rank."""
        is_client_signal = False
        while self._client_signals and not is_client_signal:
            is_client_signal = time.monotonic() - self._client_signals.popleft() < _SIGNAL_SECONDS
        self._is_canceled = self._is_canceled or not is_client_signal
        if self._is_interruptible or not is_client_signal:
            raise KeyboardInterrupt

    def _handle_request(self, connection: ServedConnection, message: RankMessage) -> None:
        header = message.header
        number = header["id"] if isinstance(header.get("id"), int) else 0
        is_cell = header.get("do") in ("run", "distributed")
        if is_cell:
            self._mark_output(number, str(header.get("label") or ""), ended=False)
        try:
            response, body, error = self._run_request(message)
        except KeyboardInterrupt as interrupt:  # raised while another error or interrupt was being formatted
            self._is_interruptible = False
            response, body, error = self._describe_failure(interrupt)
        with contextlib.suppress(Exception):
            report.flush()
        if is_cell:
            self._mark_output(number, "", ended=True)
        if error:
            # This copy is only for the log, so it follows the end mark. Clients receive the error in the reply.
            with contextlib.suppress(Exception):
                sys.stderr.write(error if error.endswith("\n") else f"{error}\n")
                sys.stderr.flush()
        self._current_label = None
        if not self._is_canceled:  # otherwise the client notices that the process has exited
            connection.reply({"say": "done", "id": number, **response}, body)

    def _mark_output(self, cell: int, label: str, *, ended: bool) -> None:
        """Mark the start or the end of a cell's output; ``label`` is the cell's display name."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._c_library.fflush(None)  # output of C code
        for name, stream_channel in self._channels.items():
            stream_channel.send("mark", stream=name, cell=cell, label=label, ended=ended)

    def _run_request(self, message: RankMessage) -> tuple[dict[str, Any], bytes, str]:
        """Run a request and return the reply, its body and the text of an error."""
        handlers = {"run": self._run_cell, "push": self._push, "pull": self._pull, "distributed": self._run_distributed}
        try:
            signal.signal(signal.SIGINT, self._on_signal)
            self._is_interruptible = True
            handler = handlers.get(str(message.header.get("do")), _refuse_request)
            response, body = _build_value_reply(handler(message.header, message.body))
            self._is_interruptible = False
        except BaseException as error:  # noqa: BLE001  every error of user code is reported
            self._is_interruptible = False
            if isinstance(error, SystemExit) and error.code in (None, 0):
                return *_build_value_reply(None), ""
            return self._describe_failure(error)
        finally:
            # A handler installed by a cell applies only to that cell.
            signal.signal(signal.SIGINT, self._on_signal)
        return response, body, ""

    def _describe_failure(self, error: BaseException) -> tuple[dict[str, Any], bytes, str]:
        error_fields = failure.describe(error, self._sources, self._identity.folder / "code")
        text = "Interrupted.\n" if isinstance(error, KeyboardInterrupt) else str(error_fields["traceback"])
        return {"ok": False, "error": error_fields}, b"", text

    def _run_cell(self, header: Mapping[str, Any], body: bytes) -> Any:
        """Set the ``names`` from ``body``, run ``code`` as a cell, and return the value of its last expression."""
        self._push(header, body)
        filename = str(header["filename"])
        location = {name: header.get(name) for name in ("cell", "first_line")}
        self._sources.add_all({filename: {"text": header["code"], "label": header["title"], **location}})
        return payload.run_cell(str(header["code"]), filename, self._sources, self._namespace)

    def _push(self, header: Mapping[str, Any], body: bytes) -> None:
        """Set ``names`` from ``body``, which contains one pickle for each name."""
        if names := header.get("names") or ():
            self._sources.add_all(header.get("sources") or {})
            unpickler = payload.NotebookUnpickler(io.BytesIO(body), self._namespace)
            self._namespace.update({str(name): unpickler.load() for name in names})

    def _pull(self, header: Mapping[str, Any], _body: bytes) -> Any:
        name = str(header["name"])
        if name not in self._namespace:
            raise NameError(f"name {name!r} is not defined in this rank")
        return self._namespace[name]

    def _run_distributed(self, header: Mapping[str, Any], body: bytes) -> Any:
        """Run the code of a job in a separate namespace. ``body`` is a tar archive of the job's files."""
        folder = self._identity.folder / NOTES / f"run-{int(header['id'])}-{self._identity.rank}"
        saved_state = (list(sys.path), list(sys.argv), Path.cwd())
        distributed.is_reusing = True
        try:
            folder.mkdir(mode=0o700, parents=True)
            with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                # The filter removes the write permission of other users. Python before 3.11.4 does not have it.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(folder)  # noqa: S202 - from a client that may run any code here
            code = payload.read(folder)
            if not Path(code.working_directory).is_dir():  # the notebook's folder may not exist on this machine
                code = code._replace(working_directory="")
            return payload.run(folder, code, self._sources)
        finally:
            distributed.is_reusing = False
            sys.path[:], sys.argv[:] = saved_state[0], saved_state[1]
            os.chdir(saved_state[2])
            sys.modules["__main__"] = self._main_module
            # Modules sent with this code may have changed when the next code runs, so it must import them again.
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                    del sys.modules[name]
            shutil.rmtree(folder, ignore_errors=True)


def _build_value_reply(value: Any) -> tuple[dict[str, Any], bytes]:
    body, problem = values.to_pickle(value, "The value", MAX_VALUE_BYTES)
    return {"ok": True, "repr": values.to_text(value), "shown": make_bundle(value), "unsent": problem}, body


def _refuse_request(header: Mapping[str, Any], _body: bytes) -> Any:
    raise ValueError(f"Unknown request {header.get('do')!r}. Restart the ranks if the package was updated.")


def _refuse_input(*_: object) -> str:
    raise RuntimeError("input() is not available on ranks. Set the value in the cell instead.")


def make_bundle(value: Any) -> dict[str, str]:
    """Return the representations of a value by MIME type, or {} for None. Images are base64-encoded."""
    if value is None:
        return {}
    plain = ""
    # Tables and arrays have a short repr, so only the text of built-in containers and strings is shortened.
    if not isinstance(value, (str, bytes, bytearray, list, tuple, dict, set, frozenset)) or len(value) <= _MAX_ITEMS:
        with contextlib.suppress(Exception):  # a user-defined method
            plain = repr(value)
    bundle = {"text/plain": secret_patterns.redact(plain) if 0 < len(plain) <= _MAX_TEXT else values.to_text(value)}
    for method, mime in _REPR_METHODS.items():
        represent = None if isinstance(value, type) else getattr(type(value), method, None)
        with contextlib.suppress(Exception):  # a user-defined method
            data = represent and represent(value)
            data = base64.b64encode(data).decode() if isinstance(data, bytes) else data
            if isinstance(data, str) and 0 < len(data) <= _MAX_REPR_CHARS:
                bundle[mime] = secret_patterns.redact(data)
    return bundle
