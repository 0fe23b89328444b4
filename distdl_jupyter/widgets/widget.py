"""What our widgets have in common: where their page's code comes from, and how a page's questions are answered.

In JupyterLab and Notebook the code is part of this package's extension and found by name: nothing that a notebook saves
of a widget is ever run. Other front ends have no such extension; there a widget brings its code along, by anywidget,
where that is installed.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import ipywidgets
import traitlets

from distdl_jupyter.core.errors import DistDLError, PluginUnavailable, docs_address
from distdl_jupyter.views.wire import to_json
from distdl_jupyter.widgets.assets import asset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    #: What a page may ask for, by name; what stands in ``given`` are the arguments.
    Calls = Mapping[str, Callable[..., object]]

W = TypeVar("W", bound="PageWidget")

_MODULE = "distdl-jupyter"


class PageWidget(ipywidgets.DOMWidget):  # type: ignore[misc]
    """A widget whose view is code of the extension; ``_view_name`` says which."""

    _model_name = traitlets.Unicode("PanelModel").tag(sync=True)
    _model_module = traitlets.Unicode(_MODULE).tag(sync=True)
    _model_module_version = traitlets.Unicode("*").tag(sync=True)
    _view_module = traitlets.Unicode(_MODULE).tag(sync=True)
    _view_module_version = traitlets.Unicode("*").tag(sync=True)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_msg(lambda _widget, message, _buffers: self.on_message(message))
        reachable(self)

    def on_message(self, message: dict[str, Any]) -> None:
        """Take a page's message: a question is answered."""
        if message.get("type") == "ask":
            calls = {"docs": docs_address, **self.calls}
            self.send({"type": "answer", "id": message.get("id"), **answer(calls, message)})

    @property
    def calls(self) -> Calls:
        """What a page may ask this widget for."""
        return {}


def answer(calls: Calls, message: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out what a page asks for (``ask``, with ``given`` as arguments); return ``value`` or ``error``.

    Never raises: the page waits, and a plug-in of somebody else may raise anything.
    """
    name = str(message.get("ask"))
    if name not in calls:
        unknown = DistDLError(
            f"Unknown request {name}.",
            code="kernel-call-unknown",
            hint="Reload the page.",
        )
        return {"error": unknown.to_json()}
    try:
        return {"value": to_json(calls[name](**dict(message.get("given") or {})))}
    except DistDLError as error:
        return {"error": error.to_json()}
    except Exception as error:  # noqa: BLE001
        return {
            "error": {"message": f"{type(error).__name__}: {error}", "hint": "", "field": "", "code": "internal-error"}
        }


def made_for_page(kind: type[W]) -> type[W]:
    """Return the class of a widget for the front end of the running cell.

    Raises PluginUnavailable where that needs anywidget and has none.
    """
    if has_extension():
        return kind
    found: type[W] = _with_its_code(kind)  # type: ignore[arg-type]  # classes are hashable
    return found


def has_extension() -> bool:
    """Say whether the front end of the running cell may have extensions of JupyterLab."""
    return "google.colab" not in sys.modules and not cell_id().startswith("vscode-")


def cell_id() -> str:
    """Return what the front end calls the running cell; "" outside notebooks."""
    try:
        from IPython.core.getipython import get_ipython

        parent: Any = get_ipython().get_parent()  # type: ignore[union-attr]
    except (ImportError, AttributeError, LookupError):
        return ""
    return str(((parent or {}).get("metadata") or {}).get("cellId") or "")


@functools.cache
def _with_its_code(kind: type[W]) -> type[W]:
    try:
        from anywidget import AnyWidget
    except ImportError:
        raise PluginUnavailable(
            "Widgets of distdl_jupyter need anywidget in this environment.",
            code="anywidget-missing",
            hint="Run pip install 'distdl-jupyter[anywidget]' and restart the kernel.",
        ) from None
    # AnyWidget's own traits say where its code is.
    names = {name: getattr(AnyWidget, name) for name in
             ("_model_name", "_model_module", "_model_module_version", "_view_name", "_view_module",
              "_view_module_version")}  # fmt: skip
    view = str(kind._view_name.default_value)  # noqa: SLF001
    return type(kind.__name__, (kind, AnyWidget), {**names, "_esm": asset(f"{view}.js"), "_css": asset("widgets.css")})


def reachable(widget: ipywidgets.Widget) -> None:
    """Let presses of a button arrive while the kernel runs another cell. Other kernels do that by themselves.

    JupyterLab 4.4 and newer sends the messages of widgets to a subshell of the kernel, a thread beside the busy one,
    and names it in each message. ipykernel 7.4 overrules the name: an answer goes where the widget's last message came
    from, which for a widget that was made in a cell or is updated by a thread is the busy main shell. Here the name
    counts again.
    """
    comm: Any = widget.comm
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = _as_addressed  # noqa: SLF001  (there is no public way)


def _as_addressed(_data: object, subshell_id: str | None) -> str | None:
    return subshell_id
