"""The lines of JSON between the program and who started it."""

from __future__ import annotations

import json
import os
import queue
import threading
from typing import IO, Any

#: Exit code when nobody listens any more.
ALONE = 3


class Talk:
    """``send`` writes a message, ``ask`` waits for the answer that names the same source; both from any thread."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source = source
        self._sink = sink
        self._writing = threading.Lock()
        self._answers: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}
        self._over = False

    def order(self) -> Any:
        """Return the first line; from then on the end of the input ends the program. Raises ValueError."""
        message = json.loads(self._source.readline() or b"null")
        threading.Thread(target=self._listen, daemon=True).start()
        return message

    def send(self, message: dict[str, Any]) -> None:
        """Write one message."""
        line = json.dumps(message).encode() + b"\n"
        with self._writing:
            try:
                self._sink.write(line)
                self._sink.flush()
            except OSError:
                os._exit(ALONE)

    def last(self, message: dict[str, Any]) -> None:
        """Write the last message: whoever read it may close both streams."""
        self._over = True
        self.send(message)

    def ask(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Write a message about a source and return the answer. Raises TimeoutError."""
        answers = self._answers.setdefault(message["source"], queue.SimpleQueue())
        while not answers.empty():  # one that came too late for an earlier question
            answers.get()
        self.send(message)
        try:
            return answers.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None

    def _listen(self) -> None:
        for line in self._source:
            try:
                answer = json.loads(line)
                self._answers.setdefault(str(answer["source"]), queue.SimpleQueue()).put(answer)
            except (ValueError, KeyError, TypeError):
                continue
        if not self._over:
            os._exit(ALONE)
