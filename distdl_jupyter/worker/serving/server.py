"""The life of a persistent rank: its main thread runs one request after the other until one stops it.

The user's code runs in the main thread, where interrupts arrive and where libraries expect it.
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

from distdl_jupyter.worker import channel, execute, failure, payload, pictures, report, results, secret_patterns
from distdl_jupyter.worker.data import data_path
from distdl_jupyter.worker.hooks import autolog, distributed
from distdl_jupyter.worker.identity import Identity, identify
from distdl_jupyter.worker.serving.connection import NOTES, Listener, Message, ServedConnection
from distdl_jupyter.worker.sources import Sources

#: Bytes of the largest value that is sent.
LARGEST = 256 * 1024 * 1024
#: Characters of the longest form; a longer one is left out.
_LONGEST = 2_000_000
#: Items of a container, or characters of a string, beyond which its text is shortened; characters of other texts.
_LARGE, _LONG = 1_000, 4_000
#: The methods by which IPython asks a value for a form.
_METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
}
#: Seconds within which a signal that was sent for a client arrives.
_SIGNAL_SECONDS = 10.0


def serve(folder: Path, session: payload.Payload, sources: Sources) -> None:
    """Run the requests of clients until one stops the rank. Raises KeyboardInterrupt when the job is cancelled."""
    payload.extend_path(folder, session)
    if session.working_directory:
        with contextlib.suppress(OSError):
            os.chdir(session.working_directory)
    server = Server(identify(os.environ), sources)
    try:
        server.run()
    finally:
        server.close()


class Server:
    """One rank with its namespace and its listening socket."""

    def __init__(self, identity: Identity, sources: Sources) -> None:
        self._identity = identity
        self._sources = sources
        namespace = Namespace(identity, sources)
        self._handlers = {
            "run": namespace.run,
            "push": namespace.push,
            "pull": namespace.pull,
            "distributed": namespace.distributed,
        }
        self._marks = Marks(identity)
        self._requests: queue.SimpleQueue[tuple[ServedConnection, Message] | None] = queue.SimpleQueue()
        self._claiming = threading.Lock()
        self._doing: str | None = None
        self._main = threading.get_ident()
        #: Whether a signal may interrupt what runs now, and whether the job is cancelled.
        self._interruptible = self._canceled = False
        #: When signals were sent for clients that have not arrived; two may arrive as one.
        self._announced: deque[float] = deque(maxlen=100)
        if identity.pipes is None:
            raise RuntimeError("This rank is not reachable: only an agent can start the ranks of a session.")
        self._listener = Listener(identity.pipes, identity.rank)
        # The trace of a crash goes to the rank's own error output, also while a cell has moved descriptor 2.
        faulthandler.enable(os.dup(2))

    def run(self) -> None:
        """Listen, and run requests until one stops the rank."""
        signal.signal(signal.SIGINT, self._on_signal)
        threading.Thread(target=self._listen, name="distdl-listen", daemon=True).start()
        if (output := channel.current()) is not None:
            # Cells connect the ranks when they like; the rank is ready for requests.
            output.send("ready", backend="", size=self._identity.world_size)
        while (request := self._requests.get()) is not None:
            self._perform(*request)
            del request
            if self._canceled:
                raise KeyboardInterrupt

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    # in other threads -------------------------------------------------------------------------

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()
                ServedConnection(connection, self._listener, self._state("hello"), self._on_message)

    def _state(self, say: str, **fields: Any) -> dict[str, Any]:
        return {"say": say, "rank": self._identity.rank, "pid": os.getpid(), "doing": self._doing or "", **fields}

    def _on_message(self, connection: ServedConnection, message: Message) -> None:
        header = message.header
        if header.get("do") == "interrupt":
            if self._interruptible:
                self._announced.append(time.monotonic())
                signal.pthread_kill(self._main, signal.SIGINT)
        elif header.get("do") == "state":
            connection.reply(self._state("state", id=header.get("id")))
        elif not self._claim(str(header.get("label") or header.get("do"))):
            connection.reply(self._state("busy", id=header.get("id")))
        else:
            self._requests.put(None if header.get("do") == "stop" else (connection, message))

    def _claim(self, label: str) -> bool:
        with self._claiming:
            if self._doing is not None:
                return False
            self._doing = label
            return True

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Interrupt the user's code; a signal that no client has asked for cancels the job and ends the rank."""
        announced = False
        while self._announced and not announced:
            announced = time.monotonic() - self._announced.popleft() < _SIGNAL_SECONDS
        self._canceled = self._canceled or not announced
        if self._interruptible or not announced:
            raise KeyboardInterrupt

    # in the main thread -----------------------------------------------------------------------

    def _perform(self, connection: ServedConnection, message: Message) -> None:
        header, begin = message.header, time.perf_counter()
        number = header["id"] if isinstance(header.get("id"), int) else 0
        is_cell = header.get("do") in ("run", "distributed")
        if is_cell:
            self._marks.begin(number, str(header.get("label") or ""))
        try:
            answer, body, error = self._try(message)
        except KeyboardInterrupt as interrupt:  # it came while another error, or interrupt, was described
            self._interruptible = False
            answer, body, error = self._failed(interrupt)
        with contextlib.suppress(Exception):
            autolog.release()
            report.flush()
        if is_cell:
            self._marks.end(number)
        if error:
            # After the mark: the client gets it in the answer, and the log shows it too.
            with contextlib.suppress(Exception):
                sys.stderr.write(error if error.endswith("\n") else f"{error}\n")
                sys.stderr.flush()
        self._doing = None
        if not self._canceled:  # else the end of this process is the answer
            seconds = time.perf_counter() - begin
            connection.reply({"say": "done", "id": number, "seconds": seconds, **answer}, body)

    def _try(self, message: Message) -> tuple[dict[str, Any], bytes, str]:
        """Return the answer, its body and the text of an error."""
        try:
            signal.signal(signal.SIGINT, self._on_signal)
            self._interruptible = True
            kind = message.header.get("do")
            handler = self._handlers.get(str(kind))
            if handler is None:
                raise ValueError(f"Unknown request {kind!r}. Restart the ranks, for example after an update.")  # noqa: TRY301
            answer, body = _value(handler(message.header, message.body))
            self._interruptible = False
        except SystemExit as error:
            self._interruptible = False
            if error.code in (None, 0):
                return *_value(None), ""
            return self._failed(error)
        except BaseException as error:  # noqa: BLE001  whatever ends the user's code is reported
            self._interruptible = False
            return self._failed(error)
        finally:
            # Code that handles interrupts itself does so during its own cell only.
            signal.signal(signal.SIGINT, self._on_signal)
        return answer, body, ""

    def _failed(self, error: BaseException) -> tuple[dict[str, Any], bytes, str]:
        described = failure.describe(error, self._sources, self._identity.folder / "code")
        interrupted = isinstance(error, KeyboardInterrupt)
        return {"ok": False, "error": described}, b"", "Interrupted.\n" if interrupted else str(described["traceback"])


def _value(value: Any) -> tuple[dict[str, Any], bytes]:
    body, why = results.pickled(value, "The value", LARGEST)
    return {"ok": True, "repr": results.text(value), "shown": forms(value), "unsent": why}, bytes(body)


class Marks:
    """Marks in a rank's own output: what one cell has printed is between a begin and an end mark.

    They are reports on both streams, so they keep their place among the lines, whatever descriptors 1 and 2 point to.
    Made before any code of the user runs.
    """

    def __init__(self, identity: Identity) -> None:
        self._channels = {
            name: channel.Channel(os.dup(fd), identity.nonce, identity.rank) for name, fd in (("out", 1), ("err", 2))
        }
        # Text that C code has printed may still be in C's own buffers.
        self._c = ctypes.CDLL(None)

    def begin(self, cell: int, label: str) -> None:
        """Mark that a cell begins, with its label for users."""
        self._write(cell, label, ended=False)

    def end(self, cell: int) -> None:
        """Mark that everything a cell has printed is before this."""
        self._write(cell, "", ended=True)

    def _write(self, cell: int, label: str, *, ended: bool) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._c.fflush(None)
        for name, stream_channel in self._channels.items():
            stream_channel.send("mark", stream=name, cell=cell, label=label, ended=ended)


class Namespace:
    """The namespace of one rank, a ``__main__`` of its own, with ``log`` and its rank in it.

    Each method handles one request: it returns the value or raises what the user's code raises.
    """

    def __init__(self, identity: Identity, sources: Sources) -> None:
        self._sources = sources
        self._folder = identity.folder / NOTES
        self._rank = identity.rank
        self._main = payload.fresh_main()
        self._main.__dict__.update(
            rank=identity.rank,
            local_rank=identity.local_rank,
            world_size=identity.world_size,
            log=report.log,
            progress=report.progress,
            data_path=data_path,
        )
        builtins.display = pictures.display  # type: ignore[attr-defined]
        builtins.input = _no_input

    def run(self, header: Mapping[str, Any], body: bytes) -> Any:
        """Run ``code`` as a cell and return the value of its last expression; ``names`` in ``body`` are set first."""
        self.push(header, body)
        filename = str(header["filename"])
        location = {name: header.get(name) for name in ("cell", "first_line")}
        self._sources.add_all({filename: {"text": header["code"], "label": header["title"], **location}})
        return execute.run_cell(str(header["code"]), filename, self._sources, self._main.__dict__)

    def push(self, header: Mapping[str, Any], body: bytes) -> None:
        """Set ``names`` from ``body``, which holds one pickle after the other."""
        if names := header.get("names") or ():
            self._sources.add_all(header.get("sources") or {})
            unpickler = payload.NotebookUnpickler(io.BytesIO(body), self._main.__dict__)
            self._main.__dict__.update({str(name): unpickler.load() for name in names})

    def pull(self, header: Mapping[str, Any], _body: bytes) -> Any:
        """Return the value of the name. Raises NameError."""
        name = str(header["name"])
        if name not in self._main.__dict__:
            raise NameError(f"name {name!r} is not defined in this rank")
        return self._main.__dict__[name]

    def distributed(self, header: Mapping[str, Any], body: bytes) -> Any:
        """Run a job's code, whose files ``body`` holds as a tar, in a namespace of its own."""
        folder = self._folder / f"run-{int(header['id'])}-{self._rank}"
        before = (list(sys.path), list(sys.argv), Path.cwd())
        try:
            folder.mkdir(mode=0o700, parents=True)
            with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                # It drops other users' right to write; Python before 3.11.4 has no such filter.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(folder)  # noqa: S202 - from a client that may run any code here
            code = payload.read(folder)
            if not Path(code.working_directory).is_dir():  # the notebook's, on another machine
                code = code._replace(working_directory="")
            with distributed.keep_groups():
                return execute.run(folder, code, self._sources)
        finally:
            sys.path[:], sys.argv[:] = before[0], before[1]
            os.chdir(before[2])
            sys.modules["__main__"] = self._main
            # Modules that were sent with this code are imported again the next time: they may be others then.
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                    del sys.modules[name]
            shutil.rmtree(folder, ignore_errors=True)


def _no_input(*_: object) -> str:
    raise RuntimeError("input() does not work on ranks because they have no keyboard. Write the value into the cell.")


# values that are sent ----------------------------------------------------------------------------------


def forms(value: Any) -> dict[str, str]:
    """Return the forms of a value by MIME type, always with ``text/plain``; {} for None. Pictures are base64."""
    if value is None:
        return {}
    by_type = {"text/plain": _plain(value)}
    if not isinstance(value, type):
        by_type |= {mime: form for method, mime in _METHODS.items() if (form := _form(value, method))}
    return by_type


def _plain(value: Any) -> str:
    # Tables and arrays shorten themselves by lines, which a cut in the middle would spoil; containers do not.
    if isinstance(value, (str, bytes, bytearray, list, tuple, dict, set, frozenset)) and len(value) > _LARGE:
        return results.text(value)
    try:
        plain = repr(value)
    except Exception:  # noqa: BLE001  a foreign class's own method
        return results.text(value)
    return secret_patterns.redact(plain) if len(plain) <= _LONG else results.text(value)


def _form(value: Any, method: str) -> str:
    call = getattr(type(value), method, None)
    if call is None:
        return ""
    try:
        form = call(value)
    except Exception:  # noqa: BLE001  a foreign class's own method
        return ""
    if isinstance(form, bytes):
        form = base64.b64encode(form).decode()
    return secret_patterns.redact(form) if isinstance(form, str) and len(form) <= _LONGEST else ""
