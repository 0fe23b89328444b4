"""The end of a job whose supervisor cannot go on, because it gets no more processes, files or memory.

The caller holds the job's lock, so it still is the one writer; what its ledger held is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.clusters import processes
from distdl_jupyter.core import events, limits, snapshot
from distdl_jupyter.core.state import State
from distdl_jupyter.core.view import JobView

if TYPE_CHECKING:
    from distdl_jupyter.core.store import JobFolder


def end(folder: JobFolder, error: BaseException) -> bool:
    """End every process of the job here and write why it has failed.

    Returns False, and does nothing, for an error that no limit has caused. Raises OSError when nothing can be written.
    """
    remedy = limits.remedy(error)
    if not remedy:
        return False
    processes.kill_all(folder.id)
    if not _view(folder).state.ended:
        reason = getattr(error, "strerror", None) or str(error) or "out of memory"
        writer = events.EventWriter(folder.events)
        writer.write(
            "state", state=State.FAILED.value, reason=f"The job's supervisor could not go on: {reason}. {remedy}"
        )
        writer.close()
    return True


def _view(folder: JobFolder) -> JobView:
    """Return the job as it stands in its log, without the lines that it printed."""
    view, cursor = snapshot.read(folder) or (JobView.of(folder.spec()), 0)
    while True:
        found, after = events.read(folder.events, cursor, part="others")
        if after == cursor:
            return view
        cursor = after
        for event in found:
            view.apply(event)
