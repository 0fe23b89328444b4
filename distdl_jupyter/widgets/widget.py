"""The base class of the widgets, which selects their view and handles the requests of pages.

In JupyterLab and Notebook, the extension of this package draws the view, selected by name, so a notebook contains no
code to execute. Front ends without the extension show the HTML of the widget.
"""

from __future__ import annotations

from typing import Any

import ipywidgets

from distdl_jupyter.jobs.output import has_extension
from distdl_jupyter.views.wire import Handlers, handle_request

_MODULE = "distdl-jupyter"


class PageWidget(ipywidgets.HTML):  # type: ignore[misc]
    """A widget that the extension draws with the view of this name; without the extension, ``value`` is shown.

    ``handlers`` are the functions that a page may call.
    """

    def __init__(self, view: str, handlers: Handlers | None = None, **traits: Any) -> None:
        if has_extension():
            traits |= {f"_{part}_module": _MODULE for part in ("model", "view")}
            traits |= {f"_{part}_module_version": "*" for part in ("model", "view")}
            traits |= {"_model_name": "PanelModel", "_view_name": view}
        super().__init__(layout=create_shared_layout(), **traits)
        self._handlers = handlers or {}
        self.on_msg(lambda _widget, message, _buffers: self.on_message(message))
        # JupyterLab 4.4 and newer sends the messages of widgets to a subshell of the kernel, that is, another thread,
        # and each message names its subshell. ipykernel 7.4 ignores the name and replies on the shell of the widget's
        # last message: the busy main shell if a cell created the widget or a thread updates it. These lines restore
        # the named subshell, as in other kernels.
        comm: Any = self.comm
        if hasattr(comm, "_reply_subshell_for"):
            comm._reply_subshell_for = lambda _data, subshell_id: subshell_id  # noqa: SLF001 - there is no public way

    def close(self) -> None:
        """Close the widget with its layout and style widgets, which are not shared."""
        if self.comm is not None:
            self.layout.close()
            self.style.close()
        super().close()

    def on_message(self, message: dict[str, Any]) -> None:
        """Handle a request of a page."""
        if message.get("type") == "request":
            self.send({"type": "answer", "id": message.get("id"), **handle_request(self._handlers, message)})


def create_shared_layout() -> ipywidgets.Layout:
    """Return a layout that makes widgets share the width of an ``HBox``."""
    return ipywidgets.Layout(flex="1 1 0%", min_width="0")
