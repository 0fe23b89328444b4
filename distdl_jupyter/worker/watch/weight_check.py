"""Reports a checksum of the weights now and then, so that the supervisor sees when a rank departs from the others.

Only what all ranks are to have alike is summed: parameters that DistributedDataParallel or Horovod's optimizer keeps
so. After an all-reduce every rank has the same bits, and the same step from the same bits gives the same bits on the
same kind of processor, which the report names. Weights that are divided among ranks (FSDP, ZeRO, tensor or pipeline
parallel), that ranks may have of their own between two averages (local SGD, steps inside ``no_sync()``, Adasum), or
that nothing averages are left out. ``DISTDL_WEIGHT_CHECK`` says after how many steps; before, it is done after 1, 2, 4,
... steps.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
import weakref
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.watch import compiling, step_hooks
from distdl_jupyter.worker.watch.hooks import ByObject, PostImport

#: Variable with the number of steps between two checks, 0 for none.
VARIABLE = "DISTDL_WEIGHT_CHECK"
#: Elements of one parameter that are summed at most, with equal steps between them.
_MOST = 1 << 20
#: Types of integers by the bytes of an element: sums of them wrap around, so they do not depend on the order.
_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def watch(finder: PostImport) -> None:
    """Ask to be told when torch's optimizers are imported, in a job of several ranks."""
    every, size = os.environ.get(VARIABLE, ""), os.environ.get("DISTDL_WORLD_SIZE", "1")
    if every.isdigit() and int(every) and size.isdigit() and int(size) > 1:
        checker = _Checker(int(every))
        step_hooks.count = checker.stepped
        finder.after("torch.nn.parallel.distributed", checker.watch_parallel)
        finder.after("horovod.torch.optimizer", checker.watch_horovod)


@dataclass(slots=True)
class _Optimizer:
    """The steps of one optimizer, and the next one after which its parameters are summed."""

    number: int
    steps: int = 0
    due: int = 1
    #: How deep ``step`` calls itself: Horovod's calls that of the optimizer.
    depth: int = 0
    #: Its parameters that all ranks have alike, once they are known.
    parameters: list[Any] | None = None


class _Checker:
    """Counts the steps of each optimizer of this process."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._parallel: list[weakref.ref[Any]] = []
        self._optimizers: ByObject[_Optimizer] = ByObject()
        self._pid = os.getpid()

    def watch_horovod(self, _module: ModuleType) -> None:
        """Be called before each step too."""
        module = sys.modules["torch.optim.optimizer"]
        if hasattr(module, "register_optimizer_step_pre_hook"):
            module.register_optimizer_step_pre_hook(self._begun)

    def watch_parallel(self, module: ModuleType) -> None:
        """Remember the models that DistributedDataParallel keeps alike."""
        owner = module.DistributedDataParallel
        original = owner.__init__

        @functools.wraps(original)
        def made(this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            self._parallel.append(weakref.ref(this))

        owner.__init__ = made

    def _begun(self, optimizer: Any, *_: Any) -> None:
        if not compiling.is_compiling():
            self._of(optimizer).depth += 1

    def _of(self, optimizer: Any) -> _Optimizer:
        known = self._optimizers.get(id(optimizer))
        return known or self._optimizers.add(optimizer, _Optimizer(len(self._optimizers)))

    def stepped(self, optimizer: Any) -> None:
        """Count a step, and report the weights where they are due."""
        known = self._of(optimizer)
        if known.depth > 1:
            known.depth -= 1
            return
        known.depth = 0
        known.steps += 1
        if known.steps < known.due:
            return
        known.due = min(2 * known.steps, self._every) if known.steps < self._every else known.steps + self._every
        try:
            self._check(known, optimizer)
        except Exception as error:  # noqa: BLE001  our failure must not become the user's
            known.parameters = []
            reason = f"{type(error).__name__} was raised ({error!s:.200})"
            channel.note("warning", f"Weights are no longer compared between ranks: {reason}.", "weights")

    def _check(self, known: _Optimizer, optimizer: Any) -> None:
        """Report the sum of the parameters of an optimizer."""
        if known.parameters is None:
            known.parameters = self._comparable(optimizer)
        if known.parameters and self._averages_weights():
            known.parameters = []
        if known.parameters and os.getpid() == self._pid:
            device, checksum = _device(known.parameters[0]), _checksum(known.parameters)
            channel.send("weights", optimizer=known.number, step=known.steps, sum=checksum, device=device)

    def _averages_weights(self) -> bool:
        """Say whether a step runs inside ``no_sync()``, as those of local SGD do between two averages."""
        return any((model := made()) is not None and not model.require_backward_grad_sync for made in self._parallel)

    def _comparable(self, optimizer: Any) -> list[Any]:
        """Return the parameters of an optimizer that all ranks have alike, in its order."""
        mine = [one for group in optimizer.param_groups for one in group["params"]]
        if any(hasattr(one, "placements") or hasattr(one, "ds_id") or type(one).__name__ == "FlatParameter"
               for one in mine):  # fmt: skip
            return []
        alike: set[int] = set()
        if (averaged := getattr(optimizer, "_requires_update", None)) is not None:
            chosen = getattr(optimizer, "process_set", None)
            everywhere = chosen is None or getattr(chosen, "process_set_id", 0) == 0
            if everywhere and not _is_adasum(optimizer):
                alike |= set(map(id, averaged))
        for made in self._parallel:
            if (model := made()) is not None and _spans_all(model):
                alike |= {id(one) for one in model._module_parameters}  # noqa: SLF001  those it averages
        return [one for one in mine if id(one) in alike]


def _is_adasum(optimizer: Any) -> bool:
    adasum = getattr(sys.modules.get("horovod.torch.mpi_ops"), "Adasum", None)
    return "Adasum" in repr(type(optimizer).__dict__.get("__init__")) or getattr(optimizer, "op", None) == adasum


def _spans_all(model: Any) -> bool:
    """Say whether all ranks average the gradients of a model in each step, with torch's own operation."""
    import torch

    hooks = getattr(model, "_comm_hooks", ())
    local = any("localSGD" in getattr(hook, "__qualname__", "") for hook, _ in hooks)
    return not local and torch.distributed.get_world_size(model.process_group) == int(os.environ["DISTDL_WORLD_SIZE"])


def _checksum(parameters: list[Any]) -> str:
    """Return the sums of the bits of all parameters, as text."""
    import torch

    with torch.no_grad():
        sums = []
        for at, one in enumerate(parameters):
            flat = one.detach().reshape(-1)
            flat = (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat)[
                :: -(-one.numel() // _MOST) or 1
            ]
            bits = flat.contiguous().view(getattr(torch, _INTEGERS[flat.element_size()]))
            sums.append(bits.sum(dtype=torch.int64) * (2 * at + 1))
        total = sums[0].clone() if len(sums) == 1 else torch.stack([one.to(sums[0].device) for one in sums]).sum()
        return f"{int(total) & (1 << 64) - 1:016x}"


@functools.lru_cache(maxsize=8)
def _name_of(kind: str, index: int | None) -> str:
    import torch

    if kind == "cuda":
        return str(torch.cuda.get_device_name(index))
    capability = getattr(getattr(torch.backends, "cpu", None), "get_cpu_capability", lambda: "")()
    return f"{kind} {platform.machine()} {capability}".strip()


def _device(parameter: Any) -> str:
    return _name_of(parameter.device.type, parameter.device.index)
