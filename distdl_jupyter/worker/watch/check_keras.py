"""Records the steps of a check for training with Keras 3 on TensorFlow or torch (``check_record``).

* The gradients of a step are those with which ``Optimizer.apply`` of Keras itself is called, so those that a subclass
  has averaged, or has not. Those of the rank's own samples alone are not seen.
* A batch is what ``Model.fit`` gives to ``train_step``; in the one process the batches of all ranks stand in its place.
* TensorFlow runs functions eagerly in a check: in a graph there are no numbers to look at.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from distdl_jupyter.worker import channel, check_record
from distdl_jupyter.worker.check_record import BUCKETS, CHUNK, MOST_SAMPLES, Recording
from distdl_jupyter.worker.watch.hooks import PostImport

#: Number of Keras' own loader, and of its optimizer, beside those of torch.
_NUMBER = 1000


def watch(finder: PostImport) -> None:
    """Ask to be told when Keras and TensorFlow are imported, in a job in check mode."""
    recording = check_record.current()
    if recording is None:
        return
    hooks = _Hooks(recording)
    finder.after("tensorflow", lambda module: module.config.run_functions_eagerly(run_eagerly=True))
    finder.after("keras.src.optimizers.base_optimizer", hooks.watch_optimizer)
    finder.after("keras.src.trainers.trainer", hooks.watch_losses)
    finder.after("keras.src.backend.tensorflow.trainer", functools.partial(hooks.watch_steps, "TensorFlowTrainer"))
    finder.after("keras.src.backend.torch.trainer", functools.partial(hooks.watch_steps, "TorchTrainer"))


class _Hooks:
    """The hooks of one rank."""

    def __init__(self, recording: Recording) -> None:
        self._record = recording
        self._off = False
        self._inside = False
        self._count = 0

    def _safely(self, call: Any, *args: Any) -> Any:
        """Call something of ours; a failure ends the recording, not the training."""
        if self._off:
            return None
        try:
            return call(*args)
        except Exception as error:  # noqa: BLE001  see above
            self._off = True
            text = f"{type(error).__name__}: {error!s:.200}"
            self._record.about["problem"] = text
            if (out := channel.current()) is not None:
                out.note("warning", f"The check stopped recording: {text}", "check")
            return None

    # batches and losses -------------------------------------------------------------------------

    def watch_steps(self, name: str, module: ModuleType) -> None:
        owner = getattr(module, name)
        original = owner.make_train_function

        @functools.wraps(original)
        def made(model: Any, force: bool = False) -> Any:  # noqa: FBT001, FBT002  Keras' own
            if "train_step" not in vars(model):
                step = model.train_step
                object.__setattr__(model, "train_step", functools.partial(self._train_step, model, step))
            return original(model, force)

        owner.make_train_function = made

    def _train_step(self, model: Any, step: Any, data: Any) -> Any:
        if self._record.is_over or self._off:
            return step(data)
        self._record.about["framework"] = "keras"
        place = (_NUMBER, 0, self._count)
        self._count += 1
        data = self._safely(self._batch, place, data) or data
        self._safely(self._prepare, model)
        drawn = self._safely(_seeds, model)
        self._inside = True
        try:
            found = step(data)
        finally:
            self._inside = False
        self._record.step.random = self._record.step.random or drawn != self._safely(_seeds, model)
        self._safely(self._describe, model)
        if self._record.step.optimizers:
            self._record.end_step()
        return found

    def _batch(self, place: tuple[int, int, int], data: Any) -> Any:
        """Keep the batch, and return the one to train on."""
        step, tensor = self._record.step, _tensor()
        if step.batches:  # a DataLoader of torch has seen it
            return data
        replay = self._record.replay
        parts = replay.parts(place) if replay is not None else []
        if replay is not None and parts:
            import numpy as np

            self._record.about["loaders"].setdefault(str(_NUMBER), {"own_size": _size(data)})
            data = check_record.joined([_like(data, part) for part in parts], np.ndarray, np.concatenate)
            data = _tensors(data)
        arrays = [_array(one) for one in check_record.leaves(data, tensor)]
        if self._record.size > 1:
            self._record.keep_batch(place, arrays, sum(one.nbytes for one in arrays))
        step.batches[_NUMBER] = {"pass": 0, "at": place[2], "size": len(arrays[0]) if arrays else 0,
                                 "samples": _samples(arrays), "indices": []}  # fmt: skip
        return data

    def _prepare(self, model: Any) -> None:
        """Take the weights that the ranks had, in the one process."""
        replay, number = self._record.replay, len(self._record.steps)
        if replay is None or number >= len(replay.weights):
            return
        mine = list(model.trainable_variables)
        for weights in replay.weights[number].values():
            if [tuple(one.shape) for one in mine] == [one.shape for one in weights]:
                for one, value in zip(mine, weights, strict=True):
                    one.assign(value)

    def _describe(self, model: Any) -> None:
        layers = {type(one).__name__ for one in _layers(model) if type(one).__name__ == "BatchNormalization"}
        self._record.about["layers"] = sorted(layers)

    def watch_losses(self, module: ModuleType) -> None:
        original = module.Trainer.compute_loss

        @functools.wraps(original)
        def computed(*args: Any, **kwargs: Any) -> Any:
            loss = original(*args, **kwargs)
            if self._inside and not self._off and _backend() == "tensorflow":  # torch sees the backward pass
                self._safely(lambda: self._record.step.losses.append(float(_array(loss))))
            return loss

        module.Trainer.compute_loss = computed

    # optimizers ---------------------------------------------------------------------------------

    def watch_optimizer(self, module: ModuleType) -> None:
        original = module.BaseOptimizer.apply

        @functools.wraps(original)
        def applied(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if self._off or self._record.is_over:
                return original(optimizer, grads, trainable_variables)
            given = list(grads)
            self._safely(self._before, optimizer, given, trainable_variables)
            found = original(optimizer, given, trainable_variables)
            self._safely(self._after)
            if not self._inside and not self._off:  # a loop of the user's own
                self._record.end_step()
            return found

        module.BaseOptimizer.apply = applied

    def _before(self, optimizer: Any, grads: list[Any], given: Any) -> None:
        about = self._record.about
        variables = list(given) if given is not None else list(optimizer._trainable_variables)  # noqa: SLF001
        about["framework"], about["horovod"] = "keras", any(name.startswith("horovod") for name in sys.modules)
        about["names"][str(_NUMBER)] = [getattr(one, "path", None) or one.name for one in variables]
        about["shapes"][str(_NUMBER)] = [list(one.shape) for one in variables]
        about["dtypes"] = sorted({str(one.dtype) for one in variables})
        weights = [_array(one) for one in variables]
        gradients = [None if one is None else _array(one) for one in grads]
        self._variables = variables
        self._record.step.optimizers[_NUMBER] = {
            "rates": [float(_array(optimizer.learning_rate))],
            "before": [_digest(one) for one in weights],
            "weights": [sketch(one) for one in weights],
            "gradients": [None if one is None else sketch(one) for one in gradients],
            "bits": ["" if one is None else _digest(one) for one in gradients],
            "own": [None] * len(gradients),
        }
        self._record.keep_weights(_NUMBER, weights, sum(one.nbytes for one in weights))

    def _after(self) -> None:
        weights = [_array(one) for one in self._variables]
        step = self._record.step.optimizers[_NUMBER]
        step["after"] = [_digest(one) for one in weights]
        step["weights_after"] = [sketch(one) for one in weights]


def _backend() -> str:
    return str(sys.modules["keras"].backend.backend())


def _tensor() -> Any:
    return sys.modules["torch"].Tensor if _backend() == "torch" else sys.modules["tensorflow"].Tensor


def _array(value: Any) -> Any:
    """Return a copy of a tensor or variable as an array of numpy."""
    import numpy as np

    return np.array(sys.modules["keras"].ops.convert_to_numpy(value))


def _tensors(data: Any) -> Any:
    import numpy as np

    convert = sys.modules["keras"].ops.convert_to_tensor
    return check_record.joined([data], np.ndarray, lambda parts: convert(parts[0]))


def _like(data: Any, arrays: list[Any]) -> Any:
    """Return a batch of the form of ``data`` with other arrays."""
    rest = iter(arrays)
    return check_record.joined([data], _tensor(), lambda _: next(rest))


def _size(data: Any) -> int:
    found = check_record.leaves(data, _tensor())
    return int(found[0].shape[0]) if found and len(found[0].shape) else 0


def _layers(model: Any) -> list[Any]:
    return list(model._flatten_layers())  # noqa: SLF001  of all layers in layers; Keras offers no public way


def _seeds(model: Any) -> list[str]:
    """Return the states of the layers' random generators, which change where a layer draws from them."""
    seeds = [getattr(one, "seed_generator", None) for one in _layers(model) if getattr(one, "rate", 1)]
    return [_digest(_array(one.state)) for one in seeds if one is not None]


def _samples(arrays: list[Any]) -> list[str]:
    arrays = [one for one in arrays if one.ndim]
    if not arrays:
        return []
    alike = [one for one in arrays if len(one) == len(arrays[0])]
    size = min(len(arrays[0]), MOST_SAMPLES)
    return [check_record.digest(b"".join(one[at].tobytes() for one in alike)) for at in range(size)]


def _digest(array: Any) -> str:
    return check_record.digest(array.tobytes())


@functools.lru_cache(maxsize=16)
def _signs(chunk: int) -> Any:
    import numpy as np

    return np.random.default_rng(chunk).integers(0, 2, CHUNK, dtype=np.int8) * 2 - 1


def sketch(array: Any) -> list[float]:
    """Return the sketch of an array, its elements where these are few (``check_record``)."""
    import numpy as np

    flat = array.reshape(-1).astype(np.float64)
    if flat.size <= BUCKETS:
        return list(flat.tolist())
    found = np.zeros(BUCKETS)
    for chunk, begin in enumerate(range(0, flat.size, CHUNK)):
        part = flat[begin : begin + CHUNK]
        part = part * _signs(chunk % 16)[: part.size]
        found += np.pad(part, (0, -part.size % BUCKETS)).reshape(-1, BUCKETS).sum(0)
    return list(found.tolist())
