"""Records the samples, gradients and weights of a rank's first training steps, for torch and Horovod.

A job in check mode has the variable ``DISTDL_CHECK``, ``{"steps": 3, "replay": folder or ""}``. Each rank writes

* ``check/rank-<n>.json`` in the job's folder: the hash and a short linear sketch of each tensor, and the hash of each
  sample. ``core.correctness`` compares these files and describes their fields;
* ``check/rank-<n>.pkl``: its batches, and on rank 0 the weights before each step, so that a single process can repeat
  the steps with the batches of all ranks. Only ranks open this file.

A sketch has ``_BUCKETS`` sums of elements with random signs, which are the same in all processes (Charikar, Chen and
Farach-Colton, 2002, https://doi.org/10.1016/S0304-3975(03)00400-6). The expected squared norm of a sketch is that of
the tensor, and sketching is linear, so a few numbers are enough to compare tensors of any size.

How the steps are recorded:

* A step ends when, after an optimizer has stepped, the next batch, forward or backward pass begins.
* At the end, some samples of each data set are read by index, with the same random numbers on all ranks.
* A step that draws random numbers between its first forward call and its backward pass, for example for dropout,
  cannot be compared with that of a single process.
"""

from __future__ import annotations

import contextlib
import ctypes
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
from distdl_jupyter.worker.frames import CellSources, FrameDescriber
from distdl_jupyter.worker.hooks import parallel
from distdl_jupyter.worker.hooks.imports import HookFinder, Patches
from distdl_jupyter.worker.step_times import guard_method

#: Environment variable of a job in check mode.
CHECK_VARIABLE = "DISTDL_CHECK"
#: Number of buckets of a sketch. Smaller tensors are stored unchanged.
_BUCKETS = 32
#: Number of elements that are sketched together, which limits the memory for their signs. A multiple of ``_BUCKETS``.
_CHUNK = 1 << 20
#: Maximum total size in bytes of the batches and weights that a rank stores for the single process.
_MAX_BYTES = 2_000_000_000
#: Maximum number of samples hashed per batch.
_MAX_SAMPLES = 4096
#: Maximum depth of nested containers that are searched for tensors.
_MAX_DEPTH = 6
#: The label of a file or cell of the user's code, and a line number; ("", 0) if they are unknown.
Line = tuple[str, int]
#: The numbers of a loader, of a pass over the loader, and of a batch in the pass.
Position = tuple[int, int, int]


class CheckExit(SystemExit):
    """Raised in the user's code when all steps are recorded. It ends the rank like ``sys.exit()``."""


class CheckRecording:
    """The record of this rank. Optimizers are numbered in order of creation, loaders in order of their first pass."""

    def __init__(self, finder: HookFinder, folder: Path, rank: int, size: int, sources: CellSources) -> None:
        options = json.loads(os.environ[CHECK_VARIABLE])
        self._rank, self._size, self._max_steps = rank, size, int(options["steps"])
        self._find_line = FrameDescriber(sources, folder / "code").find_line
        self._folder = folder / "check"
        #: Whether steps are recorded (see ``guard_method``).
        self.is_enabled = True
        #: Data about the whole training.
        self._info: dict[str, Any] = {"names": {}, "shapes": {}, "loaders": {}, "lines": {}}
        self._steps: list[dict[str, Any]] = []
        self._begin_step()
        #: Copies for the single process: batches by position and, on rank 0, weights by step and optimizer.
        self._copies: dict[str, dict[Any, Any]] = {"batches": {}, "weights": {}}
        self._copied_bytes = 0
        #: In the single process, the copies of each rank.
        self._replays: list[dict[str, dict[Any, Any]]] = []
        files = Path(options["replay"], "check").glob("rank-*.pkl") if options["replay"] else ()
        for file in sorted(files, key=lambda file: int(file.stem.partition("-")[2])):
            with owned.open_own(file) as copies:
                self._replays.append(pickle.load(copies))
        self._optimizer_count = itertools.count()
        self._optimizer_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        #: The data set and collate function of each loader. The function is None if the loader does not make batches.
        self._data_sets: list[tuple[Any, Any]] = []
        #: By DistributedDataParallel module, the line of its last call if the call turned averaging off, else None.
        self._unsynced_lines: weakref.WeakKeyDictionary[Any, Line | None] = weakref.WeakKeyDictionary()
        #: Lightning's Trainer or Fabric and the line that created it.
        self._trainer: tuple[Any, Line] = None, ("", 0)
        self._watch(finder)

    def _begin_step(self) -> None:
        flags = {"random": False, "unsynced": None, "local": False}
        self._step: dict[str, Any] = {"batches": {}, "inputs": [], "optimizers": {}, **flags}
        self._has_stepped = False
        #: Whether a forward call is not yet followed by a backward pass, and the random states when the call began.
        self._is_forward = False
        self._random_states: dict[str, str] = {}

    def _next_step(self) -> None:
        """End the step if an optimizer has stepped. After the last step, write the record and raise CheckExit."""
        if self._has_stepped:
            self._steps.append(self._step)
            self._begin_step()
            if len(self._steps) == self._max_steps:
                self.write()
                self.is_enabled = False
                raise CheckExit

    def _copy(self, name: str, key: Any, batch: Any) -> None:
        """Store a copy on the CPU for the single process, because training code may modify tensors in place."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in _find_tensors(batch))
        if self._size > 1 and key not in self._copies[name] and self._copied_bytes + size <= _MAX_BYTES:
            self._copied_bytes += size
            self._copies[name][key] = _join([batch], lambda parts: parts[0].detach().cpu().clone())

    def write(self) -> None:
        """Write the files, unless they are written already. The training may have ended early."""
        file = self._folder / f"rank-{self._rank}.json"
        if file.exists():
            return
        self._read_samples()
        if self._has_stepped:  # the training's last step
            self._steps.append(self._step)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if self._size > 1:
            with open(file.with_suffix(".pkl"), "wb", opener=owned.open_private) as copies:
                pickle.dump(self._copies, copies, pickle.HIGHEST_PROTOCOL)
        owned.write(file, json.dumps({"rank": self._rank, "steps": self._steps, **self._info}).encode())

    def fail(self, error: Exception) -> None:
        """Stop recording and send a notice."""
        self.is_enabled = False
        problem = self._info["problem"] = f"{type(error).__name__} was raised ({error!s:.200})"
        channel.notify("warning", f"The check stopped recording: {problem}.", "check")

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
            self._get_number(this)

        @patch("Trainer.__init__", "lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
        @patch("Fabric.__init__", "lightning.fabric.fabric", "lightning_fabric.fabric")
        def init_trainer(original: Any, this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            self._trainer = this, self._find_line()

        @patch("DistributedSampler.set_epoch", "torch.utils.data.distributed")
        def set_epoch(original: Any, this: Any, epoch: int) -> None:
            this.__dict__["_distdl_set_epoch"] = True
            original(this, epoch)

        @patch("backward", "torch.autograd")
        def backward(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._next_step()
            self._begin_backward()
            return original(tensors, *args, **kwargs)

        @patch("DataLoader.__init__", "torch.utils.data.dataloader")
        def init_loader(original: Any, this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            this.__dict__["_distdl_line"] = self._find_line()

        @patch("DataLoader.__iter__", "torch.utils.data.dataloader")
        def iterate(original: Any, this: Any) -> Any:
            self._next_step()
            iterator = original(this)
            self._record_loader(this, iterator)
            return iterator

        @patch("_BaseDataLoaderIter.__next__", "torch.utils.data.dataloader")
        def next_batch(original: Any, this: Any) -> Any:
            position = this.__dict__.get("_distdl_position")
            if position is None:
                return original(this)
            self._next_step()
            self._is_forward = False
            batch = self._fetch_batch(lambda: original(this), position)
            self._record_batch(position, batch)
            this.__dict__["_distdl_position"] = *position[:2], position[2] + 1
            return batch

        patch.install(finder)

    # batches ------------------------------------------------------------------------------------

    @guard_method
    def _record_loader(self, loader: Any, iterator: Any) -> None:
        """Record the data set, sampler, options and first random states of a loader at the start of a pass."""
        number, passes = loader.__dict__.get("_distdl_passes", (len(self._data_sets), 0))
        loader.__dict__["_distdl_passes"] = number, passes + 1
        iterator.__dict__["_distdl_position"] = number, passes, 0
        info = self._info["loaders"].setdefault(number, {"epochs": [], "loop_line": self._find_line()})
        if passes == 0:
            self._data_sets.append((loader.dataset, loader.collate_fn if loader.batch_sampler is not None else None))
            base_seed = {"workers": str(iterator._base_seed)}  # noqa: SLF001  torch has no public name for it
            info["random"] = base_seed if loader.num_workers else _hash_random_states()
        with contextlib.suppress(Exception):  # a stream has no length
            info["batches"], info["samples"] = len(loader), len(loader.dataset)
        sampler = getattr(loader, "sampler", None)
        info |= {
            "line": getattr(loader, "_distdl_line", ("", 0)),
            "workers": loader.num_workers,
            "iterable": isinstance(loader.dataset, _import_torch().utils.data.IterableDataset),
            "shuffles": bool(getattr(sampler, "shuffle", False)) and hasattr(sampler, "set_epoch"),
            "set_epoch": getattr(sampler, "_distdl_set_epoch", False),
            "epochs": [*info["epochs"][:passes], getattr(sampler, "epoch", None)],
        }

    @guard_method
    def _read_samples(self) -> None:
        """Read some samples of each data set by index, with the same random numbers on all ranks."""
        for number, (data_set, collate) in enumerate(self._data_sets if self._size > 1 else ()):
            info = self._info["loaders"][number]
            with contextlib.suppress(Exception):  # a stream has no length, and a data set may be anything
                length = len(data_set)
                _import_torch().manual_seed(0)
                random.seed(0)
                if (numpy := sys.modules.get("numpy")) is not None:
                    numpy.random.seed(0)
                states = _hash_random_states()
                samples = [data_set[index] for index in sorted({0, length // 3, length // 2, length - 1})]
                batch = samples if collate is None else collate(samples)
                info["draws"] = [name for name, state in _hash_random_states().items() if states.get(name) != state]
                info["read"] = _hash_samples(batch)

    def _fetch_batch(self, fetch: Callable[[], Any], position: Position) -> Any:
        """Return the next batch. In the single process, it is the combined batch of all ranks."""
        parts = [copies["batches"][position] for copies in self._replays if position in copies["batches"]]
        if not parts or len(parts) < len(self._replays):
            return fetch()
        batch = fetch()
        self._info["loaders"][position[0]].setdefault("own_size", len(_hash_samples(batch)))
        try:
            return _join(parts, lambda values: _import_torch().cat(values) if len(values[0].shape) else values[0])
        except Exception as error:  # noqa: BLE001  a batch may be anything
            self._info["problem"] = f"the batches of the ranks cannot be combined ({error!s:.150})"
            return batch

    @guard_method
    def _record_batch(self, position: Position, batch: Any) -> None:
        self._copy("batches", position, batch)
        if _import_torch().is_grad_enabled():
            self._step["batches"][position[0]] = {"pass": position[1], "samples": _hash_samples(batch)}

    # forward and backward -----------------------------------------------------------------------

    @guard_method
    def _on_forward(self, module: Any, inputs: Any) -> None:
        torch = _import_torch()
        if not module.training or not torch.is_grad_enabled():
            return
        if type(module).__name__ == "DistributedDataParallel":
            # The module decides in this call whether to average the gradients.
            self._unsynced_lines[module] = None if module.require_backward_grad_sync else self._find_line()
        if self._is_forward:
            return
        self._next_step()
        self._is_forward = True
        self._info["lines"]["forward"] = self._find_line()
        for optimizer, number in self._optimizer_numbers.items() if self._replays else ():
            parameters = parallel.list_parameters(optimizer)
            weights = self._replays[0]["weights"].pop((len(self._steps), number), [])
            if [leaf.shape for leaf in parameters] == [weight.shape for weight in weights]:
                with torch.no_grad():
                    for leaf, weight in zip(parameters, weights, strict=True):
                        leaf.copy_(weight)
        self._random_states = _hash_random_states()
        self._step["inputs"] += _hash_samples(inputs)

    @guard_method
    def _begin_backward(self) -> None:
        step = self._step
        step["random"] |= self._is_forward and self._random_states != _hash_random_states()
        self._is_forward = False
        line = self._info["lines"]["backward"] = self._find_line()
        step["unsynced"] = None
        for module, forward_line in self._unsynced_lines.items():
            if forward_line is not None:
                step["unsynced"] = forward_line if module.require_backward_grad_sync else line

    # optimizers ---------------------------------------------------------------------------------

    def _get_number(self, optimizer: Any) -> int:
        if optimizer not in self._optimizer_numbers:
            self._optimizer_numbers[optimizer] = number = next(self._optimizer_count)
            self._info["lines"][number] = self._find_line()
        return self._optimizer_numbers[optimizer]

    @guard_method
    def _save_inputs(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Record the inputs of a step. Horovod's ``step`` calls the optimizer's, whose record replaces the first."""
        number, parameters = self._get_number(optimizer), parallel.list_parameters(optimizer)
        if sharded := parallel.find_sharding(parameters):
            self._info["sharded"] = sharded
            return
        if number not in self._info["names"]:
            self._describe_training(number, parameters)
        self._step["local"] |= any(not module.require_backward_grad_sync for module in self._unsynced_lines)
        gradients = [_import_torch().zeros_like(x) if x.grad is None else x.grad for x in parameters]
        self._step["optimizers"][number] = {
            "rate": float(optimizer.param_groups[0].get("lr", 0.0)),
            "before": [*map(_describe_tensor, parameters)],
            "gradients": [*map(_describe_tensor, gradients)],
        }
        if self._rank == 0:
            self._copy("weights", (len(self._steps), number), parameters)

    @guard_method
    def _save_result(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._has_stepped = True
        if (record := self._step["optimizers"].get(self._get_number(optimizer))) is not None:
            record["after"] = [*map(_describe_tensor, parallel.list_parameters(optimizer))]

    def _describe_training(self, number: int, parameters: list[Any]) -> None:
        """Record the names of an optimizer's weights in the model, layers with batch statistics, and the libraries."""
        info, (trainer, trainer_line), objects, nn = self._info, self._trainer, gc.get_objects(), _import_torch().nn
        modules = [item for item in objects if issubclass(type(item), nn.Module)]
        modules.sort(key=lambda module: sum(1 for _ in module.modules()))
        # The name of a weight in the largest module replaces its names in the submodules.
        names = {id(leaf): name for module in modules for name, leaf in module.named_parameters()}
        labels = [names.get(id(leaf), f"weight {i}") for i, leaf in enumerate(parameters)]
        info["names"][number] = [label.removeprefix("module.").removeprefix("_orig_mod.") for label in labels]
        info["shapes"][number] = [list(leaf.shape) for leaf in parameters]
        # With these layers, the result for a sample depends on the other samples of the rank.
        batch_norms = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
        layers = {type(item).__name__ for item in modules if isinstance(item, batch_norms) and item.training}
        info["layers"] = sorted(layers)
        info["is_half"] = any(leaf.element_size() == 2 for leaf in parameters)
        # Local SGD: PeriodicModelAverager and the like, or a hook of DistributedDataParallel.
        info["averages_weights"] = any("ModelAverager" in type(item).__name__ for item in objects)
        info["averages_weights"] |= any(map(parallel.averages_weights, modules))
        if trainer is not None:
            info["trainer"] = {
                "name": type(trainer).__name__,
                "processes": int(trainer.world_size),
                "line": trainer_line,
                "accelerator": "cpu" if parameters[0].device.type == "cpu" else "gpu",
                "devices": int(os.environ.get("LOCAL_WORLD_SIZE", self._size)),
            }


# tensors -----------------------------------------------------------------------------------------


def _import_torch() -> Any:
    import torch

    return torch


def _find_tensors(batch: Any, depth: int = _MAX_DEPTH) -> list[Any]:
    """Return the tensors in a batch, in order."""
    if isinstance(batch, _import_torch().Tensor):
        return [batch]
    members = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return [leaf for member in members for leaf in _find_tensors(member, depth - 1)] if depth else []


def _join(parts: list[Any], merge: Callable[[list[Any]], Any]) -> Any:
    """Merge tensors, concatenate lists, and use the first batch's other values. Raises ValueError if shapes differ."""
    first = parts[0]
    if isinstance(first, _import_torch().Tensor):
        return merge(parts)
    if isinstance(first, Mapping):
        return type(first)({key: _join([part[key] for part in parts], merge) for key in first})  # type: ignore[call-arg]
    if not isinstance(first, list | tuple):
        return first
    if not _find_tensors(first) and not hasattr(first, "_fields"):
        return type(first)(sample for part in parts for sample in part)
    columns = (_join(list(values), merge) for values in zip(*parts, strict=True))
    return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)


def _hash_random_states() -> dict[str, str]:
    """Return a hash of the state of each global random number generator."""
    torch = _import_torch()
    states = {"torch": _hash(torch.get_rng_state()), "random": _hash(repr(random.getstate()).encode())}
    if torch.cuda.is_initialized():
        states["torch"] += _hash(torch.cuda.get_rng_state())
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = _hash(pickle.dumps(numpy.random.get_state()))
    return states


def _hash_samples(batch: Any) -> list[str]:
    """Return a hash of each sample, over its rows in all tensors with the same number of rows as the first one."""
    tensors = [tensor for tensor in _find_tensors(batch) if len(tensor.shape)]
    columns = [tensor[:_MAX_SAMPLES] for tensor in tensors if len(tensor) == len(tensors[0])]
    return [_hash(b"".join(map(_read_bytes, rows))) for rows in zip(*columns, strict=True)]


def _read_bytes(tensor: Any) -> bytes:
    flat = (tensor.to_dense() if tensor.is_sparse else tensor).detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())  # works without numpy


def _hash(data: Any) -> str:
    return hashlib.blake2b(data if isinstance(data, bytes) else _read_bytes(data), digest_size=8).hexdigest()


def _describe_tensor(tensor: Any) -> tuple[str, list[float]]:
    """Return the hash and the sketch of a tensor (see the module docstring)."""
    torch = _import_torch()
    flat = (tensor.to_dense() if tensor.is_sparse else tensor).detach().reshape(-1)
    flat = (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).cpu().double()
    if flat.numel() <= _BUCKETS:
        return _hash(tensor), flat.tolist()
    buckets, generator = torch.zeros(_BUCKETS, dtype=torch.double), torch.Generator().manual_seed(1)
    for chunk in torch.nn.functional.pad(flat, (0, -flat.numel() % _BUCKETS)).split(_CHUNK):
        signs = torch.randint(0, 2, chunk.shape, generator=generator, dtype=torch.int8) * 2 - 1
        buckets += (chunk * signs).reshape(-1, _BUCKETS).sum(0)
    return _hash(tensor), buckets.tolist()
