"""A scaling study in a cell's output: filled while the runs go on, and readable for ever.

``application/vnd.distdl.scaling+json`` names the study for front ends that know it, which ask the server for it;
``text/html`` and ``text/plain`` are what is known of it. The output is written anew while the cell runs.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from distdl_jupyter import scaling_study
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.saved import scaling as saved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.core.scaling import Run
    from distdl_jupyter.views.scaling import ScalingShown

SCALING_MIME = "application/vnd.distdl.scaling+json"
#: Seconds between two writings.
_PACE = 1.0
#: The study that the running cell shows already, and that cell's request.
_shown: tuple[str, str] = ("", "")


class Output:
    """The output of one study, in the cell that drives it."""

    def __init__(self, id_: str) -> None:
        self._id = id_
        self._display_id = uuid.uuid4().hex
        self._written = 0.0
        self._is_there = False

    def update(self) -> None:
        """Show what is known now, if some time has passed."""
        if time.monotonic() - self._written >= _PACE:
            self._write()

    def measured(self, _backend: str, _count: int, _runs: Sequence[Run]) -> None:
        """Show that a run was measured."""
        self._write()

    def settle(self) -> None:
        """Show the end."""
        self._write(over=True)

    def _write(self, *, over: bool = False) -> None:
        global _shown
        try:
            found = scaling_study.find(self._id, over=over)
        except JobNotFound:  # nothing was started
            return
        _publish(found, self._display_id, update=self._is_there)
        self._is_there, self._written = True, time.monotonic()
        _shown = (found.id, _request())


def show(found: ScalingShown) -> None:
    """Display a study, unless the running cell shows it already."""
    if found.facts is None:
        from IPython.display import publish_display_data

        publish_display_data({"text/html": found._repr_html_(), "text/plain": str(found)})  # type: ignore[no-untyped-call]
    elif _shown != (found.id, _request()):
        _publish(found, uuid.uuid4().hex, update=False)


def in_notebook() -> bool:
    """Say whether this is a kernel, whose output is a notebook's."""
    return bool(_request())


def _request() -> str:
    """Return the id of the request that the kernel carries out, "" outside notebooks."""
    try:
        from IPython.core.getipython import get_ipython

        parent: Any = get_ipython().get_parent()  # type: ignore[union-attr]
    except (ImportError, AttributeError, LookupError):
        return ""
    return str(((parent or {}).get("header") or {}).get("msg_id") or "")


def _publish(found: ScalingShown, display_id: str, *, update: bool) -> None:
    from IPython.display import publish_display_data

    bundle = {
        SCALING_MIME: {"id": found.id, "version": 1},
        "text/html": saved.html(found.panel),
        "text/plain": str(found),
    }
    publish_display_data(bundle, transient={"display_id": display_id}, update=update)  # type: ignore[no-untyped-call]
