"""The data of the nodes of an allocation: the first task of a node runs the stager, and all tasks wait for all nodes.

Scheduler's nodes are reached through files of the job's folder alone, so the stager's words are written to
``node-N.says`` and the supervisor's answers are read from ``node-N.answer``: a signature lies there, for this user
only, from the moment at which it was asked for until it is read. ``node-N.data`` tells the other tasks that a node has
everything, and where.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from distdl_jupyter.host.meeting import NoMeeting
from distdl_jupyter.host.staging import cache, tree

ORDER, SAYS, ANSWER, DATA = "order", "says", "answer", "data"
_LOOK = 0.2
_LAST_WORDS = 2000


def files(node: int) -> tuple[str, ...]:
    """Return the names of the files of a node."""
    return tuple(f"node-{node}.{kind}" for kind in (ORDER, SAYS, ANSWER, DATA))


def bring(folder: Path, node: int, host: str, stopped: Callable[[], object]) -> None:
    """Run the stager of this node to its end and tell the other tasks. Raises NoMeeting when the data is not there."""
    try:
        paths = _Relay(folder, node, host, stopped).run()
    except NoMeeting as error:
        _tell(folder, node, {"error": str(error)})
        raise
    finally:
        _empty(folder / f"node-{node}.{ANSWER}")
    _tell(folder, node, {"paths": paths})


def wait(folder: Path, node: int, nodes: int, stopped: Callable[[], object]) -> dict[str, str]:
    """Wait until every node has its data and return the variables of this one. Raises NoMeeting."""
    told: list[dict[str, Any]] = []
    while len(told) < nodes:
        told = [found for other in range(nodes) if (found := _read(folder / f"node-{other}.{DATA}"))]
        if error := next((found["error"] for found in told if "error" in found), ""):
            raise NoMeeting(error)
        if stopped() or (folder / "failed").exists():
            raise NoMeeting("It was stopped before it began.")
        if len(told) < nodes:
            time.sleep(_LOOK)
    return dict(_read(folder / f"node-{node}.{DATA}")["paths"])


def forget(folder: Path, node: int) -> None:
    """Take away what ranks saw of the data on this node; the cache stays."""
    order = _read(folder / f"node-{node}.{ORDER}")
    if order:
        tree.forget(cache.Cache(str(order.get("base") or "")), str(order["job"]))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _tell(folder: Path, node: int, content: dict[str, Any]) -> None:
    _write(folder / f"node-{node}.{DATA}", json.dumps(content))


def _write(path: Path, text: str) -> None:
    """Write a file in place: a network file system shows a change of a known file at once, a new one later."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.truncate(path, 0)


class _Relay:
    """A stager with files in place of a supervisor's pipes."""

    def __init__(self, folder: Path, node: int, host: str, stopped: Callable[[], object]) -> None:
        self._folder = folder
        self._node = node
        self._host = host
        self._stopped = stopped
        self._asked: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._last: dict[str, Any] = {}
        self._over = False
        self._writing = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "distdl_jupyter.host.staging"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ),
        )  # fmt: skip

    def run(self) -> dict[str, str]:
        for work in (self._listen, self._answer):
            threading.Thread(target=work, daemon=True).start()
        self._give((self._folder / f"node-{self._node}.{ORDER}").read_text(encoding="utf-8"))
        while self._process.poll() is None and not self._stopped() and not (self._folder / "failed").exists():
            time.sleep(_LOOK)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            raise NoMeeting("It was stopped before it began.")
        return self._found()

    def _found(self) -> dict[str, str]:
        until = time.monotonic() + 5.0
        while not self._over and time.monotonic() < until:
            time.sleep(0.02)
        if self._last.get("type") == "staged":
            return {str(name): str(path) for name, path in self._last["paths"].items()}
        if self._last.get("type") == "failed":
            raise NoMeeting(f"{self._host}: {self._last.get('text', '')} {self._last.get('remedy', '')}".strip())
        assert self._process.stderr is not None
        said = self._process.stderr.read()[-_LAST_WORDS:].decode(errors="replace").strip()
        last = f" {said.splitlines()[-1]}" if said else ""
        raise NoMeeting(f"{self._host}: the program that brings the data ended without a word.{last}")

    def _give(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError), self._writing:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        out: IO[bytes] | None = self._process.stdout
        assert out is not None
        for line in out:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if message.get("type") == "renew":
                self._asked.put(message)
            else:
                self._last = message
                self._say(message)
        self._over = True
        self._asked.put(None)

    def _say(self, message: dict[str, Any]) -> None:
        line = json.dumps({"host": self._host, **message}) + "\n"
        with self._writing, (self._folder / f"node-{self._node}.{SAYS}").open("a", encoding="utf-8") as file:
            file.write(line)

    def _answer(self) -> None:
        """Ask one question at a time and pass its answer on."""
        path = self._folder / f"node-{self._node}.{ANSWER}"
        number = 0
        while (message := self._asked.get()) is not None:
            number += 1
            self._say({**message, "number": number})
            while not self._over:
                found = _read(path)
                if found.get("number") == number:
                    _empty(path)
                    self._give(json.dumps(found["answer"]))
                    break
                time.sleep(_LOOK)
