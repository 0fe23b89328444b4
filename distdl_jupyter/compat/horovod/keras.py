"""``horovod.keras`` for Keras 3: change the import to ``import distdl_jupyter.compat.horovod.keras as hvd``.

Horovod 0.28 averages gradients in an optimizer method that Keras 3 no longer calls, so each rank would silently train a
separate model. This module averages them in ``Optimizer.apply``, for the torch and TensorFlow backends (the latter
needs a Horovod built for it). All other names are those of ``horovod.torch`` or ``horovod.tensorflow``.
"""

from __future__ import annotations

import functools
from typing import Any

import keras

_BACKEND = keras.backend.backend()
if _BACKEND == "tensorflow":
    import horovod.tensorflow as _hvd
elif _BACKEND == "torch":
    import horovod.torch as _hvd
else:
    raise ImportError(f"Horovod supports only the TensorFlow and torch backends of Keras, not {_BACKEND}. Set "
                      "KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch.")  # fmt: skip


def __getattr__(name: str) -> Any:
    return getattr(_hvd, name)


class _GradientAveragingMixin:
    """Mixin for optimizers that average gradients over all ranks."""

    #: Horovod's reduction operation and compression.
    _allreduce_options: dict[str, Any]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Average the gradients over all ranks, and apply them."""
        indices = [index for index, gradient in enumerate(grads) if gradient is not None]
        averaged = list(grads)
        if indices and _hvd.size() > 1:
            dense = [keras.ops.convert_to_tensor(grads[index]) for index in indices]
            for index, gradient in zip(indices, _hvd.grouped_allreduce(dense, **self._allreduce_options), strict=True):
                averaged[index] = gradient
        return super().apply(averaged, trainable_variables)  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: keras.Optimizer, *, op: Any = _hvd.Average, compression: Any = _hvd.Compression.none
) -> keras.Optimizer:
    """Return a copy of an optimizer, with the same class name, that averages gradients over all ranks."""
    optimizer_class, options = type(optimizer), {"op": op, "compression": compression}
    bases, attributes = (_GradientAveragingMixin, optimizer_class), {"_allreduce_options": options}
    averaging_class: Any = type(optimizer_class.__name__, bases, attributes)
    return averaging_class.from_config(optimizer.get_config())


_compile = keras.Model.compile


@functools.wraps(_compile)
def _compile_without_xla(self: Any, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> Any:
    """Disable XLA, which cannot compile Horovod's operations."""
    if isinstance(optimizer, _GradientAveragingMixin) and kwargs.get("jit_compile", "auto") == "auto":
        kwargs["jit_compile"] = False
    return _compile(self, optimizer, *args, **kwargs)


keras.Model.compile = _compile_without_xla


class callbacks:  # noqa: N801  Horovod's module
    """Horovod's callbacks for Keras."""

    class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """Broadcasts the model and optimizer variables of ``root_rank`` to all ranks when training begins."""

        def __init__(self, root_rank: int = 0, **_kwargs: Any) -> None:
            super().__init__()
            self._root_rank, self._has_broadcast = root_rank, False

        def on_train_begin(self, logs: Any = None) -> None:
            """Broadcast, unless the model creates its variables on the first batch."""
            if self.model.built:
                self._broadcast()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Broadcast the variables that the first batch created."""
            if not self._has_broadcast:
                self._broadcast()

        def _broadcast(self) -> None:
            optimizer = self.model.optimizer
            if not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            variables = [*self.model.weights, *optimizer.variables]
            arrays = [keras.ops.convert_to_numpy(variable) for variable in variables]
            values = _hvd.broadcast_object(arrays, self._root_rank)
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            self._has_broadcast = True

    class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """Averages the metrics of an epoch over all ranks; put it before callbacks that use them."""

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            """Replace the metrics with their means over all ranks."""
            if logs:
                by_rank = _hvd.allgather_object({name: float(value) for name, value in logs.items()})
                logs.update({name: sum(metrics[name] for metrics in by_rank) / len(by_rank) for name in logs})

    class LearningRateWarmupCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """Raises the learning rate from ``initial_lr`` / size to ``initial_lr`` over the first epochs (Goyal 2017)."""

        def __init__(
            self, initial_lr: float, warmup_epochs: float = 5, steps_per_epoch: int | None = None, **_kwargs: Any
        ) -> None:
            super().__init__()
            self._initial, self._epochs, self._steps, self._epoch = initial_lr, warmup_epochs, steps_per_epoch, 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            """Store the number of the epoch."""
            self._epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            """Set the learning rate, for the last time in the first epoch after the warm-up."""
            if self._epoch <= self._epochs:
                steps = self._steps or (self.params or {}).get("steps") or 1
                progress = min(1, (self._epoch + batch / steps) / self._epochs)
                self.model.optimizer.learning_rate.assign(self._initial * (progress + (1 - progress) / _hvd.size()))
