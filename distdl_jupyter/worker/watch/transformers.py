"""Picks up what a Hugging Face ``Trainer`` logs, through a callback of its public interface."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from distdl_jupyter.worker.watch import autolog
from distdl_jupyter.worker.watch.hooks import PostImport, guarded

#: Bookkeeping of a run rather than a curve.
_NOT_METRICS = ("epoch", "step", "total_flos")
_NOT_METRICS_END = "_runtime"


def watch(finder: PostImport) -> None:
    """Ask to be told when the Trainer is imported."""
    finder.after("transformers.trainer", _watch_trainer)


def _watch_trainer(module: ModuleType) -> None:
    trainer = module.Trainer
    for name in ("train", "evaluate"):
        setattr(trainer, name, _with_callback(getattr(trainer, name)))
    original = trainer.log

    @functools.wraps(original)
    def log(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Its TensorBoardCallback writes the same values under other names.
        with autolog.muted():
            return original(self, *args, **kwargs)

    trainer.log = log


def _with_callback(original: Any) -> Any:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        guarded("before the Trainer ran", _add_callback, self)
        try:
            with autolog.driving():
                return original(self, *args, **kwargs)
        finally:
            guarded("after the Trainer ran", autolog.release)

    return method


def _add_callback(trainer: Any) -> None:
    if not any(isinstance(callback, _Reports) for callback in trainer.callback_handler.callbacks):
        base = sys.modules["transformers.trainer_callback"].TrainerCallback
        trainer.add_callback(type("JobMetrics", (_Reports, base), {})())


class _Reports:
    """The callback's methods; the Trainer calls them with its own arguments."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        kept = {name: value for name, value in (logs or {}).items() if _is_metric(name)}
        guarded("in the Trainer's log", autolog.offer, "transformers", state.global_step, kept)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.max_steps and state.max_steps > 0:
            guarded("in the Trainer's step", autolog.advance, state.global_step, state.max_steps, "steps")


def _is_metric(name: str) -> bool:
    return name not in _NOT_METRICS and not name.endswith(_NOT_METRICS_END)
