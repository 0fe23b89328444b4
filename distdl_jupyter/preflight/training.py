"""Checks of the training code: the backend is initialised, gradients are averaged, data is divided.

Each check reads words and calls, so each finding is a hint with its place, never a proof.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from distdl_jupyter.core.names import backend_label
from distdl_jupyter.core.words import TIMES, count
from distdl_jupyter.preflight.model import Check, Draft, Finding, Request
from distdl_jupyter.preflight.reading import Call, Code

#: Libraries that meet the other ranks by themselves when a trainer starts.
_SELF_STARTING = ("lightning", "pytorch_lightning", "accelerate", "transformers", "deepspeed", "composer", "fastai")
_TORCH_INIT = ("init_process_group", "init_device_mesh")
#: Two names of one class.
TENSORFLOW_INIT = ("MultiWorkerMirroredStrategy", "CollectiveAllReduceStrategy")
_HOROVOD_AVERAGES = (
    "DistributedOptimizer", "DistributedGradientTape", "DistributedAdasumOptimizer", "allreduce", "allreduce_",
    "allreduce_async_", "grouped_allreduce", "grouped_allreduce_",
)  # fmt: skip
_TORCH_AVERAGES = (
    "DistributedDataParallel", "DDP", "FullyShardedDataParallel", "FSDP", "fully_shard", "all_reduce",
    "parallelize_module", "replicate", "distribute_module",
)  # fmt: skip
_SAME_START = ("broadcast_parameters", "broadcast_variables", "broadcast_", "broadcast", "broadcast_object",
               "BroadcastGlobalVariablesCallback", "BroadcastGlobalVariablesHook", "manual_seed", "set_seed",
               "set_random_seed", "load_state_dict", "TorchState", "TensorFlowState",
               "TensorFlowKerasState", "KerasState")  # fmt: skip
_KNOWS_RANK = ("DistributedSampler", "num_replicas", "rank", "local_rank", "get_rank", "RANK", "shard",
               "ElasticSampler", "DistributedDataset", "cross_rank")  # fmt: skip
_NOT_READ = "the code is not at hand, so it was not read"


def family(request: Request) -> str:
    """Return "horovod", "torch" or another backend's own name."""
    return backend_label(request.distributed_backend).partition("-")[0]


def backend(code: Code, draft: Draft, request: Request) -> Check:
    """The ranks meet: the code initialises the backend that was chosen."""
    name, chosen = "Backend", family(request)
    horovod = next((c for c in code.calls if c.last == "init" and c.name.startswith("horovod")), None)
    met = {"horovod": horovod, "torch": code.called(*_TORCH_INIT), "tensorflow": code.called(*TENSORFLOW_INIT)}
    if request.process_count == 1:
        return Check(name, "one process needs no meeting", tuple(_alone(chosen, horovod, met["torch"])))
    if not code.read:
        return Check(name, _NOT_READ)
    helper = next((library for library in _SELF_STARTING if library in code.imports), None)
    if helper is not None and chosen not in ("horovod", "tensorflow"):
        return Check(name, f"{helper} initialises it")
    if (call := met.get(chosen)) is not None:
        return Check(name, f"{_written(call)} in {call.place}")
    if chosen not in met:
        return Check(name, f"{chosen} makes the processes meet")
    finding = _mismatch(request, met) or _never(chosen, draft, request, code)
    return Check(name, "not initialised", (finding,))


def _written(call: Call) -> str:
    return "hvd.init()" if call.name.startswith("horovod") else f"{call.last}()"


def _alone(chosen: str, horovod: Call | None, torch: Call | None) -> Iterator[Finding]:
    if torch is not None and chosen == "plain" and not _says_where(torch):
        yield Finding(
            "warning",
            "torch-alone",
            f"{torch.beginning} calls {torch.last}(), which the backend plain does not tell where to meet.",
            "Choose distributed_backend='torch', and as many processes as you want.",
        )
    if horovod is not None and chosen != "horovod":
        yield Finding(
            "info",
            "horovod-alone",
            f"{horovod.beginning} calls hvd.init(), which does nothing on one process of the backend {chosen}.",
            "Choose distributed_backend='horovod-gloo' and more processes.",
        )


def _says_where(call: Call) -> bool:
    """Say whether a process group is made without the variables of the environment."""
    return bool({"init_method", "store", "rank"} & {keyword.arg for keyword in call.node.keywords})


def _mismatch(request: Request, met: Mapping[str, Call | None]) -> Finding | None:
    """Return that the code initialises another backend than the chosen one, which it does not initialise."""
    for other, call in met.items():
        if call is not None:
            label = "horovod-gloo" if other == "horovod" else other
            return Finding(
                "error",
                "other-backend",
                f"The code calls {_written(call)} in {call.place}, but the job runs on {request.distributed_backend}.",
                f"Choose distributed_backend='{label}'.",
            )
    return None


def _never(chosen: str, draft: Draft, request: Request, code: Code) -> Finding:
    lines = {
        "horovod": ("Horovod", f"`import {_horovod_module(code)} as hvd` and `hvd.init()`"),
        "torch": ("torch.distributed", "`import torch.distributed as dist` and `dist.init_process_group()`"),
        "tensorflow": ("tf.distribute", "`strategy = tf.distribute.MultiWorkerMirroredStrategy()`"),
    }[chosen]
    unit = {"cell": "cell", "function": "function", "script": "script"}[draft.kind]
    return Finding(
        "warning",
        "backend-not-initialised",
        f"The {unit} never initialises {lines[0]}: its {request.process_count} processes would not know of each other.",
        f"Begin it with {lines[1]}.",
    )


def _horovod_module(code: Code) -> str:
    for module in ("torch", "keras", "tensorflow"):
        if code.needs(module):
            return f"horovod.{'tensorflow.keras' if module == 'keras' else module}"
    return "horovod.torch"


def gradients(code: Code, request: Request) -> Check:
    """Gradients are averaged over ranks, and all ranks start from the same weights."""
    name, chosen = "Gradients", family(request)
    if request.process_count == 1 or chosen not in ("horovod", "torch"):
        return Check(name, "one process" if request.process_count == 1 else "the backend averages them")
    if not code.read:
        return Check(name, _NOT_READ)
    if code.needs(*_SELF_STARTING):
        return Check(name, "the trainer averages them")
    trains = code.called("backward")
    if trains is None:
        return Check(name, "no backward() in the code that was read")
    averages = _HOROVOD_AVERAGES if chosen == "horovod" else _TORCH_AVERAGES
    if not code.uses(*averages):
        return Check(name, "not averaged", (_no_average(trains, chosen),))
    if chosen == "horovod" and not code.uses(*_SAME_START):
        return Check(name, "averaged", (_no_broadcast(),))
    return Check(name, "averaged over the ranks")


def _no_average(call: Call, chosen: str) -> Finding:
    remedy = (
        "Wrap the optimizer: hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())."
        if chosen == "horovod"
        else "Wrap the model: torch.nn.parallel.DistributedDataParallel(model)."
    )
    return Finding(
        "warning",
        "gradients-not-averaged",
        f"{call.beginning} computes gradients, but nothing averages them: each rank would train its own model.",
        remedy,
    )


def _no_broadcast() -> Finding:
    return Finding(
        "warning",
        "no-common-start",
        "Nothing gives all ranks the same weights at the start.",
        "Call hvd.broadcast_parameters(model.state_dict(), root_rank=0) before the first step.",
    )


def data(code: Code, draft: Draft, request: Request) -> Check:
    """Each rank reads its own part of the data, in a new order each epoch."""
    name = "Data"
    if request.process_count == 1:
        return Check(name, "one process reads all of it")
    if not code.read:
        return Check(name, _NOT_READ)
    batch = tuple(_global_batch(code, draft, request))
    loader, sampler = code.called("DataLoader"), code.called("DistributedSampler")
    if sampler is not None:
        return Check(name, f"divided by the sampler in {sampler.place}", (*_order(code, sampler), *batch))
    if loader is None or code.uses(*_KNOWS_RANK) or code.needs(*_SELF_STARTING):
        return Check(name, "no undivided DataLoader", batch)
    finding = Finding(
        "warning",
        "data-not-divided",
        f"The DataLoader in {loader.place} gives every rank all of the data.",
        "Give it sampler=DistributedSampler(dataset, num_replicas=size, rank=rank) and leave shuffle out.",
    )
    return Check(name, "not divided", (finding, *batch))


def _order(code: Code, sampler: Call) -> Iterator[Finding]:
    shuffle = next((k.value for k in sampler.node.keywords if k.arg == "shuffle"), None)
    fixed = isinstance(shuffle, ast.Constant) and shuffle.value is False
    if not fixed and not code.uses("set_epoch"):
        yield Finding(
            "info",
            "no-set-epoch",
            f"The sampler in {sampler.place} would shuffle every epoch in the same order.",
            "Call sampler.set_epoch(epoch) at the start of each epoch.",
        )


def _global_batch(code: Code, draft: Draft, request: Request) -> Iterator[Finding]:
    size = draft.numbers.get("batch_size")
    given = [k.value for call in code.calls for k in call.node.keywords if k.arg == "batch_size"]
    for expression in [code.assigned.get("batch_size"), *given]:
        if size is None and isinstance(expression, ast.Constant) and isinstance(expression.value, int):
            size = expression.value
    if size is not None and size > 0:
        total = count(size * request.process_count)
        text = f"Each step sees {count(size)} {TIMES} {request.process_count} = {total} samples."
        yield Finding("info", "global-batch", text)
