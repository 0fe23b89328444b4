"""The form of a cell's text, as the process works it out that will run the cell or stands for it.

No state is kept between requests, so kernel, server and the Python of a kernel answer alike. What belongs to one
environment (backends, GPUs, the notebook's names) is that of the process that answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter.core import space
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.form import arguments, magic
from distdl_jupyter.form import defaults as presets
from distdl_jupyter.form.celltext import MAGICS, SWEEP, CellText, split
from distdl_jupyter.form.defaults import Defaults
from distdl_jupyter.form.schema import FormRequest, FormState
from distdl_jupyter.form.state import CLUSTER_TIMEOUT, Form, state
from distdl_jupyter.form.subject import CachedSubject, CellSubject, Look, Subject


@dataclass(frozen=True, slots=True)
class Line:
    """What the magic line of a cell says: options with a field, words without one, and what cannot be read.

    ``own`` are words without a field that only this magic takes.
    """

    given: Defaults
    kept: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    variable: str = "job"
    problem: DistDLError | None = None


@dataclass(slots=True)
class KernelContext:
    """What a kernel adds to a request: its names, its defaults of ``%dist_config``, and the magic that is free.

    ``count`` is how many cells it has run, and ``looks`` the memory of the last look between two requests.
    """

    namespace: Mapping[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    magic: str = MAGICS[0]
    count: int = 0
    looks: dict[Hashable, Look] = field(default_factory=dict)


def cell_state(
    request: FormRequest, kernel: KernelContext | None = None, directory: str = "", timeout: float = CLUSTER_TIMEOUT
) -> FormState:
    """Return the form of a text. ``directory`` is the folder that local paths begin in, "" for this process's own."""
    text = split(request.code)
    line = read_line(text, kernel.defaults if kernel else {})
    varied = request.chosen.sweep if request.chosen else line.given.chosen.get("sweep", "")
    form = Form(
        subject=_subject(request, text, kernel, varied),
        given=line.given,
        magic=_word(text, kernel),
        variable=line.variable,
        kept=line.kept,
        own={text.magic == SWEEP: line.own},
        problem=line.problem,
        code=text.body,
        directory=directory,
        timeout=timeout,
    )
    return state(form, request)


def _subject(request: FormRequest, text: CellText, kernel: KernelContext | None, varied: str) -> Subject:
    values = space.sampled(varied)
    subject = CellSubject(
        text,
        {**kernel.namespace, **values} if kernel else values if request.own else None,
        notebook=request.notebook,
        cell_id=request.cell_id,
        execution_count=request.execution_count,
        unnamed="job" if request.own else "cell",
    )
    if kernel is None:
        return subject
    if request.again:
        kernel.looks.clear()
    return CachedSubject(subject, kernel.looks, (text.body, kernel.count, request.cell_id, varied))


def _word(text: CellText, kernel: KernelContext | None) -> str:
    """Return the magic to write: that of the cell, unless it belongs to somebody else in this kernel."""
    free = kernel.magic if kernel else MAGICS[0]
    return text.magic if text.magic in MAGICS and free == MAGICS[0] else free


def read_line(text: CellText, defaults: Mapping[str, Any]) -> Line:
    """Return what the cell's own magic line asks for, read as the magic reads it; a wrong line is a problem, no error.

    ``defaults`` are those of the kernel.
    """
    try:
        if not text.ours:
            return Line(presets.read(arguments.job_options(argparse.Namespace(), defaults)))
        if text.magic == SWEEP:
            return _read_sweep(text.line, defaults)
        chosen = arguments.cell_parser(text.magic.lstrip("%")).parse(text.line)
        given, rest = _parted(arguments.job_options(chosen, defaults, value=_unknown))
        kept, own = _words(rest, chosen, "wait"), _words({}, chosen, "panel")
        return Line(presets.read(given), kept, own, getattr(chosen, "out", ""))
    except DistDLError as error:
        return Line(Defaults(), problem=error)


def _read_sweep(line: str, defaults: Mapping[str, Any]) -> Line:
    _, rest = space.of_line(line)
    chosen = arguments.sweep_parser().parse(rest)
    given, others = _parted(arguments.job_options(chosen, defaults, value=_unknown))
    shown = {name: getattr(chosen, name) for name in ("trials", "metric", "parallel") if hasattr(chosen, name)}
    own = _words({}, chosen, *(name for name in arguments.SWEEP if name not in shown))
    read = presets.read(given)
    varied = Defaults({**read.chosen, "sweep": line.removesuffix(rest).strip(), **shown}, read.environment_variables)
    return Line(varied, _words(others, chosen, "wait"), own, getattr(chosen, "out", ""))


def _parted(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that have a field, and the others."""
    given = {name: value for name, value in options.items() if name in presets.names()}
    return given, {name: value for name, value in options.items() if name not in given}


def _unknown(_: str) -> str:
    """Answer for a variable that the kernel has: its value is of no use to a form."""
    return ""


def _words(rest: Mapping[str, Any], chosen: argparse.Namespace, *names: str) -> tuple[str, ...]:
    own = {name: value for name, value in vars(chosen).items() if name in names}
    return tuple(word for name, value in {**rest, **own}.items() for word in magic.flag_words(name, value))
