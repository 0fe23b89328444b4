"""A job's data on its way in and its outputs on their way out, as far as the supervisor has a part in it.

What asks Azure runs in a thread, so that a wish to cancel is heard at once. Azure's packages are imported only for a
job that names a place in Blob.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.words import plural, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.storage.staging import JobStaging
    from distdl_jupyter.supervisor.ledger import Ledger

T = TypeVar("T")
_TICK = 0.1
#: Seconds that a delivery has to end by itself when somebody wants it to.
_LAST = 5.0


def staging(spec: JobSpec, ledger: Ledger, heed: Callable[[], None]) -> JobStaging | None:
    """Return what brings the job's data to its nodes, None when it has none.

    ``heed`` may raise to end the wait. Raises DataUnavailable, NotSignedIn.
    """
    if not spec.data:
        return None
    from distdl_jupyter.storage.staging import JobStaging

    ledger.phase("stage", f"looking at {plural(len(spec.data), 'data source')}")
    found = JobStaging(spec, ledger.write)
    work = _Work(found.prepare)
    while not work.done(_TICK):
        heed()
    for text in work.result():
        ledger.note("warning", text, "data")
    ledger.say(f"Data: {found.summary}")
    return found


def deliver(spec: JobSpec, folder: JobFolder, ledger: Ledger, *, failed: bool, canceled: Callable[[], bool]) -> None:
    """Send outputs, values and the log of a job that failed to the place that it names.

    Whatever goes wrong is a warning: the files stay in the job's folder. ``canceled`` is asked again and again.
    """
    if not spec.outputs:
        return
    from distdl_jupyter.storage import outgoing

    stop = threading.Event()
    place = outgoing.url(spec)
    ledger.phase("collect", f"sending outputs to {place}")
    work = _Work(lambda: outgoing.deliver(folder, spec, with_log=failed, stopped=stop.is_set))
    until: float | None = None
    while not work.done(_TICK) and (until is None or time.monotonic() < until):
        if until is None and canceled():
            stop.set()
            until = time.monotonic() + _LAST
    here = f"The files stay in {folder.path}."
    if until is not None:
        ledger.note("warning", f"The outputs were not sent to {place} whole, because you stopped it. {here}", "outputs")
        return
    try:
        sent = work.result()
    except (DistDLError, OSError) as error:
        ledger.note("warning", f"The outputs were not sent: {error} {here}", "outputs")
        return
    if sent.warning:
        ledger.note("warning", sent.warning, "data")
    there = f", {plural(sent.there, 'file')} were there already" if sent.there else ""
    ledger.say(f"Sent {plural(sent.files, 'file')}, {size(sent.bytes)}, to {place}{there}")
    ledger.phase("collect", f"{plural(sent.files, 'file')} to {place}")


class _Work(Generic[T]):
    """A function in a thread that nobody has to wait for."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="data", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._function())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is wanted
            self._error = error

    def done(self, seconds: float) -> bool:
        """Wait so long at most and say whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> T:
        """Return or raise what the function did."""
        if self._error is not None:
            raise self._error
        return self._found[0]
