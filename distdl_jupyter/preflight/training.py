"""Checks of the training code: the backend is initialized, gradients are averaged, data is split between ranks.

The checks only inspect names and calls in the source, so a finding is a hint with a location, never a proof.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from typing import Any

from distdl_jupyter.capture.captured_code import CapturedCode
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import Check, DistDLError, Finding
from distdl_jupyter.core.humanize import TIMES, count
from distdl_jupyter.core.source import Call, CodeAnalysis, try_parse
from distdl_jupyter.core.spec import JobSpec

_SAMPLERS = ("DistributedSampler", "ElasticSampler", "DistributedDataset")
_RANK_NAMES = (*_SAMPLERS, "num_replicas", "rank", "local_rank", "get_rank", "RANK", "shard", "cross_rank")
#: Calls that start training processes; below, calls that join a process group.
_SPAWN_PATTERN = re.compile(
    r"torch\.multiprocessing\.(spawn\.)?(spawn|start_processes)|accelerate\.(notebook|debug)_launcher|horovod\.run"
)
_GROUP_CALLS = ("torch.distributed.init_process_group", "horovod.torch.init", "horovod.init")
_NOT_READ_TEXT = "the code is not available, so it was not checked"


def find_backend(spec: JobSpec) -> Any:
    """Return the backend of the job, or None if it is unknown here."""
    with contextlib.suppress(DistDLError):
        return registry.load_backend(spec.distributed_backend, {})[0]
    return None


def check_backend(code: CodeAnalysis, draft: CapturedCode, spec: JobSpec, selected: Any) -> Check:
    """Check that the code initializes the selected backend."""
    name, usage = "Backend", selected.usage
    if spec.process_count == 1:
        return Check(name, "not needed for one process", tuple(_check_single_process(code, spec, selected)))
    if not code.training_labels:
        return Check(name, _NOT_READ_TEXT)
    trainer = next((library for library in usage.trainers if library in code.imports), None)
    if trainer is not None and usage.trainers_initialize:
        return Check(name, f"{trainer} initializes it")
    if (call := usage.find_initializer(code)) is not None:
        return Check(name, f"{usage.format_call(call)} in {call.location}")
    if not usage.initializers:
        return Check(name, f"{registry.resolve_label(spec.distributed_backend)} initializes it")
    finding = _find_mismatch(code, spec, selected)
    if finding is None and (call := code.find_helper()) is not None:
        return Check(name, f"{call.short_name}() in {call.location} may initialize it")
    finding = finding or _make_not_initialized(usage, draft, spec, code)
    return Check(name, "not initialized", (finding,))


def _find_other_backends(code: CodeAnalysis, selected: Any) -> Iterator[tuple[Any, Call]]:
    """Yield each backend other than the selected one that the code initializes, with the call."""
    for other in registry.load_backends():
        call = other.usage.find_initializer(code)
        if call is not None and other.name != selected.name:
            yield other, call


def _suggest_backend(backend: Any) -> str:
    return f"Choose distributed_backend={next(iter(backend.labels), backend.name)!r}"


def _check_single_process(code: CodeAnalysis, spec: JobSpec, selected: Any) -> Iterator[Finding]:
    label = registry.resolve_label(spec.distributed_backend)
    for other, call in _find_other_backends(code, selected):
        clause = f"{call.beginning} calls {other.usage.format_call(call)}"
        if (
            other.usage.effect_on_one_process == "fails"
            and not selected.communicates
            and not _has_explicit_address(call)
        ):
            text = f"{clause}, but the backend {label} does not tell the processes how to connect."
            remedy = f"{_suggest_backend(other)}, and any number of processes."
            yield Finding("warning", f"{other.name}-alone", text, remedy)
        elif other.usage.effect_on_one_process == "idle":
            text = f"{clause}, which has no effect on one process of the backend {label}."
            yield Finding("info", f"{other.name}-alone", text, f"{_suggest_backend(other)} and more processes.")


def _has_explicit_address(call: Call) -> bool:
    """Return whether a process group is created without reading environment variables."""
    return bool({"init_method", "store", "rank"} & {keyword.arg for keyword in call.node.keywords})


def _find_mismatch(code: CodeAnalysis, spec: JobSpec, selected: Any) -> Finding | None:
    """Return a finding if the code initializes a backend other than the selected one."""
    for other, call in _find_other_backends(code, selected):
        clause = f"The code calls {other.usage.format_call(call)} in {call.location}"
        text = f"{clause}, but the job runs on {spec.distributed_backend}."
        return Finding("error", "other-backend", text, f"{_suggest_backend(other)}.")
    return None


def _make_not_initialized(usage: Any, draft: CapturedCode, spec: JobSpec, code: CodeAnalysis) -> Finding:
    return Finding(
        "warning",
        "backend-not-initialised",
        f"The {draft.kind} never initializes {usage.title}, so its {spec.process_count} processes will not "
        "communicate.",
        f"Start the {draft.kind} with {usage.initialization(code.imports)}.",
    )


def check_calls(draft: CapturedCode) -> Check | None:
    """Check that a cell or script does more than define functions and classes. Return None if it does."""
    if draft.kind == "function" or not draft.texts:
        return None
    tree = try_parse(draft.texts[0].text)
    body = tree.body if tree is not None else []
    definitions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    if not definitions or not all(_is_definition(node) for node in body):
        return None
    tests = [node.test for node in body if isinstance(node, ast.If) and _is_never_run(node)]
    if tests:
        text = f"No code in the {draft.kind} runs, because 'if {ast.unparse(tests[0])}' is never true in a job."
        remedy = 'Write if __name__ == "__main__":'
    else:
        functions = [node for node in definitions if not isinstance(node, ast.ClassDef)]
        name = functions[-1].name if functions else definitions[-1].name
        parentheses, verb = ("()", "calls") if functions else ("", "uses")
        text = f"The {draft.kind} defines {name}{parentheses} but never {verb} it."
        remedy = f"Call {name}(...) at the end of the {draft.kind}."
    return Check("Calls", "nothing is called", (Finding("warning", "never-called", text, remedy),))


def check_processes(code: CodeAnalysis, spec: JobSpec) -> Check | None:
    """Check that the code does not start training processes itself. Return None if it does not.

    This is only a warning, because every process of the job may run workers that do not communicate.
    """
    call = next(
        (call for call in code.calls if call.label in code.training_labels and _starts_processes(call, code)), None
    )
    if spec.process_count == 1 or call is None:
        return None
    text = f"{call.beginning} starts new processes in each of the {spec.process_count} processes of the job."
    worker = ast.unparse(target) if (target := _find_target(call)) is not None else "the worker function"
    remedy = (
        f"Use one process (-p 1), or call {worker}(rank, size) directly with the rank and world size of the job: "
        'rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]).'
    )
    return Check("Processes", "started by the code", (Finding("warning", "own-processes", text, remedy),))


def _starts_processes(call: Call, code: CodeAnalysis) -> bool:
    """Return whether a call starts processes that train together."""
    if _SPAWN_PATTERN.fullmatch(call.name):
        return True
    target = _find_target(call) if call.short_name == "Process" else None
    return isinstance(target, ast.Name) and any(
        other.function == target.id and other.name in _GROUP_CALLS for other in code.calls
    )


def _find_target(call: Call) -> ast.expr | None:
    """Return the function that the started processes run."""
    functions = [
        argument.value for argument in call.node.keywords if argument.arg in ("target", "fn", "function", "func")
    ]
    positional = [] if call.short_name == "Process" else [*call.node.args]
    return next(
        (argument for argument in [*functions, *positional] if isinstance(argument, ast.Name | ast.Attribute)), None
    )


def _is_never_run(node: ast.stmt) -> bool:
    """Return whether a statement is an ``if __name__`` test that is false in every job."""
    if not isinstance(node, ast.If) or node.orelse or not isinstance(node.test, ast.Compare):
        return False
    sides = [node.test.left, *node.test.comparators]
    values = [side.value for side in sides if isinstance(side, ast.Constant)]
    if len(node.test.ops) != 1 or len(values) != 1 or not any(ast.unparse(side) == "__name__" for side in sides):
        return False
    is_main = values[0] == "__main__"
    return not is_main if isinstance(node.test.ops[0], ast.Eq) else is_main and isinstance(node.test.ops[0], ast.NotEq)


def _is_definition(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return not node.decorator_list
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return not any(isinstance(part, ast.Call) for part in ast.walk(node))
    return (
        _is_never_run(node)
        or isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.Pass)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    )


def check_gradients(code: CodeAnalysis, spec: JobSpec, usage: Any) -> Check:
    """Check that gradients are averaged over ranks and that all ranks start from the same weights."""
    name = "Gradients"
    if spec.process_count == 1 or not usage.averaging_names:
        return Check(name, "one process" if spec.process_count == 1 else "the backend averages them")
    if not code.training_labels:
        return Check(name, _NOT_READ_TEXT)
    if code.needs(*usage.trainers):
        return Check(name, "the trainer averages them")
    call = code.find_call("backward")
    if call is None:
        return Check(name, "no backward() call in the code")
    if not code.uses(*usage.averaging_names):
        if (helper := code.find_helper()) is not None:
            return Check(name, f"{helper.short_name}() in {helper.location} may average them")
        finding = Finding(
            "warning",
            "gradients-not-averaged",
            f"{call.beginning} computes gradients, but the code does not average them, so each rank would train its "
            "own model.",
            usage.averaging_remedy,
        )
        return Check(name, "not averaged", (finding,))
    if usage.synchronizing_names and not code.uses(*usage.synchronizing_names):
        text = "The code does not give all ranks the same weights at the start."
        return Check(name, "averaged", (Finding("warning", "no-common-start", text, usage.synchronizing_remedy),))
    return Check(name, "averaged across ranks")


def check_data(code: CodeAnalysis, draft: CapturedCode, spec: JobSpec, usage: Any) -> Check:
    """Check that each rank reads its own part of the data, in a new order each epoch."""
    name = "Data"
    if spec.process_count == 1:
        return Check(name, "one process reads all data")
    if not code.training_labels:
        return Check(name, _NOT_READ_TEXT)
    batch = tuple(_check_batch_size(code, draft, spec))
    loader, sampler = code.find_call("DataLoader"), code.find_call("DistributedSampler")
    if sampler is not None:
        return Check(name, f"split by the sampler in {sampler.location}", (*_check_order(code, sampler), *batch))
    if loader is None or code.uses(*_RANK_NAMES) or code.needs(*usage.trainers):
        return Check(name, "no unsplit DataLoader", batch)
    finding = Finding(
        "warning",
        "data-not-divided",
        f"The DataLoader in {loader.location} gives all the data to every rank.",
        "Pass sampler=DistributedSampler(dataset, num_replicas=size, rank=rank) and remove shuffle.",
    )
    return Check(name, "not split", (finding, *batch))


def _check_order(code: CodeAnalysis, sampler: Call) -> Iterator[Finding]:
    shuffle = next((k.value for k in sampler.node.keywords if k.arg == "shuffle"), None)
    keeps_order = isinstance(shuffle, ast.Constant) and shuffle.value is False
    if not keeps_order and not code.uses("set_epoch"):
        yield Finding(
            "info",
            "no-set-epoch",
            f"The sampler in {sampler.location} would use the same order in every epoch.",
            "Call sampler.set_epoch(epoch) at the start of each epoch.",
        )


def _check_batch_size(code: CodeAnalysis, draft: CapturedCode, spec: JobSpec) -> Iterator[Finding]:
    size = draft.numbers.get("batch_size")
    expressions = [k.value for call in code.calls for k in call.node.keywords if k.arg == "batch_size"]
    for expression in [code.assigned.get("batch_size"), *expressions]:
        if size is None and isinstance(expression, ast.Constant) and isinstance(expression.value, int):
            size = expression.value
    if size is not None and size > 0:
        total = count(size * spec.process_count)
        text = f"Each step uses {count(size)} {TIMES} {spec.process_count} = {total} samples."
        yield Finding("info", "global-batch", text)
