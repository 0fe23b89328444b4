"""Keeps what ranks and machines use in the job's folder, and notes what goes wrong with it while it does.

A full disk takes no samples and holds up nothing: those that it refuses are left out.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.resources import ResourceBook, ResourceReader, about_frame, sample_frame, torch_frame
from distdl_jupyter.core.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distdl_jupyter.clusters.base import NodeSample
    from distdl_jupyter.supervisor.recorder import EventRecorder

#: Ranks of which every second of a day is kept. Of more, and of later days, samples are kept so rarely that the file
#: grows by as many bytes as the day had, each time that the job is as old again as it was.
_RANKS, _DAY = 8, 86400.0
#: Seconds between two looks for what goes wrong, which costs more than to keep a sample.
_LOOK = 2.0
#: Codes of the notes.
CODES = {"memory": "memory-limit", "gpu_memory": "gpu-memory-grows", "gpu": "gpu-idle"}


class ResourceRecorder:
    """The writer of ``resources.bin``. Made when the first sample comes."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._path = recorder.folder.resources
        self._reader = ResourceReader(self._path)
        self._book = ResourceBook(self._reader.about, curves=False)
        #: When the last sample of each node was taken: another supervisor may read those of an earlier one again.
        self._last: dict[int, float] = {}
        #: The memory of torch that ranks reported last, and what of it is new since the last sample that was kept.
        self._torch: dict[int, Sequence[float]] = {}
        self._new_torch: dict[int, Sequence[float]] = {}
        self._begun: float | None = None
        self._noted: set[tuple[str, int]] = set()
        self._look_at = 0.0
        self._file = -1
        with contextlib.suppress(OSError):
            self._go_on()

    def _go_on(self) -> None:
        """Open the file and go on behind its last whole frame."""
        self._follow()
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.ftruncate(self._file, self._reader.cursor)

    def _follow(self) -> None:
        for sample in self._reader.all():
            self._begun = sample.t if self._begun is None else self._begun
            self._last[sample.node] = sample.t
            self._book.apply(sample)

    def take_torch(self, rank: int, memory: Sequence[float]) -> None:
        """Keep the bytes of GPU memory that torch has allocated and reserved in a rank, for the next sample."""
        if self._torch.get(rank) != memory:
            self._torch[rank] = self._new_torch[rank] = memory

    def take(self, samples: Sequence[NodeSample]) -> None:
        """Keep samples, and note what they say."""
        for node, data in samples:
            # A machine's agent says what it likes; what is no sample is left out.
            with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError, struct.error, OSError):
                self._keep(node, data)
        if samples and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK
            self._note()

    def _keep(self, node: int, data: Mapping[str, Any]) -> None:
        t = float(data["t"])
        if t < self._last.get(node, 0.0) + self._pause(t) or self._file < 0:
            return
        about = data.get("about")
        content = (b"" if about is None else about_frame(node, t, about)) + sample_frame(node, data)
        if self._new_torch:
            content = torch_frame(t, self._new_torch) + content
            self._new_torch = {}
        if os.write(self._file, content) < len(content):
            os.ftruncate(self._file, self._reader.cursor)
        self._follow()

    def _pause(self, t: float) -> float:
        """Return the least seconds between two samples that are kept."""
        age = 0.0 if self._begun is None else t - self._begun
        pause = age / _DAY * self._recorder.view.process_count / _RANKS
        return pause if pause > 1.0 else 0.1

    def _note(self) -> None:
        if self._recorder.view.state is not State.RUNNING:
            return
        for mark in self._book.marks():
            if (mark.kind, mark.rank) not in self._noted:
                self._noted.add((mark.kind, mark.rank))
                # Pages show it as long as it lasts (``views.resources``); this is what stays of it.
                self._recorder.note("info", mark.text, CODES[mark.kind])
                self._recorder.log(mark.text)
        for about in self._reader.about.values():
            if about.no_gpus and ("gpu", -1) not in self._noted:
                self._noted.add(("gpu", -1))
                self._recorder.note("info", f"{about.host}: {about.no_gpus}", "no-gpu-use")

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
