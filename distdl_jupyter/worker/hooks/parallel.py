"""Checks data-parallel training for unused parameters, weights that differ, and ranks that do not communicate.

Only this module uses these private names: ``_comm_hooks`` and ``_module_parameters`` of DistributedDataParallel,
``_requires_update`` of Horovod's optimizer and ``_is_current_rpc_agent_set`` of torch's RPC.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.frames import View
from distdl_jupyter.worker.hooks import distributed, steps
from distdl_jupyter.worker.hooks.imports import HookFinder, Patches
from distdl_jupyter.worker.step_times import recorder


def install_hooks(finder: HookFinder) -> None:
    """Hook optimizer steps, if the job has several ranks."""
    if _get_size() <= 1:
        return
    interval, backend = os.environ.get(INTERVAL_VARIABLE, ""), os.environ.get("DISTDL_BACKEND", "")
    if interval.isdigit() and int(interval):
        steps.count_step = _WeightChecker(finder, int(interval)).count_step
    if backend in _REMEDIES and not os.environ.get("DISTDL_CHECK"):
        steps.listeners.append(_make_communication_check(_REMEDIES[backend]))


def _get_size() -> int:
    size = os.environ.get("DISTDL_WORLD_SIZE", "")
    return int(size) if size.isdigit() else 1


# unused parameters -------------------------------------------------------------------------------
#
# In each backward pass, torch waits for the gradients of all parameters. If a gradient is missing, the next forward
# pass raises an error with the indices of the parameters.

UNUSED_CODE = "unused-parameters"
#: Maximum number of parameters named in a hint.
_MAX_NAMES = 6
_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")


def explain_unused(error: BaseException, _views: Sequence[View]) -> str:
    """Return a hint with the parameters that got no gradient and the fix (Lightning's errors contain the fix)."""
    indices, model, trace = _INDICES.search(str(error)), None, error.__traceback__
    while trace is not None and model is None:  # the model in whose method torch raised the error
        this, trace = trace.tb_frame.f_locals.get("self"), trace.tb_next
        model = this if type(this).__name__ == "DistributedDataParallel" else None
    if indices is None or model is None:
        return ""
    names = {id(value): name for name, value in model.module.named_parameters()}
    unused = [model._module_parameters[int(index)] for index in indices[1].split()]  # noqa: SLF001  in torch's order
    name_list = ", ".join(f"`{names[id(value)]}`" for value in unused[:_MAX_NAMES])
    if len(unused) > _MAX_NAMES:
        name_list += f" and {len(unused) - _MAX_NAMES} more"
    # torch raises the error when the forward pass of the next step begins.
    missing = f"{name_list} got no gradient in step {recorder.step - recorder.is_detailed + 1}"
    if model.find_unused_parameters:
        return f"{missing}, because the loss does not use all outputs of the model. Return only the outputs it uses."
    setting = "find_unused_parameters=True to DistributedDataParallel"
    if "transformers.trainer" in sys.modules:
        setting = "ddp_find_unused_parameters=True to TrainingArguments"
    if model.static_graph:
        setting += " instead of static_graph=True"
    return f"{missing}. Pass {setting}, or add 0 * sum(p.sum() for p in model.parameters()) to the loss."


# weights that differ -----------------------------------------------------------------------------
#
# Each rank periodically reports a checksum of its weights, so that the supervisor detects ranks with different weights.
# It covers the parameters that DistributedDataParallel or Horovod's optimizer keeps equal: after an all-reduce, all
# ranks have the same bits, and the same step gives the same bits on the same type of processor (part of the report).
# It excludes weights that are sharded (FSDP, ZeRO, tensor or pipeline parallel), that may differ between two averages
# (local SGD, steps inside ``no_sync()``, Adasum), or that are not averaged.

#: Environment variable with the number of steps between two checks, 0 for none. The first checks are at 1, 2, 4, ...
INTERVAL_VARIABLE = "DISTDL_WEIGHT_CHECK"
#: Maximum number of elements of a parameter in the checksum. They are evenly spaced.
_MAX_ELEMENTS = 1 << 20
#: Integer types by element size in bytes. Sums of integers wrap around, so they do not depend on the order.
_INTEGER_TYPES = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


@dataclass(slots=True)
class _OptimizerState:
    """The step count of one optimizer, and the next step after which its weights are checked."""

    number: int
    steps: int = 0
    due: int = 1
    #: The training step that was counted last. Horovod's ``step`` calls that of the optimizer, which is the same step.
    last_step: int = -1
    #: The parameters that are equal on all ranks, or None if they are not determined yet.
    parameters: list[Any] | None = None


class _WeightChecker:
    def __init__(self, finder: HookFinder, interval: int) -> None:
        self._interval = interval
        self._optimizers: weakref.WeakKeyDictionary[Any, _OptimizerState] = weakref.WeakKeyDictionary()
        #: The DistributedDataParallel models of this process.
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self._pid = os.getpid()
        patch = Patches()

        @patch("DistributedDataParallel.__init__", "torch.nn.parallel.distributed")
        def init_model(init: Any, this: Any, *args: Any, **kwargs: Any) -> None:
            init(this, *args, **kwargs)
            self._models.add(this)

        patch.install(finder)

    def count_step(self, optimizer: Any) -> None:
        """Count a step, and report the weights if due."""
        if (state := self._optimizers.get(optimizer)) is None:
            state = self._optimizers[optimizer] = _OptimizerState(len(self._optimizers))
        if state.last_step == (step := recorder.step):
            return
        state.last_step = step
        state.steps += 1
        if state.steps < state.due:
            return
        count, interval = state.steps, self._interval
        state.due = min(2 * count, interval) if count < interval else count + interval
        try:
            if state.parameters is None:
                state.parameters = self._find_equal_parameters(optimizer)
            if state.parameters and not all(model.require_backward_grad_sync for model in self._models):
                state.parameters = []  # a step inside ``no_sync()``, as in local SGD
            if state.parameters and os.getpid() == self._pid:
                device, checksum = state.parameters[0].device, _compute_checksum(state.parameters)
                name = _get_device_name(device.type, device.index)
                channel.send("weights", optimizer=state.number, step=state.steps, sum=checksum, device=name)
        except Exception as error:  # noqa: BLE001  our failure must not become the user's
            state.parameters = []
            reason = f"{type(error).__name__} was raised ({error!s:.200})"
            channel.notify("warning", f"Weights are no longer compared between ranks: {reason}.", "weights")

    def _find_equal_parameters(self, optimizer: Any) -> list[Any]:
        """Return the parameters of an optimizer that are equal on all ranks, in the optimizer's order."""
        parameters = list_parameters(optimizer)
        if find_sharding(parameters):
            return []
        equal_ids: set[int] = set()
        if (averaged := getattr(optimizer, "_requires_update", None)) is not None:
            process_set = getattr(optimizer, "process_set", None)
            includes_all = process_set is None or getattr(process_set, "process_set_id", 0) == 0
            adasum = getattr(sys.modules.get("horovod.torch.mpi_ops"), "Adasum", None)
            is_adasum = getattr(optimizer, "op", None) == adasum
            if includes_all and not is_adasum and "Adasum" not in repr(type(optimizer).__dict__.get("__init__")):
                equal_ids |= set(map(id, averaged))
        for model in self._models:
            group_size = sys.modules["torch.distributed"].get_world_size(model.process_group)
            if group_size == _get_size() and not averages_weights(model):
                equal_ids |= {id(parameter) for parameter in model._module_parameters}  # noqa: SLF001  averaged ones
        return [parameter for parameter in parameters if id(parameter) in equal_ids]


def list_parameters(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def find_sharding(parameters: Iterable[Any]) -> str:
    """Return the library that shards the weights across ranks, or "" if each rank has all weights."""
    for parameter in parameters:
        is_flat = type(parameter).__name__ == "FlatParameter" or hasattr(parameter, "_is_flat_param")
        if is_flat or hasattr(parameter, "placements") or hasattr(parameter.data, "placements"):
            return "FullyShardedDataParallel or DTensor"
        if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):
            return "DeepSpeed's ZeRO"
    return ""


def averages_weights(model: Any) -> bool:
    """Return whether a model periodically averages weights instead of gradients (torch's local SGD)."""
    return any("localSGD" in getattr(hook, "__qualname__", "") for hook, _ in getattr(model, "_comm_hooks", ()))


def _compute_checksum(parameters: list[Any]) -> str:
    """Return a weighted sum of the bits of all parameters, modulo 2**64, as 16 hexadecimal digits."""
    import torch

    with torch.no_grad():
        sums = []
        for index, parameter in enumerate(parameters):
            flat = parameter.detach().reshape(-1)
            flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
            flat = flat[:: -(-parameter.numel() // _MAX_ELEMENTS) or 1].contiguous()
            bits = flat.view(getattr(torch, _INTEGER_TYPES[flat.element_size()]))
            sums.append(bits.sum(dtype=torch.int64) * (2 * index + 1))
        total = sums[0].clone() if len(sums) == 1 else torch.stack([part.to(sums[0].device) for part in sums]).sum()
        return f"{int(total) & (1 << 64) - 1:016x}"


@functools.lru_cache(maxsize=8)
def _get_device_name(device_type: str, index: int | None) -> str:
    import torch

    if device_type == "cuda":
        return str(torch.cuda.get_device_name(index))
    capability = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", lambda: "")()
    return f"{device_type} {platform.machine()} {capability}".strip()


# ranks that do not communicate -------------------------------------------------------------------
#
# A rank has communicated if a process group of several ranks has started a collective operation, or if Horovod has
# averaged anything. Steps without communication between two collective operations (``no_sync``, local SGD) are allowed.

#: Number of steps after which a rank should have created a process group, and after which it should have used the group
#: (local SGD may average rarely). ``step_times`` measures all of these steps.
_GROUP_STEPS, _COLLECTIVE_STEPS = 20, 100
_REMEDIES = {
    "torch": "Call torch.distributed.init_process_group() and wrap the model in DistributedDataParallel, or configure "
        "the trainer for all processes (Lightning: devices and strategy).",
    "horovod": "Call hvd.init() and wrap the optimizer in hvd.DistributedOptimizer.",
    "deepspeed": "Train with the engine that deepspeed.initialize() returns.",
}  # fmt: skip
#: Modules that ranks may use for communication that is not tracked here.
_UNTRACKED_MODULES = ("mpi4py.MPI", "ray", "tensorflow", "jax")


def _make_communication_check(remedy: str) -> Callable[[Any], None]:
    """Return a listener that checks once or twice whether this process has communicated."""
    next_check, pid = _GROUP_STEPS, os.getpid()

    def check_step(_optimizer: Any) -> None:
        nonlocal next_check
        count = recorder.step + 1
        if not next_check or count < next_check:
            return
        next_check = 0
        groups = [group for group in distributed.list_groups() if group.size() > 1]
        horovod, rpc = distributed.get_running_horovod(), sys.modules.get("torch.distributed.rpc.api")
        uses_horovod = horovod is not None and horovod.size() > 1
        # The number of operations is None if the transport does not count them.
        has_communicated = any(distributed.count_operations(group) != 0 for group in groups)
        has_communicated = has_communicated or (uses_horovod and recorder.has_waited)
        if has_communicated or (rpc is not None and rpc._is_current_rpc_agent_set()):  # noqa: SLF001
            return
        reason = f"after {count} optimizer steps there is no process group with more than one rank"
        if groups or uses_horovod:
            if count < _COLLECTIVE_STEPS:
                next_check = _COLLECTIVE_STEPS
                return
            reason = f"no collective operation ran in {count} optimizer steps"
        if os.getpid() == pid and not any(name in sys.modules for name in _UNTRACKED_MODULES):
            text = f"The ranks are not communicating: {reason}, so each rank trains its own model. {remedy}"
            channel.notify("warning", text, "no-communication")

    return check_step
