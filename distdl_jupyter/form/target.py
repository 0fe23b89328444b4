"""The code that a form submits (a function with arguments, or the text of a cell) and its static analysis.

A number of the training is used only if it is certain: an argument, a default, a variable of a closure or the notebook,
or a name that the cell sets exactly once.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distdl_jupyter.capture import CapturedCode, capture_cell, capture_function
from distdl_jupyter.capture.cell import check_plain_python
from distdl_jupyter.core import registry, space
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.source import try_parse
from distdl_jupyter.core.spec import CodeSource
from distdl_jupyter.form import line
from distdl_jupyter.form.line import MAGICS, CellText, MagicLine
from distdl_jupyter.form.schema import FormRequest, FormTitle
from distdl_jupyter.preflight import Request


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """The analysis of the code: the training, and the captured draft or the error.

    Both are None if the notebook's variables are not available.
    """

    training: Request
    title: FormTitle
    draft: CapturedCode | None = None
    error: DistDLError | None = None

    @property
    def name(self) -> str:
        """The default name of the job."""
        return self.draft.name if self.draft else self.training.name


@dataclass(slots=True)
class KernelContext:
    """The context of a kernel: its variables, its defaults of ``%dist_config``, and the available magic.

    ``namespace`` is None if the variables are not available now, and ``cell_count`` is the number of executed cells.
    ``cache`` has the analysis of the last cell, so that large values are not pickled again for each click.
    """

    namespace: Mapping[str, Any] | None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    magic: str = MAGICS[0]
    cell_count: int = 0
    cache: dict[Hashable, CodeInfo] = field(default_factory=dict)


@dataclass(kw_only=True)
class Target:
    """The code that a form submits: a ``function`` with its arguments, or if it is None, the ``text`` of a cell.

    ``line`` has the initial values of the form, ``magic`` is the cell magic to write, and ``search_space`` is that of
    a sweep, as typed. ``request`` identifies the cell.
    """

    line: MagicLine
    magic: str = MAGICS[0]
    search_space: str = ""
    function: Callable[..., Any] | None = None
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    text: CellText = field(default_factory=CellText)
    request: FormRequest = field(default_factory=FormRequest)
    kernel: KernelContext = field(default_factory=lambda: KernelContext(None))

    def inspect(self) -> CodeInfo:
        """Analyze the code, captured as for a job."""
        cache = self.kernel.cache
        key = self.text.body, self.kernel.cell_count, self.request.cell_id, self.search_space
        if key not in cache:
            info = self._inspect_cell() if self.function is None else self._inspect_function(self.function)
            cache.clear()
            cache[key] = info
        return cache[key]

    def format_cell(self, magic_line: str) -> str:
        """Return the text of a cell that runs the code under this magic line."""
        if self.function is None:
            return f"{magic_line}\n{self.text.body}"
        parameters = space.get_first_values(self.search_space)
        return line.format_cell(magic_line, _get_function_name(self.function), self.args, self.kwargs, parameters)

    def _inspect_function(self, function: Callable[..., Any]) -> CodeInfo:
        name, draft, error = _get_function_name(function), None, None
        kwargs = {**self.kwargs, **space.get_first_values(self.search_space)}
        try:
            draft = capture_function(function, tuple(self.args), kwargs)
        except DistDLError as capture_error:
            error = capture_error
        source, numbers = (draft.source, draft.numbers) if draft else (CodeSource(), {})
        training = inspect_training(function, self.args, self.kwargs, code=source.code, numbers=numbers)
        # A function from a cell or a prompt has a file name such as <stdin>.
        file = "" if source.execution_count is not None or source.filename.startswith("<") else source.filename
        return CodeInfo(training, FormTitle(name, source.execution_count, Path(file).name), draft, error)

    def _inspect_cell(self) -> CodeInfo:
        """Capture the cell; the variables are pickled once to measure their sizes, and then discarded."""
        body, draft, error = self.text.body, None, None
        try:
            draft = self._capture(body)
        except DistDLError as capture_error:
            error = capture_error
        except (SyntaxError, ValueError, RecursionError, MemoryError) as cause:
            location = f"Line {cause.lineno} of the cell" if isinstance(cause, SyntaxError) else "The cell"
            reason = getattr(cause, "msg", cause)
            error = InvalidSpec(f"{location} is not valid Python: {reason}.", code="cell-syntax", field="cell")
        name = Path(self.request.notebook).stem[:100] or ("job" if self.request.standalone else "cell")
        other_code = "\n".join(text.text for text in draft.texts if text.text != body) if draft else ""
        numbers = {**(draft.numbers if draft else {}), **_find_assigned_numbers(body)}
        training = _create_request(name, f"{body}\n{other_code}", numbers)
        draft = draft and replace(draft, name=name, payload=None)
        return CodeInfo(training, FormTitle("", self.request.execution_count, ""), draft, error)

    def _capture(self, body: str) -> CapturedCode | None:
        if self.text.magic and not self.text.is_job:
            raise InvalidSpec(
                f"The cell begins with {self.text.magic}, and a cell can have only one cell magic.",
                code="second-cell-magic",
                field="cell",
                hint=f"Remove {self.text.magic} or choose another cell.",
            )
        if not body.strip():
            raise InvalidSpec(
                "The cell is empty.", code="cell-empty", field="cell", hint="Choose a cell with training code."
            )
        if self.kernel.namespace is None:
            check_plain_python(body, first_line=self.text.first_line)
            return None
        return capture_cell(
            body,
            {**self.kernel.namespace, **space.get_first_values(self.search_space)},
            cell_id=self.request.cell_id,
            execution_count=self.request.execution_count,
            notebook=self.request.notebook,
            first_line=self.text.first_line,
        )


def _get_function_name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


# the training -----------------------------------------------------------------------------------------

# Usual names of the batch size and the learning rate, the most common first.
BATCH_NAMES = ("batch_size", "batch", "train_batch_size", "per_device_batch_size")
RATE_NAMES = ("lr", "learning_rate", "base_lr")
#: An expression for the number of ranks.
_WORLD_SIZE = r"(?:\w+\.)?(?:size|get_world_size|num_replicas|world_size|WORLD_SIZE)\b"
#: A learning rate that is multiplied by the number of ranks.
_SCALED_RATE = re.compile(
    rf"(?:{'|'.join(RATE_NAMES)})\w*\s*\*=?\s*{_WORLD_SIZE}|{_WORLD_SIZE}(?:\(\))?\s*\*\s*(?:{'|'.join(RATE_NAMES)})"
)


def detect_backend(code: str) -> str:
    """Return the backend that source code uses ("horovod", "torch" or "tensorflow"), or "" if it uses none.

    If it uses several, the default backend has the lowest priority, because many libraries use it.
    """
    backends = registry.load_backends()
    names = [plugin.name for plugin in backends if plugin.usage.pattern and re.search(plugin.usage.pattern, code)]
    return min(names, key=lambda name: name == registry.DEFAULT_BACKEND, default="")


def inspect_training(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    code: str = "",
    numbers: Mapping[str, float] | None = None,
) -> Request:
    """Analyze the training of a function with the source ``code``; ``numbers`` are the captured numbers by name."""
    try:
        bound = inspect.signature(function).bind_partial(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
    except (TypeError, ValueError):
        arguments = dict(kwargs)
    training = _create_request(_get_function_name(function), code, {**(numbers or {}), **arguments})
    is_argument = training.learning_rate is not None and training.learning_rate_name in arguments
    return replace(training, learning_rate_is_argument=is_argument)


def _create_request(name: str, code: str, values: Mapping[str, Any]) -> Request:
    batch_name, rate_name = _find_number_name(values, BATCH_NAMES), _find_number_name(values, RATE_NAMES)
    return Request(
        name=name,
        code=code,
        batch_size=values.get(batch_name),
        learning_rate=values.get(rate_name),
        learning_rate_name=rate_name or "lr",
        scales_learning_rate=_SCALED_RATE.search(code) is not None,
    )


def _find_number_name(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the first of the names whose value is a positive number, or "" if there is none."""
    for name in names:
        value = values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
            return name
    return ""


def _find_assigned_numbers(code: str) -> dict[str, float]:
    """Return the names that the code sets exactly once, to a number, or {} if the code is not valid Python."""
    nodes = list(ast.walk(try_parse(code) or ast.Module([], [])))
    stores = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    numbers: dict[str, float] = {}
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        value = node.value.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers.update({t.id: value for t in node.targets if isinstance(t, ast.Name) and stores.count(t.id) == 1})
    return numbers
