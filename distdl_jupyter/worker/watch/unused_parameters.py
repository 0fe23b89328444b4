"""Names the parameters that got no gradient in a model of DistributedDataParallel, and the step and line of the pass.

torch waits in each backward pass for the gradients of all parameters. Where one is missing, the gradients of its bucket
are not averaged; the next forward pass raises an error that has the numbers of the parameters, and ranks that do use
them wait forever. So parameters without a gradient are also searched when an optimizer has stepped, in the measured
steps (``step_times``): of many short steps only in some.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.step_times import recorder
from distdl_jupyter.worker.watch import step_hooks
from distdl_jupyter.worker.watch.hooks import ByObject, PostImport

if TYPE_CHECKING:
    from distdl_jupyter.worker.failing_statement import View
    from distdl_jupyter.worker.frames import Describer
    from distdl_jupyter.worker.sources import Sources

CODE = "unused-parameters"
_MOST_NAMES = 6
#: How find_unused_parameters is set, by the module that tells which library wraps the model.
_SETTINGS = {
    "lightning.pytorch.trainer.trainer": 'strategy="ddp_find_unused_parameters_true" to the Trainer',
    "pytorch_lightning.trainer.trainer": 'strategy="ddp_find_unused_parameters_true" to the Trainer',
    "lightning.fabric.fabric": 'strategy="ddp_find_unused_parameters_true" to Fabric',
    "transformers.trainer": "ddp_find_unused_parameters=True to TrainingArguments",
    "accelerate.accelerator":
        "kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)] to Accelerator",
}  # fmt: skip
_UNFINISHED = ("Expected to have finished reduction", "parameters that were not used in producing the loss")
_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")


class _Model:
    """What is known of one DistributedDataParallel model."""

    def __init__(self, model: Any, describer: Describer) -> None:
        self._describer = describer
        self.wrapper = weakref.ref(model)
        # torch numbers parameters in this order: those that are trained when the model is wrapped.
        ignored = getattr(model, "parameters_to_ignore", ())
        self.parameters = [(name, value) for name, value in model.module.named_parameters()
                           if value.requires_grad and name not in ignored]  # fmt: skip
        #: The last measured step (from 0) with a forward pass that averages gradients, and the file and line of the
        #: user's code that ran the pass.
        self.step, self.position = 0, ("", 0)
        #: Whether a pass has run since an optimizer has stepped.
        self.pending = False
        #: Names of the parameters that had no gradient when an optimizer stepped last.
        self.missing: list[str] = []

    def names(self, indices: Sequence[int]) -> list[str]:
        """Return the parameters at torch's indices."""
        return [self.parameters[at][0] for at in indices if at < len(self.parameters)]

    @property
    def place(self) -> str:
        """Step and line of the last pass, as a sentence says it."""
        ended = recorder.step - recorder.detailed
        if self.step < ended:  # the pass was not measured
            return f"in step {ended + 1}"
        label, line = self._describer.shown(*self.position)
        if not line:
            return f"in step {self.step + 1}"
        file = f"{label}, " if label.endswith(".py") else ""
        return f"in step {self.step + 1} ({file}line {line})"

    def forward_began(self, wrapper: Any) -> None:
        """Remember the step and the line of a forward pass."""
        if wrapper.require_backward_grad_sync:
            self.step, self.pending, self.position = recorder.step, True, self._describer.position()


_models: ByObject[_Model] = ByObject()


def watch(finder: PostImport, sources: Sources, code: Path) -> None:
    """Watch steps, and models once DistributedDataParallel is imported; ``code`` has the user's modules."""
    finder.after("torch.nn.parallel.distributed", functools.partial(_watch_parallel, sources=sources, code=code))
    pid = os.getpid()
    step_hooks.listen(lambda optimizer: _stepped(optimizer, pid))
    step_hooks.listen_forward(_forward_began)


def _watch_parallel(module: ModuleType, sources: Sources, code: Path) -> None:
    from distdl_jupyter.worker.frames import Describer

    owner, describer = module.DistributedDataParallel, Describer(sources, code)
    original = owner.__init__

    @functools.wraps(original)
    def made(this: Any, *args: Any, **kwargs: Any) -> None:
        original(this, *args, **kwargs)
        _models.add(this, _Model(this, describer))

    owner.__init__ = made


def _forward_began(wrapper: Any) -> None:
    if (model := _models.get(id(wrapper))) is not None:
        model.forward_began(wrapper)


def _stepped(optimizer: Any, pid: int) -> None:
    """Send a note where parameters of the optimizer have no gradient, which DistributedDataParallel waits for."""
    for model in list(_models.values()):
        wrapper = model.wrapper()
        if (
            wrapper is not None
            and model.pending
            and (missing := [one for one in model.parameters if one[1].grad is None])
        ):
            mine = {id(one) for group in optimizer.param_groups for one in group["params"]}
            names = [name for name, value in missing if id(value) in mine]
            if names and len(names) < sum(id(value) in mine for _, value in model.parameters):
                _report(wrapper, model, names, pid)


def _report(wrapper: Any, model: _Model, names: list[str], pid: int) -> None:
    model.pending, model.missing = False, names
    waits = not wrapper.find_unused_parameters and not wrapper.static_graph and wrapper.mixed_precision is None
    if waits and os.getpid() == pid:
        channel.note("warning", _unused(model, names), CODE)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(f"`{name}`" for name in names[:_MOST_NAMES]) + more


def _setting() -> str:
    library = next((name for name in _SETTINGS if name in sys.modules), "")
    return _SETTINGS.get(library, "find_unused_parameters=True to DistributedDataParallel")


def _zero(names: Sequence[str]) -> str:
    """Return a term that brings the parameters into the loss without changing it."""
    owners = {name.rpartition(".")[0] for name in names}
    if len(owners) > 1:
        return "0 * sum(p.sum() for p in model.parameters())"
    owner = owners.pop()
    return f"0 * {owner}(x).sum()" if owner else f"0 * {names[0]}.sum()"


def _unused(model: _Model, names: Sequence[str]) -> str:
    frozen = [name for name, value in model.parameters if name in names and not value.requires_grad]
    if frozen:
        return (
            f"{_listed(frozen)} got no gradient {model.place}, because requires_grad was set to False after "
            "DistributedDataParallel had wrapped the model. Set it before that."
        )
    return f"{_listed(names)} got no gradient {model.place}. Pass {_setting()}, or add {_zero(names)} to the loss."


def _model_of(trace: TracebackType | None) -> tuple[Any, _Model] | None:
    """Return the model whose method raised the error, else the one that ran last."""
    while trace is not None:
        this = trace.tb_frame.f_locals.get("self")
        if type(this).__name__ == "DistributedDataParallel" and id(this) in _models:
            return this, _models[id(this)]
        trace = trace.tb_next
    return next(((this, one) for one in reversed(_models.values()) if (this := one.wrapper()) is not None), None)


def unused_hint(error: BaseException, _views: Sequence[View]) -> str:
    """Return which parameters got no gradient, and what to do."""
    if not any(text in str(error) for text in _UNFINISHED) or (found := _model_of(error.__traceback__)) is None:
        return ""
    wrapper, model = found
    indices = _INDICES.search(str(error))
    names = model.names([int(at) for at in indices[1].split()]) if indices else model.missing
    if not names:
        return ""
    if wrapper.static_graph:
        return (
            f"{_listed(names)} got no gradient {model.place}, but did in step 1, and static_graph=True needs the same "
            "parameters in each step. Pass find_unused_parameters=True instead of it to DistributedDataParallel."
        )
    if wrapper.find_unused_parameters:
        return (
            f"{_listed(names)} got no gradient {model.place}, because the loss lacks a value that the model returned. "
            f"Return only what the loss needs, or add {_zero(names)} to the loss."
        )
    return _unused(model, names)
