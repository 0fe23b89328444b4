"""Reports the metrics of Keras' ``Model.fit`` with a public callback, and reports when TensorFlow's workers connect.

The step of a metric is the number of batches so far, both for the logs of each batch (Keras' running means) and for the
values that are added at the end of an epoch (such as ``val_loss``), so that all curves share one axis. This applies to
Keras 2 (``tf_keras``) and 3. A batch is a step of ``step_times``. The parts of a step are measured only for Keras on
torch, by the hooks for torch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from distdl_jupyter.worker.hooks import trainers
from distdl_jupyter.worker.hooks.imports import Patches, call_hook, report_connect
from distdl_jupyter.worker.step_times import recorder

#: Module of ``Model`` by release: Keras 3, tf_keras and Keras 2.
_MODULES = ("keras.src.models.model", "tf_keras.src.engine.training", "keras.src.engine.training")
#: Number of arguments of ``fit`` before ``callbacks``. If code passes callbacks by position, metrics are not reported.
_CALLBACKS_INDEX = 5
_patch = Patches()
#: Hooks ``Model.fit``, and the strategy that connects TensorFlow's workers.
install_hooks = _patch.install


@_patch("CollectiveAllReduceStrategy.__init__", "tensorflow.python.distribute.collective_all_reduce_strategy")
def _connect(init: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Report when ``tf.distribute.MultiWorkerMirroredStrategy`` connects. Its constructor waits for all workers."""

    def get_fields() -> dict[str, Any]:
        jobs = self.cluster_resolver.cluster_spec().as_dict()
        return {"backend": "tensorflow", "size": sum(map(len, jobs.values())) or 1}

    with report_connect(get_fields):
        init(self, *args, **kwargs)


@_patch("Model.fit", *_MODULES)
def _fit(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if "DISTDL_CHECK" in os.environ:
        raise RuntimeError("check() compares the steps of torch optimizers, so it cannot check Keras.")

    def add_callback() -> None:
        packages = (base.__module__.split(".")[0] for base in type(self).__mro__)
        callbacks = sys.modules[next(package for package in packages if package in ("keras", "tf_keras"))].callbacks
        callback, existing = type("JobMetrics", (_KerasCallback, callbacks.Callback), {})(), kwargs.get("callbacks")
        if isinstance(existing, callbacks.CallbackList):
            existing.callbacks.append(callback)
        else:
            items = existing if isinstance(existing, list | tuple) else filter(None, [existing])
            kwargs["callbacks"] = [*items, callback]

    if len(args) <= _CALLBACKS_INDEX:
        call_hook("before Model.fit", add_callback)
    return original(self, *args, **kwargs)


class _KerasCallback:
    """The methods of our callback. ``async_safe`` is not set, because Keras would call them in any order."""

    params: dict[str, Any] | None
    _steps = 0
    _epoch_start = 0
    _reported: frozenset[str] = frozenset()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch_start = self._steps

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if recorder.is_detailed:
            recorder.record_pass(is_forward=True)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        def report() -> None:
            metrics, params = dict(logs or {}), self.params or {}
            self._steps, self._reported = self._epoch_start + batch + 1, frozenset(metrics)
            trainers.report_metrics("keras", self._steps, metrics)
            if (steps := params.get("steps")) and (epochs := params.get("epochs")):
                trainers.report_progress(self._steps, steps * epochs, "steps")

        recorder.record_step()
        call_hook("in Model.fit", report)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        def report() -> None:
            metrics, params = dict(logs or {}), self.params or {}
            new_metrics = {name: value for name, value in metrics.items() if name not in self._reported}
            trainers.report_metrics("keras", self._steps, new_metrics)
            if not params.get("steps") and (epochs := params.get("epochs")):
                trainers.report_progress(epoch + 1, epochs, "epochs")

        call_hook("in Model.fit", report)
