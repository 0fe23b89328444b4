"""Picks up the training loss of every batch and all that Lightning logs, from ``lightning`` and ``pytorch_lightning``.

The loss comes through a callback of the public interface. What ``self.log`` collects is taken where Lightning hands it
to its loggers (``_LoggerConnector.log_metrics``, read in release 2.6), with the names and steps that it gives them.
"""

from __future__ import annotations

import functools
import math
import sys
from types import ModuleType
from typing import Any

from distdl_jupyter.worker.watch import autolog
from distdl_jupyter.worker.watch.hooks import PostImport, guarded

_CONNECTOR = "trainer.connectors.logger_connector.logger_connector"
PACKAGES = ("lightning.pytorch", "pytorch_lightning")
#: What Lightning adds for its own bookkeeping.
_NOT_METRICS = ("epoch", "step")


def watch(finder: PostImport) -> None:
    """Ask to be told when Lightning is imported."""
    for package in PACKAGES:
        finder.after(f"{package}.trainer.trainer", functools.partial(_watch_trainer, package))
        finder.after(f"{package}.{_CONNECTOR}", _watch_loggers)


def _watch_trainer(package: str, module: ModuleType) -> None:
    trainer = module.Trainer
    original = trainer.fit

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        guarded("before Trainer.fit", _add_callback, package, self)
        try:
            with autolog.driving():
                return original(self, *args, **kwargs)
        finally:
            guarded("after Trainer.fit", autolog.release)

    trainer.fit = fit


def _add_callback(package: str, trainer: Any) -> None:
    if not any(isinstance(callback, _Reports) for callback in trainer.callbacks):
        base = sys.modules[package].Callback
        trainer.callbacks.append(type("JobMetrics", (_Reports, base), {})())


def _watch_loggers(module: ModuleType) -> None:
    connector = module._LoggerConnector  # noqa: SLF001  see the module's docstring
    original = connector.log_metrics

    @functools.wraps(original)
    def log_metrics(self: Any, metrics: dict[str, Any], step: int | None = None) -> Any:
        guarded("in Lightning's logging", _offer, self.trainer, metrics, step)
        with autolog.muted():
            return original(self, metrics, step)

    connector.log_metrics = log_metrics


def _offer(trainer: Any, metrics: dict[str, Any], step: int | None) -> None:
    if step is None:
        step = int(metrics["step"]) if "step" in metrics else _steps(trainer)
    autolog.offer("lightning", step, {name: value for name, value in metrics.items() if name not in _NOT_METRICS})


def _steps(trainer: Any) -> int:
    """Return the number of the batch by which Lightning itself logs, from 0."""
    inner = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", None)
    return int(trainer.global_step if inner is None else inner)


class _Reports:
    """The callback's methods; Lightning calls them with its own arguments."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        guarded("in Trainer.fit", self._batch, trainer, outputs, batch_idx)

    def _batch(self, trainer: Any, outputs: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            autolog.offer("lightning batches", _steps(trainer), {"loss": loss.detach()})
        batches, epochs, steps = trainer.num_training_batches, trainer.max_epochs, trainer.max_steps
        if steps is not None and steps > 0:
            autolog.advance(trainer.global_step, steps, "steps")
        elif epochs and epochs > 0 and math.isfinite(batches):
            autolog.advance(trainer.current_epoch * batches + batch_idx + 1, epochs * batches, "batches")
