"""Picks up the loss of every step and all that ``Accelerator.log`` is given, from Hugging Face Accelerate.

Nothing in Accelerate names a step's loss, but every loop calls ``Accelerator.backward`` with it.
"""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any

from distdl_jupyter.worker.watch import autolog
from distdl_jupyter.worker.watch.hooks import PostImport, guarded

_losses = autolog.Losses()
#: Steps of each Accelerator so far.
_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def watch(finder: PostImport) -> None:
    """Ask to be told when Accelerate is imported."""
    finder.after("accelerate.accelerator", _watch_accelerator)


def _watch_accelerator(module: ModuleType) -> None:
    accelerator = module.Accelerator
    backward, log = accelerator.backward, accelerator.log

    @functools.wraps(backward)
    def watched_backward(self: Any, loss: Any, **kwargs: Any) -> Any:
        with autolog.driving() as ours:
            result = backward(self, loss, **kwargs)
        if ours:
            guarded("in Accelerator.backward", _batch, self, loss)
        return result

    @functools.wraps(log)
    def watched_log(self: Any, values: dict[str, Any], step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        at = _steps.get(self, 0) if step is None else step
        guarded("in Accelerator.log", autolog.offer, "Accelerator.log", at, dict(values))
        with autolog.muted():  # its trackers write the same values
            return log(self, values, step, *args, **kwargs)

    accelerator.backward, accelerator.log = watched_backward, watched_log


def _batch(accelerator: Any, loss: Any) -> None:
    _losses.keep(accelerator, loss)
    if accelerator.sync_gradients:
        _steps[accelerator] = _steps.get(accelerator, 0) + 1
        autolog.offer("accelerate", _steps[accelerator], _losses.mean(accelerator))
