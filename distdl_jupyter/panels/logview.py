"""The log of a job as a widget. Rows travel as messages that append and replace; nothing is sent twice to a front end.

* A front end that has drawn the widget says hello and gets what is kept, once; after that, every message holds what
  changed since the one before. Messages carry a number, and a front end that misses one says hello again.
* Until somebody said hello (a front end may not reach a busy kernel) the newest rows are the trait ``tail``, which a
  front end has on arrival. The last rows stay there when the job has ended, so a saved notebook can show them.
"""

from __future__ import annotations

import time
from typing import Any

import anywidget
import traitlets

from distdl_jupyter.core.log import LogBook
from distdl_jupyter.panels.assets import asset
from distdl_jupyter.presentation.plain import plain
from distdl_jupyter.presentation.rows import changes

#: Rows in the trait, and seconds between two updates of it.
_TAIL = 200
_TAIL_EVERY = 2.0


class LogWidget(anywidget.AnyWidget):
    """The log view of one panel. ``push`` is called by one thread only."""

    _esm = asset("log.js")
    world = traitlets.Int(1).tag(sync=True)
    tail = traitlets.Dict().tag(sync=True)
    failed = traitlets.Dict().tag(sync=True)

    def __init__(self, book: LogBook, **traits: Any) -> None:
        super().__init__(**traits)
        self._book = book
        self._mark = 0
        self._seq = 0
        self._hellos: list[str] = []
        self._tail_at = -_TAIL_EVERY
        #: Whether a front end has drawn this widget.
        self.greeted = False
        self.on_msg(self._heard)

    def _heard(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        if content.get("type") == "hello":
            self._hellos.append(str(content.get("viewer", "")))
            self.greeted = True

    @property
    def behind(self) -> bool:
        """Whether ``push`` has something to send."""
        return bool(self._hellos) or self._book.mark != self._mark

    def push(self) -> None:
        """Send what changed since the last call, and all that is kept to those who have just come."""
        if self._book.mark != self._mark:
            self._send_changes()
        while self._hellos:
            self.send({"type": "log", "seq": self._seq, "viewer": self._hellos.pop(0), **self._wire(0)})

    def _send_changes(self) -> None:
        if self.greeted:
            self._seq += 1
            self.send({"type": "log", "seq": self._seq, **self._wire(self._mark)})
        elif time.monotonic() - self._tail_at < _TAIL_EVERY:
            return
        else:
            self.keep_tail()
        self._mark = self._book.mark

    def keep_tail(self) -> None:
        """Put the newest rows into the trait."""
        self._tail_at = time.monotonic()
        wire = self._wire(0)
        self.tail = {**wire, "rows": wire["rows"][-_TAIL:], "first": wire["rows"][-_TAIL:][0][0] if wire["rows"] else 0}

    def _wire(self, since: int) -> dict[str, Any]:
        told, _ = changes(self._book, since)
        return plain(told)  # type: ignore[no-any-return]
