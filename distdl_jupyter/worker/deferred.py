"""Values that are still on a GPU: fetched by a thread, so that the training loop never waits for them.

``Tensor.item()`` would stop the loop until the GPU has caught up. Here the copy to the host is queued on the GPU's
current stream behind the work that makes the value, an event marks its end, and the thread waits for the event. One
thread and one queue keep the order. What is in the queue is lost when the process is killed; values on the CPU never
come here.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from typing import Any, NamedTuple

from distdl_jupyter.worker import scalar
from distdl_jupyter.worker.channel import Channel
from distdl_jupyter.worker.watch.tensors import cuda_event

#: Seconds that ``flush`` waits at most: a GPU that hangs must not hold the end of the process for ever.
TIMEOUT = 10.0


class Waiting(NamedTuple):
    """The values of one call: copies on the host that are valid once every event has passed."""

    out: Channel
    step: float
    t: float
    values: dict[str, Any]
    events: list[Any]
    again: bool


_queue: queue.Queue[Waiting] = queue.Queue()
_thread: threading.Thread | None = None


def add(out: Channel, step: float, tensors: dict[str, Any], *, again: bool = False) -> None:
    """Send GPU tensors of one element each as soon as their values have arrived.

    Raises TypeError for a tensor of more elements.
    """
    for name, tensor in tensors.items():
        if tensor.numel() != 1:
            scalar.to_json(name, tensor)
    values = {name: tensor.detach().to("cpu", non_blocking=True) for name, tensor in tensors.items()}
    events = [cuda_event(device) for device in {tensor.device for tensor in tensors.values()}]
    _queue.put(Waiting(out, step, time.time(), values, events, again))
    _start()


def flush() -> None:
    """Wait until the queue is empty, TIMEOUT seconds at most."""
    until = time.monotonic() + TIMEOUT
    while _queue.unfinished_tasks and time.monotonic() < until:
        time.sleep(0.002)


def _start() -> None:
    global _thread
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_run, name="distdl-metrics", daemon=True)
        _thread.start()


def _run() -> None:
    while True:
        waiting = _queue.get()
        # An error of the GPU is raised to the training code as well, which reports it.
        with contextlib.suppress(Exception):
            for event in waiting.events:
                event.synchronize()
            values = {name: scalar.to_json(name, value) for name, value in waiting.values.items()}
            waiting.out.metric(waiting.step, values, waiting.t, again=waiting.again)
        _queue.task_done()


def _renew() -> None:
    """Begin anew in a forked child: the thread is not there, and the values are the parent's to send."""
    global _queue, _thread
    _queue, _thread = queue.Queue(), None


os.register_at_fork(after_in_child=_renew)
