"""The life of a rank that stays: its main thread runs what it is asked, one thing at a time, until it is told to end.

Code of the user runs in the main thread, where interrupts arrive and where libraries expect it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any

from distdl_jupyter.worker import channel, failure, report
from distdl_jupyter.worker.identity import Identity, identify
from distdl_jupyter.worker.payload import Payload, extend_path
from distdl_jupyter.worker.serving import shown, values
from distdl_jupyter.worker.serving.connection import Line
from distdl_jupyter.worker.serving.frames import Message
from distdl_jupyter.worker.serving.listener import Door
from distdl_jupyter.worker.serving.marks import Marks
from distdl_jupyter.worker.serving.namespace import Room
from distdl_jupyter.worker.sources import Sources
from distdl_jupyter.worker.watch import autolog

#: Seconds within which a signal that a client had sent arrives.
_ON_ITS_WAY = 10.0


def serve(folder: Path, payload: Payload, sources: Sources) -> None:
    """Run what clients ask for until one of them says stop. Raises KeyboardInterrupt when the job is cancelled."""
    extend_path(folder, payload)
    if payload.working_directory:
        with contextlib.suppress(OSError):
            os.chdir(payload.working_directory)
    server = Server(identify(os.environ), sources)
    try:
        server.run()
    finally:
        server.close()


class Server:
    """One rank with its namespace and the door at which it is asked."""

    def __init__(self, identity: Identity, sources: Sources) -> None:
        self._identity = identity
        self._sources = sources
        self._room = Room(identity, sources)
        self._marks = Marks(identity)
        self._work: queue.SimpleQueue[tuple[Line, Message] | None] = queue.SimpleQueue()
        self._claim = threading.Lock()
        self._doing: str | None = None
        self._main = threading.get_ident()
        #: Whether a signal may break into what runs now, and whether the job is cancelled.
        self._interruptible = self._canceled = False
        #: When clients had a signal sent that has not arrived; two may arrive as one.
        self._announced: deque[float] = deque(maxlen=100)
        if identity.pipes is None:
            raise RuntimeError("This rank is not reachable: only an agent can start the ranks of a session.")
        self._door = Door(identity.pipes, identity.rank)
        # The trace of a crash goes to where the rank's own errors go, also while a cell has moved descriptor 2.
        faulthandler.enable(os.dup(2))

    def run(self) -> None:
        """Listen, and work until told to end."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        threading.Thread(target=self._listen, name="distdl-door", daemon=True).start()
        out = channel.current()
        if out is not None:
            # Cells meet the other ranks when they like; the rank is ready to be asked.
            out.send("ready", backend="", size=self._identity.world_size)
        while (item := self._work.get()) is not None:
            self._perform(*item)
            del item
            if self._canceled:
                raise KeyboardInterrupt

    def close(self) -> None:
        """Be met no more."""
        self._door.close()

    # asked from other threads -----------------------------------------------------------------

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                Line(self._door.accept(), self._door, self._greeting(), self._on_message).start()

    def _greeting(self) -> dict[str, Any]:
        return {"say": "hello", "rank": self._identity.rank, "pid": os.getpid(), "doing": self._doing or ""}

    def _on_message(self, line: Line, message: Message) -> None:
        asked = message.header
        if asked.get("do") == "interrupt":
            self._interrupt()
        elif asked.get("do") == "state":
            line.say({"say": "state", "id": asked.get("id"), "doing": self._doing or ""})
        elif not self._claimed(str(asked.get("label") or asked.get("do"))):
            line.say({"say": "busy", "id": asked.get("id"), "doing": self._doing or ""})
        else:
            self._work.put(None if asked.get("do") == "stop" else (line, message))

    def _claimed(self, label: str) -> bool:
        with self._claim:
            if self._doing is not None:
                return False
            self._doing = label
            return True

    def _interrupt(self) -> None:
        if self._interruptible:
            self._announced.append(time.monotonic())
            signal.pthread_kill(self._main, signal.SIGINT)

    def _on_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Break into the user's code; a signal that no client sent is the job's cancellation and ends the rank."""
        announced = False
        while self._announced and not announced:
            announced = time.monotonic() - self._announced.popleft() < _ON_ITS_WAY
        self._canceled = self._canceled or not announced
        if self._interruptible or not announced:
            raise KeyboardInterrupt

    # the work ---------------------------------------------------------------------------------

    def _perform(self, line: Line, message: Message) -> None:
        asked, begin = message.header, time.perf_counter()
        number = _whole(asked.get("id"))
        cell = asked.get("do") in ("run", "distributed")
        if cell:
            self._marks.begin(number, str(asked.get("label") or ""))
        answer, body, error = self._answer(message)
        with contextlib.suppress(Exception):
            autolog.release()
            report.flush()
        if cell:
            self._marks.end(number)
        if error:
            # Behind the mark: whoever asked gets it in the answer, the log shows it too.
            _print(error)
        self._doing = None
        if self._canceled:
            return  # the end of this process is the answer
        line.say({"say": "done", "id": number, "seconds": time.perf_counter() - begin, **answer}, body)

    def _answer(self, message: Message) -> tuple[dict[str, Any], bytes, str]:
        """Return the answer, its body and the text of an error; whatever the user's code does, there is an answer."""
        try:
            return self._attempted(message)
        except KeyboardInterrupt as error:  # it came while another error, or interrupt, was being told
            self._interruptible = False
            return self._failed(error)

    def _attempted(self, message: Message) -> tuple[dict[str, Any], bytes, str]:
        try:
            signal.signal(signal.SIGINT, self._on_interrupt)
            self._interruptible = True
            answer, body = self._given(message)
            self._interruptible = False
        except SystemExit as error:
            self._interruptible = False
            if error.code in (None, 0):
                return _value(None)[0], values.packed(None)[0], ""
            return self._failed(error)
        except BaseException as error:  # noqa: BLE001  whatever ends the user's code is told
            self._interruptible = False
            return self._failed(error)
        finally:
            # Code that listens to interrupts itself does so during its own cell only.
            signal.signal(signal.SIGINT, self._on_interrupt)
        return answer, body, ""

    def _given(self, message: Message) -> tuple[dict[str, Any], bytes]:
        asked = message.header
        work = {"run": self._room.run, "push": self._room.push, "pull": self._room.pull,
                "distributed": self._room.distributed}.get(str(asked.get("do")))  # fmt: skip
        if work is None:
            raise ValueError(f"Unknown request {asked.get('do')!r}. Restart the ranks, for example after an update.")
        return _value(work(asked, message.body))

    def _failed(self, error: BaseException) -> tuple[dict[str, Any], bytes, str]:
        described = failure.describe(error, self._sources, self._identity.folder / "code")
        interrupted = isinstance(error, KeyboardInterrupt)
        return {"ok": False, "error": described}, b"", "Interrupted.\n" if interrupted else str(described["traceback"])


def _value(value: Any) -> tuple[dict[str, Any], bytes]:
    body, why = values.packed(value)
    return {"ok": True, "repr": values.text(value), "shown": shown.bundle(value), "unsent": why}, body


def _whole(number: Any) -> int:
    return number if isinstance(number, int) else 0


def _print(text: str) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
        sys.stderr.flush()
