"""One question of a page, one answer: the whole form worked out from a cell's text and what the page has chosen.

No state is kept between questions, so kernel, server and the Python of a kernel answer alike. What belongs to one
environment (backends, GPUs, the notebook's names) is that of the process that answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import traitlets

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.options import MOST_RESTARTS
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.form import arguments, magic
from distdl_jupyter.form import defaults as presets
from distdl_jupyter.form.celltext import MAGICS, CellText, split
from distdl_jupyter.form.defaults import Defaults
from distdl_jupyter.form.model import FormModel
from distdl_jupyter.form.subject import CellSubject, Look, Remembered, Subject
from distdl_jupyter.views.to_json import to_json


@dataclass(frozen=True, slots=True)
class Question:
    """What a page knows: the cell's whole text, where it stands, and what was chosen so far (None at first).

    ``environment`` are all variables in order; a value of None stands for a secret that the page keeps or that the
    kernel has. ``apply`` is the code of an advice to follow. ``own`` says that the text is all there is: no notebook
    has names for it. ``again`` asks for a new look at the names even if nothing was run since. ``directory`` is
    the folder that local paths begin in, "" for the one where who answers works.
    """

    code: str
    notebook: str = ""
    cell_id: str = ""
    execution_count: int | None = None
    fields: Mapping[str, Any] | None = None
    environment: Sequence[Mapping[str, Any]] | None = None
    apply: str = ""
    own: bool = False
    again: bool = False
    directory: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """What the magic line of a cell says: options with a field, words without one, and what cannot be read."""

    given: Defaults
    kept: tuple[str, ...] = ()
    variable: str = "job"
    problem: DistDLError | None = None


@dataclass(slots=True)
class Kernel:
    """What a kernel adds to a question: its names, its defaults of ``%dist_config``, and the magic that is free.

    ``count`` is how many cells it has run, and ``looks`` the memory of the last look between two questions.
    """

    namespace: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    magic: str = MAGICS[0]
    count: int = 0
    looks: dict[Hashable, Look] = field(default_factory=dict)


class PageForm(FormModel):
    """The form of a cell on a page that asks and is answered."""

    def __init__(self, subject: Subject, line: Line, word: str, directory: str = "") -> None:
        self.directory = directory
        self.magic_word, self.variable, self.kept = word, line.variable, line.kept
        super().__init__(subject, line.given)

    def take(self, fields: Mapping[str, Any]) -> dict[str, str]:
        """Set what the page has chosen and return, by field, why a value was not taken."""
        problems = {}
        with self._silence():
            for name in self.chosen():
                try:
                    if name in fields:
                        setattr(self, name, fields[name])
                except traitlets.TraitError:
                    problems[name] = _allowed(name)
            self._follow_gpus()
        self.recompute()
        return problems


def _allowed(name: str) -> str:
    if name == "max_restarts":
        return f"It takes a whole number from 0 to {MOST_RESTARTS:,}."
    count = name in ("node_count", "process_count_per_node")
    return "It takes a whole number from 1 to 10,000." if count else "This value is not allowed here."


def answer(question: Question, kernel: Kernel | None = None) -> dict[str, Any]:
    """Return every field of the form (those of ``FormModel``), and ``code`` and ``options`` for a submit."""
    text = split(question.code)
    line = read_line(text, kernel.defaults if kernel else {})
    form = PageForm(_subject(question, text, kernel), line, _word(text, kernel), question.directory)
    if question.environment is not None:
        form.set_environment(question.environment)
    problems = form.take(question.fields) if question.fields is not None else {}
    if question.apply:
        form.apply(question.apply)
    if question.again:
        form.look(fresh=True)
    shown = {name: getattr(form, name) for name in form.trait_names(sync=True)}
    if line.problem:
        problems["line"] = f"{line.problem} Submit replaces the line."
    more = {"problems": {**form.problems, **problems}, "options": _options(form), "code": text.body}
    return {name: to_json(value) for name, value in {**shown, **more}.items()}


def _subject(question: Question, text: CellText, kernel: Kernel | None) -> Subject:
    nobody: dict[str, Any] | None = {} if question.own else None
    subject = CellSubject(
        text,
        kernel.namespace if kernel else nobody,
        notebook=question.notebook,
        cell_id=question.cell_id,
        execution_count=question.execution_count,
        unnamed="job" if question.own else "cell",
    )
    if kernel is None:
        return subject
    if question.again:
        kernel.looks.clear()
    return Remembered(subject, kernel.looks, (text.body, kernel.count, question.cell_id))


def _word(text: CellText, kernel: Kernel | None) -> str:
    """Return the magic to write: that of the cell, unless it belongs to somebody else in this kernel."""
    free = kernel.magic if kernel else MAGICS[0]
    return text.magic if text.ours and free == MAGICS[0] else free


def read_line(text: CellText, defaults: Mapping[str, Any]) -> Line:
    """Return what the cell's own magic line asks for, read as the magic reads it; a wrong line is a problem, no error.

    ``defaults`` are those of the kernel.
    """
    try:
        if not text.ours:
            return Line(presets.read(arguments.job_options(argparse.Namespace(), defaults)))
        chosen = arguments.cell_parser(text.magic.lstrip("%")).parse(text.line)
        options = arguments.job_options(chosen, defaults, value=_unknown)
        given = {name: value for name, value in options.items() if name in presets.names()}
        rest = {name: value for name, value in options.items() if name not in given}
        return Line(presets.read(given), tuple(_words(rest, chosen)), getattr(chosen, "out", ""))
    except DistDLError as error:
        return Line(Defaults(), problem=error)


def _unknown(_: str) -> str:
    """Answer for a variable that the kernel has: its value is of no use to a form."""
    return ""


def _words(rest: Mapping[str, Any], chosen: argparse.Namespace) -> list[str]:
    own = {name: value for name, value in vars(chosen).items() if name in ("wait", "panel")}
    return [word for name, value in {**rest, **own}.items() for word in magic.flag_words(name, value)]


def _options(form: FormModel) -> dict[str, Any]:
    """Return what a submit of this text takes; the values of secrets are added by who knows them."""
    options = {name: value for name, value in form.options().items() if value is not None}
    variables = options.pop("environment_variables", {})
    shown = {name: value for name, value in variables.items() if not is_secret(name, value)}
    return {**options, **({"environment_variables": shown} if shown else {})}
