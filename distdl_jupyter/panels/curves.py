"""The curve of a panel: one plotly FigureWidget, updated in place, and the bar over it.

plotly's FigureWidget brings 5 MB of drawing code with each figure, and anywidget gives up on a model whose code is not
there within two seconds, which a busy machine does not manage. So the page asks for that code once (the bar carries the
request), however many panels it shows, and the figure itself is small. Each update resends whole arrays: there is one
figure a panel, made when the page is ready for it, the series are decimated (core.series), and the feed asks for at
most a few updates a second.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets

from distdl_jupyter.core.figure import Mode, figure
from distdl_jupyter.panels.assets import asset

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from distdl_jupyter.panels.model import JobModel

_CONFIG = {"displayModeBar": False, "displaylogo": False, "responsive": True, "doubleClick": "reset"}


class CurveBar(anywidget.AnyWidget):
    """Metrics with their newest values, band or each rank, scale, table, zoom."""

    _esm = asset("curvebar.js")
    world = traitlets.Int(1).tag(sync=True)
    metrics: traitlets.List[dict[str, str]] = traitlets.List().tag(sync=True)
    metric = traitlets.Unicode().tag(sync=True)
    mode = traitlets.Unicode("band").tag(sync=True)
    logarithmic = traitlets.Bool(default_value=False).tag(sync=True)
    summary = traitlets.Unicode().tag(sync=True)
    table: traitlets.List[list[str]] = traitlets.List().tag(sync=True)


@functools.cache
def _plot_class() -> type[go.FigureWidget]:
    """Return the kind of FigureWidget that takes its drawing code from the page."""
    import plotly.graph_objects as go

    class Plot(go.FigureWidget):  # type: ignore[misc]
        _esm = asset("plot.js")

    return Plot


def figure_widget(new: dict[str, Any]) -> go.FigureWidget:
    """Return the widget of a plain figure."""
    shown = _plot_class()(data=new["data"], layout=new["layout"])
    shown._config = {**shown._config, **_CONFIG}  # noqa: SLF001  (plotly's way to configure a widget)
    return shown


def drawing_code() -> bytes:
    """Return the code that plotly's own FigureWidget would bring along."""
    import plotly

    return (Path(plotly.__file__).parent / "package_data" / "widgetbundle.js").read_bytes()


class Curve:
    """The left half of a panel. ``draw`` is called by one thread only."""

    def __init__(self, model: JobModel) -> None:
        self._model = model
        self.bar = CurveBar(world=model.view.process_count)
        self._plot = ipywidgets.Box().add_class("dd-plot")
        self.box = ipywidgets.VBox([self.bar, self._plot]).add_class("dd").add_class("dd-curve")
        self._figure: go.FigureWidget | None = None
        self._drawn: tuple[object, ...] = ()
        #: Whether a figure can be made without a pause in which state and log would stand still.
        self.prepared = False
        #: Pages that are ready to draw, and how many of them the figure was made for.
        self.pages = 0
        self._made_for = 0
        self.bar.on_msg(self._heard)

    def _heard(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        if content.get("type") == "engine":
            self.bar.send({"type": "engine"}, buffers=[drawing_code()])
            self.prepare()
        elif content.get("type") == "ready":
            self.pages += 1

    @property
    def behind(self) -> bool:
        """Whether the drawing is older than the data or the user's choice."""
        return bool(self._model.metric) and (self._drawn != self._wanted() or self._made_for != self.pages)

    def prepare(self) -> None:
        """Import plotly and what a first figure imports, which takes seconds, before there is something to draw."""
        import plotly.graph_objects as go

        _plot_class()
        go.Figure({"data": [{"type": "scatter", "x": [0], "y": [0]}], "layout": {"xaxis": {"title": {"text": ""}}}})
        self.prepared = True

    def _wanted(self) -> tuple[object, ...]:
        model = self._model
        return (model.metric, model.mode, model.logarithmic, model.dark, model.book.count(model.metric))

    def draw(self) -> None:
        """Bring the figure up to date."""
        model = self._model
        wanted = self._wanted()
        mode: Mode = "ranks" if model.mode == "ranks" else "band"
        new = figure(model.book, model.metric, mode=mode, log=model.logarithmic, dark=model.dark)
        if self._figure is None or self._made_for != self.pages:
            self._show(new)
        else:
            update(self._figure, new)
        self._drawn = wanted

    def _show(self, new: dict[str, Any]) -> None:
        """Make a new figure: a page that was opened later knows nothing of the changes since the first was made."""
        self._made_for = self.pages
        old, self._figure = self._figure, figure_widget(new)
        self._plot.children = [self._figure]
        if old is not None:
            old.close()


def update(shown: go.FigureWidget, new: dict[str, Any]) -> None:
    """Make a figure equal to a newly computed one, trace by trace where the traces are the same in number and kind."""
    same = [trace.name for trace in shown.data] == [trace.get("name") for trace in new["data"]]
    with shown.batch_update():
        if same:
            for trace, values in zip(shown.data, new["data"], strict=True):
                trace.update(values, overwrite=True)
        shown.layout.update(new["layout"], overwrite=True)
    if not same:
        shown.data = ()
        shown.add_traces(new["data"])
