"""``horovod.keras`` for Keras 3: ``import distdl_jupyter.compat.horovod.keras as hvd``, and the rest of a script stays.

Horovod 0.28 averages gradients in a method of the optimizer that Keras 3 no longer calls, so each rank would train a
model of its own, without an error. Here they are averaged where Keras 3 takes them: in ``Optimizer.apply``, for its
backends TensorFlow (with a Horovod built for it) and torch. The names and their meaning are Horovod's
(https://horovod.readthedocs.io/en/stable/keras.html); one that is missing says so.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import keras

_BACKEND = keras.backend.backend()
if _BACKEND == "tensorflow":
    import horovod.tensorflow as _hvd
elif _BACKEND == "torch":
    import horovod.torch as _hvd
else:
    raise ImportError(f"Horovod averages gradients of TensorFlow and torch only, but Keras uses {_BACKEND}. Set "
                      "KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch.")  # fmt: skip

Average, Sum, Adasum, Compression = _hvd.Average, _hvd.Sum, _hvd.Adasum, _hvd.Compression
init, shutdown, is_initialized = _hvd.init, _hvd.shutdown, _hvd.is_initialized
size, rank, local_size, local_rank, cross_size, cross_rank = (
    _hvd.size, _hvd.rank, _hvd.local_size, _hvd.local_rank, _hvd.cross_size, _hvd.cross_rank,
)  # fmt: skip
gloo_built, mpi_built, nccl_built, mpi_enabled, gloo_enabled, mpi_threads_supported = (
    _hvd.gloo_built, _hvd.mpi_built, _hvd.nccl_built, _hvd.mpi_enabled, _hvd.gloo_enabled, _hvd.mpi_threads_supported,
)  # fmt: skip
broadcast_object, allgather_object = _hvd.broadcast_object, _hvd.allgather_object


class _Averaging:
    """What an optimizer's class gets before it."""

    #: The operation and the compression of Horovod.
    _how: dict[str, Any]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Average the gradients over all ranks, and apply them."""
        present = [at for at, gradient in enumerate(grads) if gradient is not None]
        mean = list(grads)
        if present and size() > 1:
            dense = [keras.ops.convert_to_tensor(grads[at]) for at in present]
            for at, gradient in zip(present, _hvd.grouped_allreduce(dense, **self._how), strict=True):
                mean[at] = gradient
        return super().apply(mean, trainable_variables)  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: keras.Optimizer, *, op: Any = Average, compression: Any = Compression.none
) -> keras.Optimizer:
    """Return an optimizer as the given one, of a class of the same name, that averages gradients over all ranks."""
    kind = type(optimizer)
    made: Any = type(kind.__name__, (_Averaging, kind), {"_how": {"op": op, "compression": compression}})
    return made.from_config(optimizer.get_config())


def _compile_without_xla(compile_: Any) -> Any:
    """Return ``Model.compile`` that leaves XLA out for our optimizers: Horovod's operations are none of its."""

    @functools.wraps(compile_)
    def watched(self: Any, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> Any:
        if isinstance(optimizer, _Averaging) and kwargs.setdefault("jit_compile", False) == "auto":
            kwargs["jit_compile"] = False
        return compile_(self, optimizer, *args, **kwargs)

    return watched


keras.Model.compile = _compile_without_xla(keras.Model.compile)


def broadcast_variables(variables: Any, root_rank: int = 0) -> None:
    """Give all ranks the values that variables have on one."""
    values = broadcast_object([keras.ops.convert_to_numpy(one) for one in variables], root_rank)
    for one, value in zip(variables, values, strict=True):
        one.assign(value)


class callbacks:  # noqa: N801  Horovod's module
    """Horovod's callbacks for Keras."""

    class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """Gives all ranks the model and the optimizer of ``root_rank`` when training begins."""

        def __init__(self, root_rank: int = 0, device: str = "", local_variables: bool = False) -> None:
            super().__init__()
            self._root = root_rank
            self._done = False

        def on_train_begin(self, logs: Any = None) -> None:
            """Broadcast, unless the model gets its variables with the first batch."""
            if self.model.built:
                self._broadcast()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Broadcast what the first batch has made."""
            if not self._done:
                self._broadcast()

        def _broadcast(self) -> None:
            optimizer = self.model.optimizer
            if not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            broadcast_variables([*self.model.weights, *optimizer.variables], self._root)
            self._done = True

    class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """Averages the metrics of an epoch over all ranks; put it before callbacks that use them."""

        def __init__(self, device: str = "") -> None:
            super().__init__()

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            """Average."""
            if logs:
                everywhere = allgather_object({name: float(value) for name, value in logs.items()})
                logs.update({name: sum(one[name] for one in everywhere) / len(everywhere) for name in logs})

    class LearningRateWarmupCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """Raises the learning rate from ``initial_lr`` / size to ``initial_lr`` over the first epochs.

        At progress e (epochs, with fractions) it is ``initial_lr`` / size * (e * (size - 1) / warmup_epochs + 1), as
        Horovod has it (Goyal et al. 2017, https://arxiv.org/abs/1706.02677).
        """

        def __init__(self, initial_lr: float, warmup_epochs: float = 5, steps_per_epoch: int | None = None,
                     verbose: int = 0, **_more: Any) -> None:  # fmt: skip
            super().__init__()
            self._initial, self._epochs, self._steps = initial_lr, warmup_epochs, steps_per_epoch
            self._verbose, self._epoch = verbose, 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            """Take the epoch's number."""
            self._epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            """Set the learning rate."""
            steps = self._steps or (self.params or {}).get("steps") or 1
            progress = min(self._epoch + batch / steps, self._epochs)
            if self._epoch < self._epochs or progress < self._epochs:
                factor = (progress * (size() - 1) / self._epochs + 1) / size()
                self.model.optimizer.learning_rate.assign(self._initial * factor)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Arrive at the whole learning rate, and say so."""
            if epoch + 1 == int(self._epochs):
                self.model.optimizer.learning_rate.assign(self._initial)
                if self._verbose and rank() == 0:
                    keras.utils.io_utils.print_msg(f"Epoch {epoch + 1}: the learning rate is {self._initial} now.")


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"horovod.keras.{name} is not supported by distdl_jupyter.compat.horovod.keras.")
