"""What a form is about: a function with its arguments, or the text of a cell. Neither knows the form's fields."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.form import checks, code, magic
from distdl_jupyter.form import shown as wording
from distdl_jupyter.form.celltext import CellText, joined
from distdl_jupyter.form.code import Training

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.core.space import Space

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the code told: the captured draft or why there is none, and what is known of the training.

    Without both nothing is known of the names that will travel. ``function`` is its name ("" for a cell), ``cell`` the
    execution count of the cell that it comes from, ``file`` the name of its file.
    """

    training: Training
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
        """The folder that the job will work in, "" when it is not known."""
        return str(self.draft.payload_json.get("working_directory") or "") if self.draft else ""

    @property
    def known(self) -> bool:
        """Whether it is known what travels, or why nothing can."""
        return self.draft is not None or self.error is not None


class Subject(Protocol):
    """What is to run on every rank."""

    def look(self) -> Look:
        """Look at the code, and capture it as a job would."""

    def cell(self, magic_line: str) -> str:
        """Return the text of a cell that runs it under this magic line."""

    def sweep(self, parameters: Space, plan: Options, options: Options) -> tuple[str, str] | None:
        """Return the call of ``sweep`` for it, and the cell with that; None where a magic line does the same."""

    def pass_rates(self, rates: Mapping[str, Any]) -> None:
        """Take new values of arguments; what has none ignores them."""


class FunctionSubject:
    """A function with the arguments that it will be called with."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, tuple(args), dict(kwargs)
        #: Values of the parameters of a sweep, as a trial may have them.
        self.sampled: Mapping[str, Any] = {}

    def look(self) -> Look:
        """Look at the function."""
        kwargs = {**self.kwargs, **self.sampled}
        draft, error = checks.capture(self.function, self.args, kwargs)
        training = code.inspect_training(
            self.function, self.args, kwargs,
            code=draft.source.code if draft else "", numbers=draft.numbers if draft else None,
        )  # fmt: skip
        return Look(training, training.name, *(wording.place(draft.source) if draft else (None, "")), draft, error)

    def cell(self, magic_line: str) -> str:
        """Return the cell that calls the function by its name."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return magic.cell(magic_line, name, self.args, self.kwargs)

    def sweep(self, parameters: Space, plan: Options, options: Options) -> tuple[str, str]:
        """Return the call of ``sweep``."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        fixed = {name: value for name, value in self.kwargs.items() if name not in parameters}
        return magic.sweep(name, self.args, fixed, parameters, plan, options)

    def pass_rates(self, rates: Mapping[str, Any]) -> None:
        """Call the function with these keyword arguments too."""
        self.kwargs.update(rates)


class CellSubject:
    """The text of a cell. ``namespace`` holds the notebook's names, None when they cannot be asked now."""

    def __init__(
        self,
        text: CellText,
        namespace: Mapping[str, Any] | None,
        *,
        notebook: str = "",
        cell_id: str = "",
        execution_count: int | None = None,
        unnamed: str = "cell",
    ) -> None:
        self._unnamed = unnamed
        self.text, self._namespace = text, namespace
        self._notebook, self._cell_id, self._count = notebook, cell_id, execution_count

    def look(self) -> Look:
        """Look at the code; the values of the names are pickled once for their sizes and not kept."""
        draft, error = self._capture()
        body = self.text.body
        more = "\n".join(text.text for text in draft.texts if text.text != body) if draft else ""
        name = Path(self._notebook).stem[:100] or self._unnamed
        training = code.inspect_cell(body, name=name, more=more, numbers=draft.numbers if draft else None)
        kept = None if draft is None else replace(draft, name=name, payload=None)
        return Look(training, "", self._count, "", kept, error)

    def _capture(self) -> tuple[CapturedCode | None, DistDLError | None]:
        from distdl_jupyter import capture
        from distdl_jupyter.capture.cell import plain_python

        try:
            self._refuse()
            if self._namespace is None:
                plain_python(self.text.body, first_line=self.text.first_line)
                return None, None
            draft = capture.capture_cell(
                self.text.body,
                self._namespace,
                cell_id=self._cell_id,
                execution_count=self._count,
                notebook=self._notebook,
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

    def cell(self, magic_line: str) -> str:
        """Return the cell's own text with this line on top."""
        return joined(magic_line, self.text.body)

    def sweep(self, _parameters: Space, _plan: Options, _options: Options) -> None:
        """Nothing: the line ``%%sweep`` does."""

    def pass_rates(self, rates: Mapping[str, Any]) -> None:
        """Nothing: a cell has no arguments."""


class CachedSubject:
    """A subject that is looked at once as long as ``key`` stays the same: large values are not pickled for each click.

    ``looks`` is the memory, with one place.
    """

    def __init__(self, subject: Subject, looks: dict[Hashable, Look], key: Hashable) -> None:
        self._subject, self._looks, self._key = subject, looks, key

    def look(self) -> Look:
        """Return what the last look told, or look."""
        if self._key not in self._looks:
            found = self._subject.look()
            self._looks.clear()
            self._looks[self._key] = found
        return self._looks[self._key]

    def cell(self, magic_line: str) -> str:
        """Return the subject's cell."""
        return self._subject.cell(magic_line)

    def sweep(self, parameters: Space, plan: Options, options: Options) -> tuple[str, str] | None:
        """Return the subject's call."""
        return self._subject.sweep(parameters, plan, options)

    def pass_rates(self, rates: Mapping[str, Any]) -> None:
        """Let the subject take them, and look again."""
        self._subject.pass_rates(rates)
        self._looks.clear()
