"""The log of a job as a widget. Rows travel as messages that append and replace; nothing is sent twice to a front end.

* A front end that has drawn the widget says hello and gets what is kept, once; after that, every message holds what
  changed since the one before. Messages carry a number, and a front end that misses one says hello again.
* A front end asks for rows before those that it has, and gets them from the job's file; likewise for a picture.
* Until somebody said hello (a front end may not reach a busy kernel) the newest rows are the trait ``tail``, which a
  front end has on arrival. The last rows stay there when the job has ended, so a saved notebook can show them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from distdl_jupyter.panels import pictures
from distdl_jupyter.panels.assets import asset
from distdl_jupyter.views.job_page import log_changes
from distdl_jupyter.views.to_json import to_json

if TYPE_CHECKING:
    from distdl_jupyter.core.log import LogBook
    from distdl_jupyter.readers import Reading

#: Rows in the trait, and seconds between two updates of it.
_TAIL = 200
_TAIL_EVERY = 2.0
#: Rows that a front end gets at once: of the newest, and of those before.
_NEWEST, _OLDER = 1000, 5000


class LogWidget(anywidget.AnyWidget):
    """The log view of one panel. ``push`` is called by one thread only."""

    _esm = asset("log.js")
    world = traitlets.Int(1).tag(sync=True)
    tail = traitlets.Dict().tag(sync=True)
    failed = traitlets.Dict().tag(sync=True)

    def __init__(self, reading: Reading, **traits: Any) -> None:
        super().__init__(**traits)
        self._reading = reading
        self._mark = 0
        self._seq = 0
        self._hellos: list[str] = []
        self._wishes: list[tuple[str, int]] = []
        self._tail_at = -_TAIL_EVERY
        #: Whether a front end has drawn this widget.
        self.greeted = False
        self.on_msg(self._heard)

    def _heard(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        if content.get("type") == "hello":
            self._hellos.append(str(content.get("viewer", "")))
            self.greeted = True
        elif content.get("type") == "older" and isinstance(content.get("before"), int):
            self._wishes.append((str(content.get("viewer", "")), content["before"]))
        elif content.get("type") == "picture":
            said = pictures.answer(self._reading.folder.path, content)
            self.send({"type": "answer", "id": content.get("id"), **said})

    @property
    def asked(self) -> bool:
        """Whether a front end waits for an answer."""
        return bool(self._hellos or self._wishes)

    @property
    def behind(self) -> bool:
        """Whether ``push`` has something to send."""
        return self.asked or self._reading.log.mark != self._mark

    def push(self) -> None:
        """Send what changed since the last call, the newest rows to those who have just come, earlier ones if asked."""
        if self._reading.log.mark != self._mark:
            self._send_changes()
        while self._hellos:
            self.send({"type": "log", "seq": self._seq, "viewer": self._hellos.pop(0), **self._newest(_NEWEST)})
        while self._wishes:
            viewer, before = self._wishes.pop(0)
            self.send({"type": "older", "viewer": viewer, "before": before, **self._before(before)})

    def _send_changes(self) -> None:
        book = self._reading.log
        if self.greeted:
            self._seq += 1
            self.send({"type": "log", "seq": self._seq, **self._news(book)})
        elif time.monotonic() - self._tail_at < _TAIL_EVERY:
            return
        else:
            self.keep_tail()
        self._mark = book.mark

    def _news(self, book: LogBook) -> dict[str, Any]:
        """Return what changed; where that is much, or the reader skipped ahead, the newest rows in place of all."""
        found = book.changes(self._mark) if book.knows(self._mark) or not self._mark else None
        if found is None or len(found.rows) > _NEWEST:
            return {"whole": True, **self._newest(_NEWEST)}
        return {"whole": False, **to_json(log_changes(book, found.rows))}

    def keep_tail(self) -> None:
        """Put the newest rows into the trait."""
        self._tail_at = time.monotonic()
        wire = self._newest(_TAIL)
        self.tail = {**wire, "first": wire["rows"][0][0] if wire["rows"] else 0}

    def _newest(self, many: int) -> dict[str, Any]:
        book = self._reading.log
        return to_json(log_changes(book, book.between(book.next - many, book.next)))  # type: ignore[no-any-return]

    def _before(self, n: int) -> dict[str, Any]:
        return to_json(log_changes(self._reading.log, self._reading.window.before(n, _OLDER)))  # type: ignore[no-any-return]
