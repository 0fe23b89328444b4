"""Tells training code where and when to save checkpoints: ``checkpoint_dir()`` and ``should_checkpoint()``.

The files in the folder are restored for the next attempt and for a resumed job, and are returned as an output of the
job. This module does not read or write checkpoints.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from distdl_jupyter.worker import channel


def checkpoint_dir() -> Path:
    """Create and return the job's checkpoint folder. Outside a job, it is ``checkpoints`` in the working directory.

    All ranks on a node have the same folder. Nodes without a shared file system have separate folders; if these contain
    files with the same name, the file from the node of rank 0 is used. Let rank 0 write and all ranks read.

    A rank can be stopped while it writes, so write to another name and rename the file, which is atomic::

        path = distdl_jupyter.checkpoint_dir() / "last.pt"
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    Raises OSError if the folder cannot be created.
    """
    job = os.environ.get("DISTDL_JOB_DIR")
    folder = Path(job, "outputs", "checkpoints") if job else Path.cwd() / "checkpoints"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


#: Two signals within this many seconds count as one warning, because Slurm and the node's agent may each send one.
_SAME = 3.0


class _Warning:
    """Records whether a batch system has announced that it will end the job soon.

    The first call of ``should_checkpoint`` installs the signal handlers. In code that never calls it, signals have
    their usual effect, and a library that checks for existing handlers (such as Lightning) can install other handlers.
    """

    def __init__(self) -> None:
        self._listens = False
        self._came = False
        self._came_at = -_SAME

    def listen(self) -> None:
        """Install the handlers once. They also call the handlers that training code has installed before."""
        if self._listens or threading.current_thread() is not threading.main_thread():
            return
        self._listens = True
        # Slurm sends SIGTERM some time before SIGKILL. On other clusters, SIGTERM ends the rank as usual.
        for number in (signal.SIGUSR1, *((signal.SIGTERM,) if "SLURM_PROCID" in os.environ else ())):
            signal.signal(number, self._handler(signal.getsignal(number)))

    def _handler(self, before: Any) -> Callable[[int, FrameType | None], None]:
        def handle(number: int, frame: FrameType | None) -> None:
            now = time.monotonic()
            self._came, self._came_at = self._came or now - self._came_at > _SAME, now
            if callable(before):
                before(number, frame)

        return handle

    def take(self) -> bool:
        """Return whether a warning was received since the last call."""
        came, self._came = self._came, False
        return came


_warning = _Warning()


def should_checkpoint() -> bool:
    """Return whether this rank should save a checkpoint now because the job will end soon; True once per warning.

    Slurm warns a job before its time limit (cluster option ``checkpoint_seconds``) and before it is preempted, if the
    site allows time for that. Call this after every step, in the main thread; it costs almost nothing::

        if step % 100 == 99 or distdl_jupyter.should_checkpoint():
            save(step)

    Ranks can receive the warning at different steps. If all ranks save together (FSDP, DeepSpeed), make them agree, for
    example with an all-reduce of the result every few steps. On other clusters, and outside a job, the result is always
    False unless the process receives SIGUSR1.
    """
    _warning.listen()
    warned = _warning.take()
    if warned:
        channel.note("info", "The code was asked to save a checkpoint because the job will stop soon.",
                    "should-checkpoint")  # fmt: skip
    return warned
