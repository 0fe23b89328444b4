"""The supervisor's side of ``host.bringing``: what nodes say of their data is heard, and what they ask is answered."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.host import bringing

if TYPE_CHECKING:
    from distdl_jupyter.clusters.base import Staging

#: Seconds between two looks at what nodes say.
_PAUSE = 0.3
_ENDS = ("staged", "failed")


def orders(staging: Staging | None, nodes: int, base: str) -> dict[str, str]:
    """Return the files that the nodes read and write, by name; none for a job without data."""
    if staging is None:
        return {}
    found = {name: "" for node in range(nodes) for name in bringing.files(node)}
    for node in range(nodes):
        found[f"node-{node}.{bringing.ORDER}"] = json.dumps(staging.order(node, base=base))
    return found


class Listener(threading.Thread):
    """Reads from a thread what nodes say. ``pass_on`` gives it to the staging, in the caller's thread."""

    def __init__(self, run: Path, nodes: int, staging: Staging) -> None:
        super().__init__(name="distdl-slurm-data", daemon=True)
        self._run_folder = run
        self._staging = staging
        self._read = dict.fromkeys(range(nodes), 0)
        self._ended: set[int] = set()
        self._news: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._over = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether data is on its way still."""
        return len(self._ended) < len(self._read)

    def run(self) -> None:
        """Look until every node has ended its staging, or ``stop``."""
        while self.busy and not self._over.is_set():
            for node in self._read:
                if node not in self._ended:
                    self._look(node)
            self._over.wait(_PAUSE)

    def stop(self) -> None:
        """End the thread and take away what was answered last."""
        self._over.set()
        if self.is_alive():
            self.join(2.0)
        for node in self._read:
            with contextlib.suppress(OSError):
                os.truncate(self._path(node, bringing.ANSWER), 0)

    def pass_on(self) -> None:
        """Let the staging hear what is new."""
        with contextlib.suppress(queue.Empty):
            while True:
                node, message = self._news.get_nowait()
                with contextlib.suppress(DistDLError):  # the node's tasks say it, too, and end by it
                    self._staging.heard(node, str(message.get("host", "")), message)

    def _path(self, node: int, kind: str) -> Path:
        return self._run_folder / f"node-{node}.{kind}"

    def _look(self, node: int) -> None:
        messages = self._new(node)
        for message in messages:
            if message.get("type") != "renew":
                self._news.put((node, message))
        if any(message.get("type") in _ENDS for message in messages):
            self._ended.add(node)
        elif asked := [message for message in messages if message.get("type") == "renew"]:
            self._answer(node, asked[-1])  # a node asks one question at a time

    def _new(self, node: int) -> list[dict[str, Any]]:
        try:
            with self._path(node, bringing.SAYS).open("rb") as file:
                file.seek(self._read[node])
                content = file.read()
        except OSError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._read[node] += len(whole)
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def _answer(self, node: int, message: dict[str, Any]) -> None:
        try:
            answer = self._staging.heard(node, str(message.get("host", "")), message)
        except DistDLError as error:
            source = str(message.get("source"))
            answer = {"type": "sas", "source": source, "refused": error.message, "remedy": error.hint}
        if answer is not None:
            text = json.dumps({"number": message.get("number"), "answer": answer})
            with contextlib.suppress(OSError):
                write(self._path(node, bringing.ANSWER), text)


def write(path: Path, text: str) -> None:
    """Write a file that only this user reads, in place."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
