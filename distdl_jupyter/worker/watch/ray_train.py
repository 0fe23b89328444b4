"""Picks up what the workers of a Ray Train trainer report, in the process that calls ``fit()``.

Ray hands the metrics of ``ray.train.report`` to callbacks of its controller, another process, so they come back by a
queue of Ray's. As in Ray's own results they are those of worker 0, numbered by the reports.
"""

from __future__ import annotations

import functools
import sys
import threading
from types import ModuleType
from typing import Any

from distdl_jupyter.worker.watch import autolog
from distdl_jupyter.worker.watch.hooks import PostImport, guarded

#: Seconds that the thread waits for a report before it looks whether training has ended.
_WAIT_SECONDS = 0.5


def watch(finder: PostImport) -> None:
    """Ask to be told when Ray Train is imported."""
    finder.after("ray.train.v2.api.data_parallel_trainer", _watch_trainer)


def _watch_trainer(module: ModuleType) -> None:
    trainer = module.DataParallelTrainer
    original = trainer.fit

    @functools.wraps(original)
    def fit(self: Any) -> Any:
        reports = guarded("before the trainer's fit", _Reports, self)
        try:
            return original(self)
        finally:
            if reports is not None:
                guarded("after the trainer's fit", reports.close)

    trainer.fit = fit


class _Reports:
    """The reports of one trainer's workers, offered while it trains."""

    def __init__(self, trainer: Any) -> None:
        from ray.util.queue import Queue

        self._queue = Queue(actor_options={"num_cpus": 0})
        self._config = trainer.run_config
        self._callbacks = self._config.callbacks
        self._config.callbacks = [*(self._callbacks or ()), _callback(self._queue)]
        self._ended = threading.Event()
        self._count = 0
        self._thread = threading.Thread(target=self._follow, name="ray reports", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        from ray.util.queue import Empty

        while True:
            ended = self._ended.is_set()
            try:
                metrics = self._queue.get(timeout=_WAIT_SECONDS)
            except Empty:
                if ended:
                    return
            except Exception:  # noqa: BLE001 - Ray is gone, and with it all that it could say
                return
            else:
                self._count += 1
                guarded("in ray.train.report", autolog.offer, "ray.train", self._count, metrics)

    def close(self) -> None:
        """Offer what is left."""
        self._config.callbacks = self._callbacks
        self._ended.set()
        self._thread.join()
        autolog.release()
        self._queue.shutdown()


def _callback(queue: Any) -> Any:
    """Return a callback for Ray's controller, where this package need not be: it travels by value."""
    base: Any = sys.modules["ray.train"].UserCallback

    class JobMetrics(base):  # type: ignore[misc]
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            if metrics and metrics[0]:
                queue.put(dict(metrics[0]))

    return JobMetrics()
