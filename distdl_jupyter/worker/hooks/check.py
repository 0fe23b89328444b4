"""Records the samples, losses, gradients and weights of a rank's first training steps, for torch and Horovod.

A job in check mode has the variable ``DISTDL_CHECK``, ``{"steps": 3, "replay": folder or ""}``. Each rank writes

* ``check/rank-<n>.json`` in the job's folder: the norm and a short linear sketch of each tensor, and a hash of each
  sample. ``core.correctness`` compares these files;
* ``check/rank-<n>.pkl``: its batches, and on rank 0 the weights before each step, so that a single process can repeat
  the steps with the batches of all ranks. Only ranks open this file.

A sketch has ``_BUCKETS`` buckets. Each bucket is a sum of elements with random signs, which are the same in all
processes (Charikar, Chen and Farach-Colton, 2002, https://doi.org/10.1016/S0304-3975(03)00400-6). The expected squared
norm of a sketch is that of the tensor, and sketching is linear, so a few numbers are enough to compare tensors of any
size.

How the steps are recorded:

* A batch is recorded when ``DataLoader`` returns it. In the single process it is replaced by the batches of all ranks.
* The gradients of a step are those that the innermost ``Optimizer.step`` uses.
* Before the record is written, a few samples of each data set are read by index, with the same random numbers on all
  ranks. They show whether the ranks have the same data set, and whether reading a sample draws random numbers.
* If random numbers are drawn between the first forward call and the backward pass (for example by dropout), the step
  cannot be compared with that of a single process.

After the steps, ``CheckExit`` ends the rank's code like ``sys.exit()``.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import hashlib
import itertools
import json
import os
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import channel, owned
from distdl_jupyter.worker.frames import FrameDescriber
from distdl_jupyter.worker.hooks import distributed, parallel
from distdl_jupyter.worker.hooks.imports import HookFinder, Patches
from distdl_jupyter.worker.sources import CellSources
from distdl_jupyter.worker.step_times import guard_method

#: Environment variable of a job in check mode.
CHECK_VARIABLE = "DISTDL_CHECK"
#: Version of the record.
_VERSION = 1
#: Number of buckets of a sketch (smaller tensors are stored unchanged), number of elements in a chunk, for which signs
#: are drawn together, and number of chunks with different signs; later chunks reuse the cached signs.
_BUCKETS, _CHUNK, _CACHED_SIGNS = 32, 1 << 20, 16
#: Maximum total size in bytes of the batches and weights that a rank stores for the single process.
_MAX_BYTES = 2_000_000_000
#: Maximum number of samples hashed per batch, and depth of nested containers searched for tensors.
_MAX_SAMPLES, _MAX_DEPTH = 4096, 6
#: The label of a file or cell of the user's code, and a line number.
Line = tuple[str, int]
_NO_LINE: Line = ("", 0)
#: The numbers of a loader, of a pass over the loader, and of a batch in the pass.
Position = tuple[int, int, int]


class CheckExit(SystemExit):
    """Raised in the user's code when all steps are recorded. It ends the rank like ``sys.exit()``."""

    def __init__(self) -> None:
        super().__init__(0)


class CheckRecording:
    """The record of this rank and the hooks that fill it. Optimizers are numbered in order of creation."""

    def __init__(self, finder: HookFinder, folder: Path, rank: int, size: int, sources: CellSources) -> None:
        options = json.loads(os.environ[CHECK_VARIABLE])
        self._rank, self._size = rank, size
        self._find_line = FrameDescriber(sources, folder / "code").find_line
        self._step_count = int(options.get("steps", 3))
        self._folder = folder / "check"
        #: In the single process, the batches by rank and the weights by step of an earlier job's ranks.
        self._replayed_batches: list[dict[Position, Any]] = []
        self._replayed_weights: list[dict[int, Any]] = []
        if options.get("replay"):
            self._load_recordings(Path(options["replay"]) / "check")
        self.is_enabled = True
        self._is_written = False
        #: Data about the whole training: names and shapes of weights, layers, samplers, and reasons for missing data.
        self._info: dict[str, Any] = {"names": {}, "shapes": {}, "loaders": {}, "sharded": "", "lines": {}, "made": {}}
        #: The completed steps. The current step has the last batch by loader, and the optimizers by number.
        self._steps: list[dict[str, Any]] = []
        self._begin_step()
        #: The batches and weights for the single process, and their total size in bytes.
        self._batches: dict[Position, Any] = {}
        self._weights: list[dict[int, Any]] = []
        self._stored_bytes = 0
        #: Numbers of the optimizers, nesting depth of their ``step`` calls, and those that usually step together.
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._optimizer_count = itertools.count()
        self._depths: dict[int, int] = {}
        self._step_group: set[int] = set()
        #: Number and current pass of each loader. By number, its data set and collate function (None without batching).
        self._loaders: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self._loader_count = itertools.count()
        self._data_sets: dict[int, tuple[Any, Any]] = {}
        #: The last step for which the single process has loaded weights.
        self._loaded_step = -1
        #: By DistributedDataParallel module, whether the gradients of its last call are averaged.
        self._parallel_modules: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._forward_line = _NO_LINE
        self._trainers: list[tuple[str, Any, Line]] = []
        self._watch(finder)

    def _load_recordings(self, folder: Path) -> None:
        """Load the recordings of the ranks. Raises PermissionError for files of other users."""
        for rank in range(sum(1 for _ in folder.glob("rank-*.pkl"))):
            with owned.open_own(folder / f"rank-{rank}.pkl") as file:
                recording = pickle.load(file)
            self._replayed_batches.append(recording["batches"])
            self._replayed_weights = self._replayed_weights or recording["weights"]  # only rank 0 has them

    def _begin_step(self) -> None:
        flags = {"random": False, "local": False, "unsynced": "", "unsynced_line": _NO_LINE}
        self._current: dict[str, Any] = {"inputs": [], "losses": [], **flags}
        self._step_batches: dict[int, dict[str, Any]] = {}
        self._step_optimizers: dict[int, dict[str, Any]] = {}
        self._stepped_numbers: set[int] = set()
        #: Whether a forward call is not yet followed by a backward pass, and the random states when the call began.
        self._has_begun = False
        self._random_states: dict[str, str] = {}

    def _complete_step(self) -> None:
        self._current["batches"] = [self._step_batches[loader] for loader in sorted(self._step_batches)]
        self._current["optimizers"] = [self._step_optimizers[number] for number in sorted(self._step_optimizers)]
        self._steps.append(self._current)

    def _reserve_bytes(self, tensors: list[Any]) -> bool:
        """Return whether copies of the tensors fit into the size limit, and if so, add them to the total size."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if self._size == 1 or self._stored_bytes + size > _MAX_BYTES:
            return False
        self._stored_bytes += size
        return True

    @property
    def _is_over(self) -> bool:
        return len(self._steps) >= self._step_count

    def write(self) -> None:
        """Write the files, unless they are written already. The training may have ended early."""
        if self._is_written:
            return
        self._is_written = True
        self._read_samples()
        if any("after" in optimizer for optimizer in self._step_optimizers.values()):  # the training's last step
            self._complete_step()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if self._size > 1:
            with open(self._folder / f"rank-{self._rank}.pkl", "wb", opener=owned.open_private) as file:
                pickle.dump({"batches": self._batches, "weights": self._weights}, file, pickle.HIGHEST_PROTOCOL)
        data = {"v": _VERSION, "rank": self._rank, "size": self._size, "steps": self._steps, **self._info}
        owned.write(self._folder / f"rank-{self._rank}.json", json.dumps(data).encode())

    def fail(self, error: Exception) -> None:
        """Stop recording and send a notice."""
        self.is_enabled = False
        self._info["problem"] = f"{type(error).__name__}: {error!s:.200}"
        text = f"The check stopped recording: {type(error).__name__} was raised ({error!s:.200})."
        channel.notify("warning", text, "check")

    def _watch(self, finder: HookFinder) -> None:
        """Install hooks in the modules that run steps."""
        finder.hook("torch.nn.modules.module", lambda module: module.register_module_forward_pre_hook(self._on_forward))
        finder.hook("torch.optim.optimizer", lambda module: module.register_optimizer_step_pre_hook(self._save_inputs))
        finder.hook("torch.optim.optimizer", lambda module: module.register_optimizer_step_post_hook(self._save_result))
        # Disable the compiler, because hooks do not run in compiled code.
        finder.hook("torch._dynamo.config", lambda module: setattr(module, "disable", True))
        patch = Patches()

        @patch("Optimizer.__init__", "torch.optim.optimizer")
        def init_optimizer(original: Any, this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            self._info["made"][str(self._get_number(this))] = self._find_line()

        @patch("ModelAverager.__init__", "torch.distributed.algorithms.model_averaging.averagers")
        def init_averager(original: Any, this: Any, *args: Any, **kwargs: Any) -> None:
            self._info["averages_weights"] = True
            original(this, *args, **kwargs)

        @patch("Trainer.__init__", "lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
        @patch("Fabric.__init__", "lightning.fabric.fabric", "lightning_fabric.fabric")
        def init_trainer(original: Any, this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            self._trainers.append((original.__qualname__.partition(".")[0], weakref.ref(this), self._find_line()))

        @patch("DistributedSampler.set_epoch", "torch.utils.data.distributed")
        def set_epoch(original: Any, this: Any, epoch: int) -> None:
            this.__dict__["_distdl_set_epoch"] = getattr(this, "_distdl_set_epoch", 0) + 1
            original(this, epoch)

        @patch("backward", "torch.autograd")
        def backward(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._next_step()
            self._begin_backward([tensors] if hasattr(tensors, "numel") else list(tensors))
            return original(tensors, *args, **kwargs)

        self._watch_loaders(patch)
        patch.install(finder)

    def _watch_loaders(self, patch: Patches) -> None:
        @patch("DataLoader.__init__", "torch.utils.data.dataloader")
        def init_loader(original: Any, this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            this.__dict__["_distdl_line"] = self._find_line()

        @patch("DataLoader.__iter__", "torch.utils.data.dataloader")
        def iterate(original: Any, this: Any) -> Any:
            self._next_step()
            batches = original(this)
            if this not in self._loaders:
                self._loaders[this] = [next(self._loader_count), -1]
            self._loaders[this][1] += 1
            number, pass_number = self._loaders[this]
            batches.__dict__["_distdl_check"] = [number, pass_number, 0]
            self._record_loader(number, this, pass_number, batches)
            return batches

        @patch("_BaseDataLoaderIter.__next__", "torch.utils.data.dataloader")
        def next_batch(original: Any, this: Any) -> Any:
            position = getattr(this, "_distdl_check", None)
            if position is None:
                return original(this)
            self._next_step()
            self._has_begun = False
            batch = self._fetch_batch(lambda: original(this), tuple(position))
            self._record_batch(tuple(position), batch)
            position[2] += 1
            return batch

    # batches ------------------------------------------------------------------------------------

    @guard_method
    def _record_loader(self, number: int, loader: Any, pass_number: int, iterator: Any) -> None:
        """Record the data set, sampler, options and first random states of a loader at the start of a pass."""
        info = self._info["loaders"].setdefault(str(number), {"epochs": [], "loop_line": self._find_line()})
        if pass_number == 0:
            has_workers = loader.num_workers > 0
            info["random"] = {"workers": str(iterator._base_seed)} if has_workers else _hash_random_states()  # noqa: SLF001
        for name, value in (("batches", loader), ("samples", loader.dataset)):
            try:
                info[name] = len(value)
            except Exception:  # noqa: BLE001  a stream has no length
                info[name] = None
        self._data_sets[number] = loader.dataset, loader.collate_fn if loader.batch_sampler is not None else None
        sampler = getattr(loader, "sampler", None)
        info |= {
            "line": getattr(loader, "_distdl_line", _NO_LINE),
            "workers": loader.num_workers,
            "iterable": isinstance(loader.dataset, _import_torch().utils.data.IterableDataset),
            "hugging_face": type(loader.dataset).__module__.partition(".")[0] == "datasets",
            "sampler": type(sampler).__name__,
            "part": [getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)],
            "shuffles": bool(getattr(sampler, "shuffle", False)) and hasattr(sampler, "set_epoch"),
            "set_epoch": getattr(sampler, "_distdl_set_epoch", 0),
            "epochs": [*info["epochs"][:pass_number], getattr(sampler, "epoch", None)],
        }

    @guard_method
    def _read_samples(self) -> None:
        """Read some samples of each data set by index, with the same random numbers on all ranks."""
        for number, (data_set, collate) in self._data_sets.items() if self._size > 1 else ():
            info = self._info["loaders"][str(number)]
            if not (length := info.get("samples")) or info["iterable"]:
                continue
            with contextlib.suppress(Exception):  # a data set may be anything
                _import_torch().manual_seed(0)
                random.seed(0)
                if (numpy := sys.modules.get("numpy")) is not None:
                    numpy.random.seed(0)
                states = _hash_random_states()
                samples = [data_set[index] for index in sorted({0, length // 3, length // 2, length - 1})]
                batch = samples if collate is None else collate(samples)
                new_states = _hash_random_states()
                info["draws"] = [name for name, state in states.items() if new_states[name] != state]
                info["read"] = _hash_samples(_find_tensors(batch, _import_torch().Tensor))

    def _fetch_batch(self, fetch: Callable[[], Any], position: Position) -> Any:
        """Return the next batch. In the single process, it is the combined batch of all ranks."""
        recorded = self._replayed_batches
        parts = [batches[position] for batches in recorded if position in batches]
        parts = parts if len(parts) == len(recorded) else []
        if recorded and not parts and any(key[0] == position[0] and key[1] > position[1] for key in recorded[0]):
            raise StopIteration  # the ranks' pass over the loader ended here, because they have begun a later one
        try:
            batch = fetch()
        except StopIteration:
            if not parts:
                raise
            batch = parts[0]
        if not parts:
            return batch
        torch = _import_torch()
        self._info["loaders"][str(position[0])].setdefault("own_size", _count_rows(_find_tensors(batch, torch.Tensor)))
        try:
            return _join(parts, torch.Tensor, torch.cat)
        except Exception as error:  # noqa: BLE001  a batch may be anything
            text = f"the batches of the ranks cannot be combined ({type(error).__name__}: {error!s:.100})"
            self._info["replay_problem"] = text
            return batch

    @guard_method
    def _record_batch(self, position: Position, batch: Any) -> None:
        torch = _import_torch()
        tensors = _find_tensors(batch, torch.Tensor)
        if not self._is_over and self._reserve_bytes(tensors):
            # Copies on the CPU, because training code may modify the batch in place.
            self._batches[position] = _join([batch], torch.Tensor, lambda parts: parts[0].detach().cpu().clone())
        if torch.is_grad_enabled():
            entry = {"loader": position[0], "pass": position[1], "samples": _hash_samples(tensors)}
            self._step_batches[position[0]] = {**entry, "size": _count_rows(tensors)}

    # forward and backward -----------------------------------------------------------------------

    @guard_method
    def _on_forward(self, module: Any, inputs: Any) -> None:
        if not module.training or not _import_torch().is_grad_enabled():
            return
        if type(module).__name__ == "DistributedDataParallel":
            # The module decides in this call whether to average the gradients.
            self._parallel_modules[module] = bool(module.require_backward_grad_sync)
            self._forward_line = self._find_line()
            if parallel.averages_weights(module):
                self._info["averages_weights"] = True
        if not self._has_begun:
            self._next_step()
            self._has_begun = True
            self._info["lines"]["forward"] = self._find_line()
            self._load_weights()
            self._random_states = _hash_random_states()
            self._current["inputs"] += _hash_samples(_find_tensors(inputs, _import_torch().Tensor))

    @guard_method
    def _begin_backward(self, roots: list[Any]) -> None:
        step = self._current
        step["random"] = step["random"] or (self._has_begun and self._random_states != _hash_random_states())
        self._has_begun = False
        line = self._info["lines"]["backward"] = self._find_line()
        step |= {"unsynced": "", "unsynced_line": _NO_LINE}
        for module, synced in self._parallel_modules.items():
            if not synced:
                is_no_sync = not module.require_backward_grad_sync
                step["unsynced"] = "no_sync" if is_no_sync else "forward"
                step["unsynced_line"] = line if is_no_sync else self._forward_line
        step["losses"] += [float(root.detach()) for root in roots if root.numel() == 1]

    def _load_weights(self) -> None:
        """Load the ranks' weights of this step into the optimizers of the single process."""
        number = len(self._steps)
        if self._loaded_step >= number or number >= len(self._replayed_weights):
            return
        self._loaded_step = number
        unmatched = list(self._optimizers)
        for weights in self._replayed_weights[number].values():
            for optimizer in unmatched:
                leaves = parallel.list_parameters(optimizer)
                if [leaf.shape for leaf in leaves] == [weight.shape for weight in weights]:
                    ids = set(map(id, leaves))
                    unmatched = [item for item in unmatched if ids.isdisjoint(map(id, parallel.list_parameters(item)))]
                    with _import_torch().no_grad():
                        for leaf, value in zip(leaves, weights, strict=True):
                            leaf.copy_(value)
                    break

    # optimizers ---------------------------------------------------------------------------------

    def _get_number(self, optimizer: Any) -> int:
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = next(self._optimizer_count)
        return self._optimizers[optimizer]

    @guard_method
    def _save_inputs(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Record the inputs of a step. Horovod's ``step`` calls the optimizer's, whose record replaces the first."""
        number, parameters = self._get_number(optimizer), parallel.list_parameters(optimizer)
        self._depths[number] = self._depths.get(number, 0) + 1
        if self._is_over:
            return
        if sharded := parallel.find_sharding(parameters):
            self._info["sharded"] = sharded
            return
        if str(number) not in self._info["names"]:
            self._describe_weights(number, parameters)
        self._info["lines"]["step"] = self._find_line()
        own_ids = set(map(id, parameters))
        for module in self._parallel_modules:
            if not module.require_backward_grad_sync and not own_ids.isdisjoint(map(id, module.parameters())):
                self._current["local"] = True
        weights = [parameter.detach() for parameter in parameters]
        gradients = [parameter.grad for parameter in parameters]
        self._step_optimizers[number] = {
            "index": number,
            "rates": [float(group.get("lr", 0.0)) for group in optimizer.param_groups],
            "before": [_digest(weight) for weight in weights],
            "weights": [_sketch(weight) for weight in weights],
            "gradients": [None if gradient is None else _sketch(gradient) for gradient in gradients],
            "bits": ["" if gradient is None else _digest(gradient) for gradient in gradients],
        }
        if self._depths[number] == 1 and self._rank == 0 and self._reserve_bytes(weights):
            while len(self._weights) <= len(self._steps):
                self._weights.append({})
            self._weights[len(self._steps)][number] = [weight.cpu().clone() for weight in weights]

    @guard_method
    def _save_result(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        number = self._get_number(optimizer)
        self._depths[number] -= 1
        if self._depths[number] or self._is_over:
            return
        if (step := self._step_optimizers.get(number)) is not None:
            weights = [parameter.detach() for parameter in parallel.list_parameters(optimizer)]
            step |= {"after": [*map(_digest, weights)], "weights_after": [*map(_sketch, weights)]}
        self._stepped_numbers.add(number)
        if self._step_group and self._stepped_numbers >= self._step_group:
            self._next_step()

    def _next_step(self) -> None:
        """End the step if an optimizer has stepped. After the last step, write the record and raise Finished."""
        if self._stepped_numbers:
            self._step_group = self._stepped_numbers
            self._complete_step()
            self._begin_step()
            if self._is_over:
                self.write()
                raise CheckExit

    def _describe_weights(self, number: int, parameters: list[Any]) -> None:
        """Record the names of an optimizer's weights in the model, layers with batch statistics, and the libraries."""
        torch, info = _import_torch(), self._info

        def is_batch_norm(layer: Any) -> bool:
            """Return whether a layer's result for a sample depends on the other samples of the rank."""
            return any(base.__name__ == "_BatchNorm" for base in type(layer).__mro__)

        names: dict[int, str] = {}
        layers = set(info.get("layers", ()))
        own_ids = set(map(id, parameters))
        modules = [member for member in gc.get_objects() if issubclass(type(member), torch.nn.Module)]
        for module in sorted(modules, key=lambda member: -sum(1 for _ in member.modules())):
            named_ids = [(name, id(member)) for name, member in module.named_parameters()]
            if any(key in own_ids and key not in names for _, key in named_ids):
                for name, key in named_ids:
                    names.setdefault(key, name.removeprefix("module.").removeprefix("_orig_mod."))
                batch_norms = filter(is_batch_norm, module.modules())
                layers |= {type(member).__name__ for member in batch_norms if member.training} - {"SyncBatchNorm"}
        info["names"][str(number)] = [names.get(id(leaf), f"weight {i}") for i, leaf in enumerate(parameters)]
        info["shapes"][str(number)] = [list(leaf.shape) for leaf in parameters]
        info["layers"] = sorted(layers)
        info["dtypes"] = sorted({str(leaf.dtype).removeprefix("torch.") for leaf in parameters})
        # The training libraries in use, and the number of processes that each is configured for.
        accelerate, group = sys.modules.get("accelerate.state"), distributed.get_distributed()
        info["horovod"] = distributed.get_running_horovod() is not None
        info["accelerate"] = accelerate is not None and bool(accelerate.PartialState._shared_state)  # noqa: SLF001
        info["group"] = 0 if group is None else group.get_world_size()
        for name, trainer_ref, line in self._trainers:
            if (trainer := trainer_ref()) is not None:
                info["trainer"] = {
                    "name": name,
                    "size": int(trainer.world_size),
                    "line": line,
                    "accelerator": "cpu" if parameters[0].device.type == "cpu" else "gpu",
                    "devices": int(os.environ.get("LOCAL_WORLD_SIZE", self._size)),
                }


# tensors -----------------------------------------------------------------------------------------


def _find_tensors(batch: Any, tensor_type: Any, depth: int = _MAX_DEPTH) -> list[Any]:
    """Return the tensors in a batch, in order."""
    if isinstance(batch, tensor_type):
        return [batch]
    members = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return [leaf for member in members for leaf in _find_tensors(member, tensor_type, depth - 1)] if depth else []


def _join(parts: list[Any], tensor_type: Any, concatenate: Any) -> Any:
    """Join the batches of several ranks: concatenate tensors and lists, and use all other values of rank 0.

    Raises ValueError, or the error of ``concatenate``, if their shapes differ.
    """
    first = parts[0]
    if isinstance(first, tensor_type):
        return concatenate(parts) if len(first.shape) else first
    if isinstance(first, Mapping):
        members = {key: _join([batch[key] for batch in parts], tensor_type, concatenate) for key in first}
        return type(first)(members)  # type: ignore[call-arg]
    if isinstance(first, list | tuple) and (_find_tensors(first, tensor_type) or hasattr(first, "_fields")):
        columns = (_join(list(members), tensor_type, concatenate) for members in zip(*parts, strict=True))
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    if isinstance(first, list | tuple):
        return type(first)(sample for part in parts for sample in part)
    return first


def _import_torch() -> Any:
    import torch

    return torch


def _hash_random_states() -> dict[str, str]:
    """Return a hash of the state of each global random number generator."""
    torch = _import_torch()
    states = {"torch": _digest(torch.get_rng_state()), "random": _hash(repr(random.getstate()).encode())}
    if torch.cuda.is_initialized():
        states["torch"] += _digest(torch.cuda.get_rng_state())
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = _hash(pickle.dumps(numpy.random.get_state()))
    return states


def _count_rows(tensors: list[Any]) -> int:
    """Return the number of samples of a batch."""
    return next((int(tensor.shape[0]) for tensor in tensors if len(tensor.shape)), 0)


def _hash_samples(tensors: list[Any]) -> list[str]:
    """Return a hash of each sample, over its rows in all tensors with the same number of rows as the first one."""
    tensors = [tensor.detach() for tensor in tensors if len(tensor.shape)]
    if not tensors:
        return []
    size = min(len(tensors[0]), _MAX_SAMPLES)
    rows = [b""] * size
    for tensor in tensors:
        if len(tensor) == len(tensors[0]):
            for index, row in enumerate(tensor[:size]):
                rows[index] += _read_bytes(row)
    return [_hash(row) for row in rows]


def _read_bytes(tensor: Any) -> bytes:
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    flat = dense.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())  # works without numpy


def _digest(tensor: Any) -> str:
    return _hash(_read_bytes(tensor))


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


@functools.lru_cache(_CACHED_SIGNS)
def _draw_signs(chunk: int) -> Any:
    torch = _import_torch()
    generator = torch.Generator().manual_seed(chunk + 1)
    return torch.randint(0, 2, (_CHUNK,), generator=generator, dtype=torch.int8) * 2 - 1


def _sketch(tensor: Any) -> list[float]:
    """Return the sketch of a tensor, or all elements of a small tensor (see the module docstring)."""
    torch = _import_torch()
    with torch.no_grad():
        flat = tensor.detach()
        flat = (flat.to_dense() if flat.is_sparse else flat).reshape(-1)
        flat = (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).cpu().double()
        if flat.numel() <= _BUCKETS:
            return list(flat.tolist())
        buckets = torch.zeros(_BUCKETS, dtype=torch.double)
        for chunk, start in enumerate(range(0, flat.numel(), _CHUNK)):
            part = flat[start : start + _CHUNK]
            part = part * _draw_signs(chunk % _CACHED_SIGNS)[: part.numel()]
            part = torch.nn.functional.pad(part, (0, -part.numel() % _BUCKETS))
            buckets += part.reshape(-1, _BUCKETS).sum(0)
        return list(buckets.tolist())
