"""What a form is about, a function with its arguments or the text of a cell, and what is known of it before it runs.

Numbers of the training count only when they are really there: as an argument, a default, a closure's or a notebook's
variable, or set once in the cell.
"""

from __future__ import annotations

import ast
import inspect
import math
import os
import re
import textwrap
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.source import parsed
from distdl_jupyter.form import magic
from distdl_jupyter.form.magic import CellText, joined
from distdl_jupyter.preflight import Request

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.core.space import Space
    from distdl_jupyter.core.spec import Source


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of the code: the captured draft or why there is none, and the training.

    Without both nothing is known of the names that will be sent. ``function`` is its name ("" for a cell), ``cell`` the
    execution count of the cell that it comes from, ``file`` the name of its file.
    """

    training: Request
    function: str = ""
    cell: int | None = None
    file: str = ""
    draft: CapturedCode | None = None
    error: DistDLError | None = None

    @property
    def name(self) -> str:
        """The job's name when the user gives none."""
        return self.draft.name if self.draft else self.training.name

    @property
    def working_directory(self) -> str:
        """The folder that the job will work in, "" when unknown."""
        return str(self.draft.payload_json.get("working_directory") or "") if self.draft else ""

    @property
    def known(self) -> bool:
        """Whether it is known what is sent, or why nothing can be."""
        return self.draft is not None or self.error is not None


@dataclass(kw_only=True)
class Target:
    """A ``function`` with its arguments, or else the ``text`` of a cell.

    ``namespace`` holds the notebook's names, None when they are not available now. ``seen`` remembers what is known for
    the last ``key``: large values are not pickled for each click.
    """

    function: Callable[..., Any] | None = None
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    #: Values of the parameters of a sweep, as a trial may have them.
    sampled: Mapping[str, Any] = field(default_factory=dict)
    text: CellText = magic.NO_CELL
    namespace: Mapping[str, Any] | None = None
    notebook: str = ""
    cell_id: str = ""
    execution_count: int | None = None
    unnamed: str = "cell"
    seen: dict[Hashable, Look] = field(default_factory=dict)
    key: Hashable = ""

    def look(self) -> Look:
        """Return what is known of the code, captured as a job would capture it."""
        if self.key not in self.seen:
            look = self._cell() if self.function is None else self._function(self.function)
            self.seen.clear()
            self.seen[self.key] = look
        return self.seen[self.key]

    def cell(self, magic_line: str) -> str:
        """Return the text of a cell that runs it under this magic line."""
        if self.function is None:
            return joined(magic_line, self.text.body)
        return magic.cell(magic_line, _name_of(self.function), self.args, self.kwargs)

    def sweep(self, parameters: Space, plan: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the call of ``sweep`` for a function, and the cell with it; None for a cell, which has ``%%sweep``."""
        if self.function is None:
            return None
        fixed = {name: value for name, value in self.kwargs.items() if name not in parameters}
        return magic.sweep(_name_of(self.function), self.args, fixed, parameters, plan, options)

    def pass_rates(self, rates: Mapping[str, Any]) -> None:
        """Call the function with these keyword arguments too."""
        self.kwargs.update(rates)
        self.seen.clear()

    def _function(self, function: Callable[..., Any]) -> Look:
        from distdl_jupyter.capture import capture_function

        kwargs, draft, error = {**self.kwargs, **self.sampled}, None, None
        try:
            draft = capture_function(function, tuple(self.args), kwargs, announce=False)
        except DistDLError as refused:
            error = refused
        code, numbers = (draft.source.code, draft.numbers) if draft else ("", None)
        training = inspect_training(function, self.args, kwargs, code=code, numbers=numbers)
        return Look(training, training.name, *(_written_in(draft.source) if draft else (None, "")), draft, error)

    def _cell(self) -> Look:
        """Capture the cell; the values of the names are pickled once for their sizes and not kept."""
        draft, error = self._capture()
        body = self.text.body
        more = "\n".join(text.text for text in draft.texts if text.text != body) if draft else ""
        name = Path(self.notebook).stem[:100] or self.unnamed
        training = inspect_cell(body, name=name, more=more, numbers=draft.numbers if draft else None)
        kept = None if draft is None else replace(draft, name=name, payload=None)
        return Look(training, "", self.execution_count, "", kept, error)

    def _capture(self) -> tuple[CapturedCode | None, DistDLError | None]:
        from distdl_jupyter import capture
        from distdl_jupyter.capture.cell import plain_python

        try:
            self._refuse()
            if self.namespace is None:
                plain_python(self.text.body, first_line=self.text.first_line)
                return None, None
            draft = capture.capture_cell(
                self.text.body,
                self.namespace,
                cell_id=self.cell_id,
                execution_count=self.execution_count,
                notebook=self.notebook,
                first_line=self.text.first_line,
                announce=False,
            )
        except DistDLError as error:
            return None, error
        except SyntaxError as error:
            return None, InvalidSpec(
                f"Line {error.lineno} of the cell is not valid Python: {error.msg}.",
                code="form-cell-syntax",
                field="cell",
            )
        except (ValueError, RecursionError, MemoryError) as error:
            return None, InvalidSpec(
                f"The cell cannot be parsed as Python: {error}.", code="cell-unreadable", field="cell"
            )
        return draft, None

    def _refuse(self) -> None:
        if magic_word := self.text.foreign:
            raise InvalidSpec(
                f"The cell begins with {magic_word}, and a cell can have only one cell magic.",
                code="second-cell-magic",
                field="cell",
                hint=f"Remove {magic_word} or choose another cell.",
            )
        if not self.text.body.strip():
            raise InvalidSpec(
                "The cell is empty.", code="cell-empty", field="cell", hint="Choose a cell with training code."
            )


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _written_in(source: Source) -> tuple[int | None, str]:
    """Return where a function was written: its cell's execution count, or its file's name ("" when not known)."""
    if source.execution_count is not None:
        return source.execution_count, ""
    name = os.path.basename(source.filename)  # noqa: PTH119 - pseudo names such as <stdin> are not paths
    return None, "" if name.startswith("<") else name


# the training -----------------------------------------------------------------------------------------

BATCH_NAMES = ("batch_size", "batch", "train_batch_size", "per_device_batch_size")
RATE_NAMES = ("lr", "learning_rate", "base_lr")
_WORLD = r"(?:\w+\.)?(?:size|get_world_size|num_replicas|world_size|WORLD_SIZE)\b"
_SCALES = re.compile(
    rf"(?:{'|'.join(RATE_NAMES)})\w*\s*\*=?\s*{_WORLD}|{_WORLD}(?:\(\))?\s*\*\s*(?:{'|'.join(RATE_NAMES)})"
)


def wanted_backend(code: str) -> str:
    """Return the backend that some source names ("horovod", "torch", "tensorflow"), "" when it names none.

    Where it names several, the default one comes last: many libraries are built on it.
    """
    names = [one.name for one in registry.backends() if one.usage.words and re.search(one.usage.words, code)]
    return min(names, key=lambda name: name == registry.DEFAULT, default="")


def inspect_training(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    code: str = "",
    numbers: Mapping[str, float] | None = None,
) -> Request:
    """Return what is known; ``code`` and ``numbers`` (captured with it, by name) when the caller has them already."""
    arguments = _arguments(function, args, kwargs)
    return _training(_name_of(function), code or source_of(function), {**(numbers or {}), **arguments}, arguments)


def inspect_cell(code: str, *, name: str, more: str = "", numbers: Mapping[str, float] | None = None) -> Request:
    """Return what is known of a cell's code; ``more`` is the source of what it calls, ``numbers`` travel with it."""
    return _training(name, f"{code}\n{more}", {**(numbers or {}), **_assigned_numbers(code)})


def _training(name: str, code: str, known: Mapping[str, Any], arguments: Collection[str] = ()) -> Request:
    _, batch = _first_number(known, BATCH_NAMES)
    rate_name, rate = _first_number(known, RATE_NAMES)
    return Request(
        name=name,
        code=code,
        batch_size=batch,
        learning_rate=rate,
        learning_rate_name=rate_name or "lr",
        learning_rate_is_argument=rate_name in arguments,
        scales_learning_rate=_SCALES.search(code) is not None,
    )


def _assigned_numbers(code: str) -> dict[str, float]:
    """Return the values of names that the code sets exactly once, to a number; none if it is not valid Python."""
    nodes = list(ast.walk(parsed(code) or ast.Module([], [])))
    stores = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    found: dict[str, float] = {}
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
            continue
        value = node.value.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.update({t.id: value for t in node.targets if isinstance(t, ast.Name) and stores.count(t.id) == 1})
    return found


def source_of(function: Callable[..., Any]) -> str:
    """Return a function's source, "" when it cannot be had (a built-in, a class instance)."""
    try:
        return textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError):
        return ""


def _arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        bound = inspect.signature(function).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return dict(kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _first_number(known: Mapping[str, Any], names: Sequence[str]) -> tuple[str, float | None]:
    for name in names:
        value = known.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
            return name, value
    return "", None
