"""Describes an exception as data: its frames as in the notebook, the values at the failing line, and a hint.

``describe`` never raises, so the original error is always reported. Its docstring specifies the data.

A hint explains an error in one sentence, from the values at the failing line, and has a code for programs. A rule reads
the exception and the views of the user's frames (deepest first, the notebook's frames before those of modules). Hints
use no other information.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import linecache
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import secret_patterns, values
from distdl_jupyter.worker.frames import (
    MISSING,
    WORKER_FOLDER,
    CellSources,
    ErrorFrame,
    FrameDescriber,
    View,
    add_to_linecache,
)
from distdl_jupyter.worker.hooks import gpu_memory, parallel
from distdl_jupyter.worker.hooks.frameworks import get_shape
from distdl_jupyter.worker.values import format_names, format_sizes, list_keys

Rule = Callable[[BaseException, Sequence[View]], str]


def find_hint(error: BaseException, views: Sequence[View]) -> tuple[str, str]:
    """Return the code and the sentence of the first rule that matches the error, or ("", "") if none matches."""
    for code, rule in RULES:
        try:
            sentence = rule(error, views)
        except Exception:  # noqa: BLE001, S112  the error must be reported without a hint
            continue
        if sentence:
            return code, sentence
    return "", ""


def _explain_key(error: BaseException, views: Sequence[View]) -> str:
    """Return a hint that lists the keys of the container that lacks the key."""
    subscripts = (
        (node, view.evaluate(node.value), view.evaluate(node.slice))
        for view in views
        for node in view.iterate_nodes()
        if isinstance(node, ast.Subscript)
    )
    for node, owner, key in subscripts if isinstance(error, KeyError) and error.args else ():
        keys = list_keys(owner)
        if keys is not None and (key is MISSING or key == error.args[0]) and error.args[0] not in keys:
            name, total = ast.unparse(node.value), len(owner) if isinstance(owner, dict) else len(keys)
            start = f"The keys of `{name}` are" if total > 1 else f"The only key of `{name}` is"
            return f"{start} {format_names(keys[:8], max(0, total - 8))}." if keys else f"`{name}` is empty."
    return ""


#: Words that occur in torch, numpy and TensorFlow errors about shapes.
_SHAPE_WORDS = ("shape", "size", "dimension", "broadcast", "matmul", "mismatch")


def _iterate_expressions(error: BaseException, views: Sequence[View]) -> Iterator[tuple[View, ast.AST]]:
    """Yield the expressions of the failing statements, deepest first, if the error is about shapes."""
    text = str(error).lower()
    if isinstance(error, RuntimeError | ValueError | TypeError) and any(word in text for word in _SHAPE_WORDS):
        for view in views:
            yield from ((view, node) for node in view.iterate_nodes())


def _explain_layer(error: BaseException, views: Sequence[View]) -> str:
    """Return a hint for a layer that is called with the wrong number of features, such as ``self.fc(x)``."""
    for view, call in _iterate_expressions(error, views):
        if isinstance(call, ast.Call) and call.args:
            in_features = getattr(view.evaluate(call.func), "__dict__", {}).get("in_features")
            shape = get_shape(view.evaluate(call.args[0]))
            if isinstance(in_features, int) and shape and shape[-1] != in_features:
                layer, value = ast.unparse(call.func), ast.unparse(call.args[0])
                features = f"{in_features:,} feature{'s' * (in_features != 1)}"
                return f"`{layer}` expects {features}, but `{value}` ({format_sizes(shape)}) has {shape[-1]:,}."
    return ""


def _explain_operands(error: BaseException, views: Sequence[View]) -> str:
    """Return a hint for operands with incompatible shapes, such as ``x @ w``, ``a + b`` or ``torch.matmul(x, w)``."""
    for view, node in _iterate_expressions(error, views):
        is_product = isinstance(node, ast.Call) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult))
        operands = [node.left, node.right] if isinstance(node, ast.BinOp) else getattr(node, "args", [])[:2]
        shapes = [shape for operand in operands if (shape := get_shape(view.evaluate(operand))) is not None]
        if len(shapes) < 2:
            continue
        first, second = shapes
        if is_product:
            differs = first != second or len(first) < 2 or first[-1] != second[-2]
        else:
            differs = any(a != b and 1 not in (a, b) for a, b in zip(reversed(first), reversed(second), strict=False))
        if differs:
            return (
                " and ".join(
                    f"`{ast.unparse(operand)}` is {format_sizes(shape)}"
                    for operand, shape in zip(operands, shapes, strict=True)
                )
                + "."
            )
    return ""


def _explain_module(error: BaseException, _views: Sequence[View]) -> str:
    package = (getattr(error, "name", "") or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package and package not in sys.modules:
        return f"`{package}` is not installed for {sys.executable}, and {package}.py was not sent with the job."
    return ""


def _explain_name(error: BaseException, views: Sequence[View]) -> str:
    if type(error) is NameError and error.name and views:
        return f"`{error.name}` is not defined in the cell or the notebook. Define it before using it."
    return ""


def _explain_file(error: BaseException, _views: Sequence[View]) -> str:
    name = error.filename if isinstance(error, FileNotFoundError) else None
    if isinstance(name, str | Path) and not Path(name).is_absolute():
        return f"The path is relative to the job's working directory, {Path.cwd()}."
    return ""


def _explain_open_files(error: BaseException, _views: Sequence[View]) -> str:
    import resource

    if getattr(error, "errno", None) != errno.EMFILE and "Too many open files" not in str(error):
        return ""
    return (
        f"The limit of open files per process is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,}. Close files after "
        "reading them, raise the limit with 'ulimit -n' where the job is submitted, or call "
        'torch.multiprocessing.set_sharing_strategy("file_system").'
    )


def _explain_gpu_memory(error: BaseException, _views: Sequence[View]) -> str:
    if gpu_memory.is_out_of_memory(error):
        return "GPU memory is full. Use a smaller batch."  # failure.describe() replaces it with a detailed message
    return ""


def _explain_device_assert(error: BaseException, _views: Sequence[View]) -> str:
    if "device-side assert" not in str(error):
        return ""
    if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        return (
            "An assertion in a GPU kernel failed at the line shown (CUDA_LAUNCH_BLOCKING=1 is set), often because an "
            "index is out of range. Check the indices and labels there, or run the line on the CPU."
        )
    job = os.environ.get("DISTDL_JOB_ID", "").rpartition("-")[2] or "ID"
    return (
        "An assertion in a GPU kernel failed, often because an index is out of range. Kernels run asynchronously, so "
        f"an earlier line may be the cause. To find it, run: distdl rerun {job} --env CUDA_LAUNCH_BLOCKING=1"
    )


def _explain_data_loader(error: BaseException, _views: Sequence[View]) -> str:
    text = str(error).rstrip()
    if text.startswith("Caught ") and "Original Traceback" in text:
        return f"It was raised in a DataLoader worker process: {text.splitlines()[-1].strip()[:200]}"
    return ""


def _make_text_rule(pattern: str, hint: str) -> Rule:
    return lambda error, _views: hint if re.search(pattern, str(error), re.DOTALL) else ""


#: Hints for errors identified by their text: code, pattern, hint.
TEXT_RULES = (
    (
        "not-initialized",
        r"Horovod has not been initialized",
        "Call hvd.init() at the top of the cell, before any other Horovod call.",
    ),
    (
        "not-initialized",
        r"process group has not been initialized",
        "Call torch.distributed.init_process_group() at the top of the cell, before any other distributed call.",
    ),
    (
        "nccl-without-gpu",
        r"have NCCL built in|NCCL.*no GPUs found|no GPUs found.*NCCL",
        "NCCL needs a GPU for every rank and a torch build with NCCL. Call init_process_group() without a backend, or "
        'with "gloo".',
    ),
    (
        "nccl-shared-gpu",
        r"Duplicate GPU detected",
        "Two ranks use the same GPU, which NCCL rejects. Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) "
        "before any other CUDA call. With fewer GPUs than processes, use a smaller -p, or use Gloo.",
    ),
    (  # Horovod reports NCCL errors without the cause, which is only in NCCL's log
        "nccl-invalid-usage",
        r"(?i:nccl).*invalid usage|invalid usage.*(?i:nccl)",
        "NCCL rejected the call, most often because two ranks use the same GPU. Give each rank its own GPU with "
        "torch.cuda.set_device(), or use a smaller -p. To see NCCL's reason in the log, set NCCL_DEBUG=WARN with env=.",
    ),
    (
        "nccl-peer-lost",
        r"ncclRemoteError|(?i:nccl).*remote process exited|remote process exited.*(?i:nccl)",
        "NCCL lost the connection to another rank. The cause is in the log of the rank that failed first.",
    ),
    (
        "no-gpu",
        r"Torch not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device|"
        r"'torch\._C' has no attribute '_cuda_",
        'This rank has no GPU that torch can use. Set device = "cuda" if torch.cuda.is_available() else "cpu", or use '
        "a compute_target with GPUs and a torch build with CUDA.",
    ),
    (
        "port-in-use",
        r"EADDRINUSE|(?i:address already in use)",
        "Another process on this host uses the port. Keep MASTER_PORT and init_method as set by the job, which found a "
        "free port, and use port 0 for your own server.",
    ),
    (
        "shared-memory-full",
        r"(?i:shared memory).*(?:No space left|insufficient)|(?:No space left|insufficient).*(?i:shared memory)",
        "The host has no shared memory left (/dev/shm). Use fewer DataLoader workers, or make /dev/shm larger.",
    ),
)
#: Code and rule, in the order in which they are tried.
RULES: tuple[tuple[str, Rule], ...] = (
    ("data-loader-worker-failed", _explain_data_loader),
    (parallel.UNUSED_CODE, parallel.explain_unused),
    ("key-missing", _explain_key),
    ("module-not-installed", _explain_module),
    ("name-not-defined", _explain_name),
    ("file-not-found", _explain_file),
    ("gpu-memory-full", _explain_gpu_memory),
    ("device-side-assert", _explain_device_assert),
    ("too-many-open-files", _explain_open_files),
    *((code, _make_text_rule(pattern, hint)) for code, pattern, hint in TEXT_RULES),
    ("layer-input-size", _explain_layer),
    ("shapes-differ", _explain_operands),
)


#: Maximum number of characters of a message and of a traceback. Longer ones lose their middle.
_MAX_MESSAGE_CHARS, _MAX_TRACEBACK_CHARS = 4_000, 24_000
#: Maximum number of values at the failing line, and of causes, which is also the maximum depth of nested causes.
_MAX_VALUES, _MAX_CAUSES = 12, 3
#: Maximum number of an error's arguments that are reported, and upper bound of a number among them.
_MAX_ARGUMENTS, _MAX_FLOAT = 20, 1e300


def describe(error: BaseException, sources: CellSources, code_folder: Path | None = None) -> dict[str, Any]:
    """Return the error as JSON data; ``code_folder`` is the folder of the modules sent with the job.

    ``{"type", "module", "name" (qualified), "args" (if they are plain), "message", "traceback" (text), "time" (epoch
    seconds of this call), "frames", "values", "values_at", "code", "hint", "causes"}``, and ``"gpu_memory"`` if a GPU
    is out of memory (``hooks.gpu_memory``). A frame is ``{"file", "line", "function", "kind", "label",
    "cell", "source"}`` with kind worker, cell, user or library. ``values_at`` is the index of the deepest frame of a
    cell, or else of the user's modules, or None. ``values`` has one [name, short text] for each name that the failing
    statement of this frame uses. If the error cannot be described, the data has only type, message, time and traceback,
    and ``"problem"`` is the internal error.
    """
    try:
        return _describe(error, FrameDescriber(sources, code_folder), 0)
    except Exception as internal_error:  # noqa: BLE001  the user's error must still be reported
        fields = {"type": type(error).__name__, "message": _format_message(error), "time": round(time.time(), 4)}
        fields |= {"traceback": "".join(traceback.format_exception_only(error)), "frames": [], "values": []}
        problem = f"{type(internal_error).__name__}: {internal_error}"
        return {**fields, "values_at": None, "hint": "", "causes": [], "problem": problem}


def _describe(error: BaseException, describer: FrameDescriber, depth: int) -> dict[str, Any]:
    frames = describer.list_frames(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename and error.lineno and describer.is_user_code(error.filename):
        # The traceback of a SyntaxError has no frame for its location.
        file, kind, cell = error.filename, describer.classify(error.filename), describer.sources.get(error.filename)
        frames.append(ErrorFrame(file, error.lineno, "<module>", kind, cell, {}, {}))
    # Users look at the notebook's line first, then at their own modules below it.
    indices = [n for n, frame in enumerate(frames) if frame.kind in ("cell", "user")]
    order = sorted(indices, key=lambda n: (frames[n].kind == "cell", n), reverse=True)
    views = [View(frames[n]) for n in order[:8]]
    # The message of an error of this package already contains the fix.
    code, hint = getattr(error, "code", ""), ""
    if type(code) is not str or not code or not type(error).__module__.startswith("distdl_jupyter."):
        code, hint = find_hint(error, views)
    memory: dict[str, Any] = {}
    if code == "gpu-memory-full":
        with contextlib.suppress(Exception):  # without this data, the error has the generic hint
            memory = {"gpu_memory": gpu_memory.collect(error, describer.locate_first)}
            hint = gpu_memory.explain(memory["gpu_memory"], os.environ.get("DISTDL_JOB_ID", "").rpartition("-")[2])
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    causes: Sequence[BaseException] = () if cause is None or cause is error else (cause,)
    if isinstance(error, BaseExceptionGroup):
        causes = error.exceptions
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "name": type(error).__qualname__,
        **_collect_arguments(error),
        "message": _format_message(error),
        "traceback": _format_traceback(error, describer),
        "time": round(time.time(), 4),
        "frames": [
            {
                "file": frame.file,
                "line": frame.notebook_line,
                "function": frame.function,
                "kind": frame.kind,
                "label": describer.get_label(frame.file),
                "cell": frame.cell.number if frame.cell else None,
                "source": [] if frame.kind in ("worker", "library") else describer.read_lines(frame),
            }
            for frame in frames
        ],
        "values": [
            [name, _format_value(name, value)]
            for name, value in (views[0].list_values() if views else [])[:_MAX_VALUES]
        ],
        "values_at": order[0] if order else None,
        "code": code,
        "hint": secret_patterns.redact(hint),
        **memory,
        "causes": [_describe(cause, describer, depth + 1) for cause in causes[:_MAX_CAUSES] if depth < _MAX_CAUSES],
    }


def _format_message(error: BaseException) -> str:
    message = ""
    with contextlib.suppress(Exception):  # a user-defined __str__ can raise anything
        message = str(error)
    return _redact(message, _MAX_MESSAGE_CHARS)


def _collect_arguments(error: BaseException) -> dict[str, Any]:
    """Return ``{"args": [...]}`` if all arguments are plain data, else {}."""
    arguments = error.args
    if isinstance(error, OSError) and len(arguments) == 2 and error.filename is not None:
        arguments = (*arguments, error.filename)
    is_plain = all(value is None or type(value) in (bool, int, float, str) for value in arguments)
    is_finite = all(abs(value) < _MAX_FLOAT for value in arguments if type(value) in (int, float))  # JSON has no nan
    if not is_plain or not is_finite or len(arguments) > _MAX_ARGUMENTS:
        return {}
    return {"args": [_redact(value, _MAX_MESSAGE_CHARS) if type(value) is str else value for value in arguments]}


def _format_value(name: str, value: Any) -> str:
    if secret_patterns.looks_secret(name.rpartition(".")[2]) and not callable(value):
        return secret_patterns.MASK
    return secret_patterns.redact(values.describe(value))


def _redact(text: str, max_length: int) -> str:
    """Redact the secrets in the text, and omit its middle if it is longer than ``max_length``."""
    text, half = secret_patterns.redact(text), max_length // 2
    if len(text) <= max_length:
        return text
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters omitted]\n{text[-half:]}"


def _format_traceback(error: BaseException, describer: FrameDescriber) -> str:
    """Return the traceback in Python's format, with the notebook's cells and lines and without the worker's frames."""
    root = traceback.TracebackException.from_exception(error, lookup_lines=False, compact=True)
    pending, visited = [root], set()
    while pending:
        part = pending.pop()
        if id(part) in visited:
            continue
        visited.add(id(part))
        frames = [frame for frame in part.stack if not frame.filename.startswith((WORKER_FOLDER, "<frozen runpy"))]
        part.stack = traceback.StackSummary.from_list(frames)
        for frame in frames:
            if (shift := _add_labeled_source(frame.filename, describer)) is not None:
                frame.filename = describer.get_label(frame.filename)
                frame.lineno = (frame.lineno or 0) + shift
                frame.end_lineno = None if frame.end_lineno is None else frame.end_lineno + shift
        filename = getattr(part, "filename", None)  # only a SyntaxError has one
        if filename and (shift := _add_labeled_source(filename, describer)) is not None:
            part.filename = describer.get_label(filename)
            part.lineno = str(int(part.lineno or 0) + shift)
        pending.extend(p for p in (part.__cause__, part.__context__, *(part.exceptions or ())) if p is not None)
    return _redact("".join(root.format()), _MAX_TRACEBACK_CHARS)


def _add_labeled_source(filename: str, describer: FrameDescriber) -> int | None:
    """Add a cell or a module of the job to ``linecache`` under its label. Return the offset of its lines, or None."""
    cell = describer.sources.get(filename)
    if cell is None and not (describer.code_folder and filename.startswith(describer.code_folder)):
        return None
    shift = cell.shift if cell else 0
    add_to_linecache(describer.get_label(filename), "\n" * shift + "".join(linecache.getlines(filename)))
    return shift
