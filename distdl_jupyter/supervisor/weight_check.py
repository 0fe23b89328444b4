"""Compares the checksums of weights that ranks report, and says once from which step on they differ.

See ``worker.hooks.parallel`` for what is summed. Ranks on processors of another kind round otherwise, so only those
on the same kind are compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.humanize import count, ranks

if TYPE_CHECKING:
    from distdl_jupyter.supervisor.recorder import EventRecorder

#: Steps of an optimizer that not all ranks have reported yet, beyond which the oldest are given up.
_MOST_WAITING = 16


class WeightCheck:
    """The checksums of one job. Made when the first one arrives."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._attempt = -1
        self._forget()
        self._reported = False

    def _forget(self) -> None:
        self._waiting: dict[tuple[int, int], dict[int, tuple[str, str]]] = {}
        #: By optimizer, the last step in which all were the same.
        self._same: dict[int, int] = {}

    def take(self, rank: int, report: dict[str, Any]) -> None:
        """Take the checksum of one rank after a step."""
        view = self._recorder.view
        if view.restart_count != self._attempt:
            self._attempt = view.restart_count
            self._forget()
        place = (report["optimizer"], report["step"])
        found = self._waiting.setdefault(place, {})
        found[rank] = (report["device"], report["sum"])
        if len(found) == view.process_count:
            del self._waiting[place]
            self._compare(*place, found)
        elif len(self._waiting) > _MOST_WAITING:
            del self._waiting[min(self._waiting, key=lambda one: one[1])]

    def _compare(self, optimizer: int, step: int, found: dict[int, tuple[str, str]]) -> None:
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        for device, total in found.values():
            sums[device][total] += 1
        usual = {device: counts.most_common(1)[0][0] for device, counts in sums.items()}
        apart = sorted(rank for rank, (device, total) in found.items() if total != usual[device])
        if not apart:
            if not self._same:
                self._recorder.write("averaged")
            self._same[optimizer] = step
        elif not self._reported:
            self._reported = True
            self._recorder.note(
                "warning", _sentence(apart, len(found), step, self._same.get(optimizer, 0)), "weights-depart"
            )


def _sentence(apart: list[int], size: int, step: int, same: int) -> str:
    if size == 2:
        who = "The two ranks have different weights"
    else:
        who = f"The weights of {ranks(apart)} of {count(size)} differ from the others"
    since = f", and the same after step {count(same)}" if same else ""
    return (f"{who} after step {count(step)}{since}: from this step on, each rank trains its own model. Find the cause "
        "with: distdl check")  # fmt: skip
