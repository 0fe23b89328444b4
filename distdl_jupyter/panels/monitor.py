"""The job panel: a card of ipywidgets that shows one job live, wherever widgets are drawn.

    Card (VBox)
      head       state, name, id, progress, buttons; the phases while it sets up; the failure when it failed
      body (HBox)
        curve    bar over the curve, one FigureWidget
        log      rows by message
      notice     at most one line

The model holds the state (panels.model), the feed's thread moves it (panels.feed).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.panels import pictures, stacks
from distdl_jupyter.panels.assets import asset
from distdl_jupyter.panels.curves import Curve
from distdl_jupyter.panels.feed import Feed, Pace
from distdl_jupyter.panels.logview import LogWidget
from distdl_jupyter.panels.model import JobModel
from distdl_jupyter.panels.subshell import reachable
from distdl_jupyter.readers import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distdl_jupyter.client import Job

#: Seconds between two updates of each part.
_SECONDS = {"card": 0.25, "log": 0.1, "curve": 0.5}
#: Seconds between two updates of the card while no page has drawn the panel: JupyterLab with this package's extension
#: has the model of each widget and shows the job from the server.
_UNSEEN = 1.0


class HeadWidget(anywidget.AnyWidget):
    """Head, phases and failure; it brings the style sheet of the whole panel."""

    _esm = asset("head.js")
    _css = asset("panels.css")
    card = traitlets.Dict().tag(sync=True)
    beat = traitlets.Float().tag(sync=True)
    dark = traitlets.Bool(default_value=False).tag(sync=True)
    detached = traitlets.Bool(default_value=False).tag(sync=True)


class NoticeWidget(anywidget.AnyWidget):
    """The line at the foot."""

    _esm = asset("notice.js")
    card = traitlets.Dict().tag(sync=True)
    problem = traitlets.Unicode().tag(sync=True)


class JobPanel(ipywidgets.VBox):  # type: ignore[misc]
    """One job, live. The curve is made when a page says that it can draw it."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        reading = Reading(job.folder)
        self.model = JobModel(reading)
        self.head = HeadWidget()
        self.notice = NoticeWidget()
        self.curve = Curve(self.model)
        self.lines = LogWidget(reading, world=reading.view.process_count)
        self._body = ipywidgets.HBox([self.curve.box, self.lines])
        self._paces = {name: Pace(seconds) for name, seconds in _SECONDS.items()}
        self._unseen = Pace(_UNSEEN)
        self._connect()
        self.children = [self.head, self._body, self.notice]
        threading.Thread(target=self.curve.prepare, daemon=True).start()
        self.feed = Feed(reading, self._draw, self._broke)
        self.feed.start()

    def _connect(self) -> None:
        for box, name in ((self, "dd-card"), (self._body, "dd-body")):
            box.add_class("dd").add_class(name)
        for name in ("card", "beat"):
            traitlets.dlink((self.model, name), (self.head, name))
        for name in ("dark", "detached"):
            traitlets.link((self.head, name), (self.model, name))
        traitlets.dlink((self.model, "foot"), (self.notice, "card"))
        traitlets.dlink((self.model, "problem"), (self.notice, "problem"))
        traitlets.dlink((self.model, "failed"), (self.lines, "failed"))
        for name in ("metrics", "summary", "table"):
            traitlets.dlink((self.model, name), (self.curve.bar, name))
        for name in ("metric", "mode", "logarithmic"):
            traitlets.link((self.model, name), (self.curve.bar, name))
        self.model.observe(lambda _change: self.feed.poke(), ["metric", "mode", "logarithmic", "dark", "detached"])
        for widget in (self.head, self.notice, self.curve.bar, self.lines):
            reachable(widget)
        self.head.on_msg(self._pressed)
        for widget in (self.lines, self.curve.bar):
            widget.on_msg(lambda *_: self.feed.poke())

    def close(self) -> None:
        """End the live view, with every widget of it; the job goes on."""
        if self.comm is not None:
            self.feed.stop()
            self.feed.finish()
            for widget in _all_of(*self.children):
                widget.close()
            self.layout.close()
        super().close()

    # ---- what the feed's thread does ----

    def _draw(self, *, final: bool) -> None:
        """Send what has changed, each part at its own pace; the last time everything."""
        now = time.monotonic()
        due = {name for name, pace in self._paces.items() if pace.due(now) or final}
        if "card" in due and (final or self.lines.greeted or self._unseen.due(now)):
            self.model.publish(time.time())
        if self.model.detached and not final:
            return
        if self.lines.asked or ("log" in due and self.lines.behind):
            self.lines.push()
        if "curve" in due and self.curve.behind and self.curve.pages and (final or self.curve.prepared):
            self.curve.draw()
            self.model.describe()
        if final:
            self.lines.keep_tail()

    def _broke(self, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}"
        self.model.problem = f"This live view has stopped ({said}). Run %dist_attach {self.job.id} for a new one."

    # ---- what a user presses ----

    def _pressed(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        """Carry out a press in a thread of its own: a job may be slow to reach, the page must not wait."""
        if content.get("type") in ("stacks", "picture"):
            threading.Thread(target=self._answer, args=(content,), daemon=True).start()
        else:
            threading.Thread(target=self._carry_out, args=(content.get("type"),), daemon=True).start()

    def _answer(self, question: dict[str, Any]) -> None:
        of_stacks = question["type"] == "stacks"
        said = stacks.answer(self.job, question) if of_stacks else pictures.answer(self.job.folder.path, question)
        self.head.send({"type": "answer", "id": question.get("id"), **said})

    def _carry_out(self, what: str | None) -> None:
        actions: dict[str, Callable[[], None]] = {
            "cancel": self.job.cancel,
            "kill": lambda: self.job.cancel(now=True),
            "rerun": lambda: self._begin(self.job.rerun),
            "resume": lambda: self._begin(self.job.resume),
        }
        action = actions.get(what or "")
        if action is None:
            return
        try:
            action()
            self.model.problem = ""
        except (DistDLError, OSError) as error:
            self.model.problem = str(error)
            self.head.send({"type": "release"})

    def _begin(self, start: Callable[[], Job]) -> None:
        """Start another job and show it below; this panel stays with its own."""
        from distdl_jupyter.panels.output import show

        show(start())
        self.head.send({"type": "release"})


def _all_of(*widgets: ipywidgets.Widget) -> Iterator[ipywidgets.Widget]:
    """Yield widgets, those within them, and the models of their layouts: stock widgets close themselves alone."""
    for widget in widgets:
        yield from _all_of(*getattr(widget, "children", ()))
        yield widget
        if isinstance(layout := widget.layout, ipywidgets.Layout):
            yield layout


def panel(job: Job) -> JobPanel:
    """Return the live panel of a job, as a widget to be displayed or laid out with others."""
    return JobPanel(job)
