"""Presses of a button must arrive while the kernel runs another cell.

JupyterLab 4.4 and newer sends the messages of widgets to a subshell of the kernel, a thread beside the busy one, and
names it in each message. ipykernel 7.4 overrules the name: an answer goes where the widget's last message came from,
which for a widget that was made in a cell or is updated by a thread is the busy main shell. Here the name counts again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ipywidgets


def reachable(widget: ipywidgets.Widget) -> None:
    """Let messages to this widget reach the shell that they are addressed to. Other kernels do that by themselves."""
    comm: Any = widget.comm
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = _as_addressed  # noqa: SLF001  (there is no public way)


def _as_addressed(_data: object, subshell_id: str | None) -> str | None:
    return subshell_id
