"""Parse the magic line of a cell, and write the cell that is equivalent to a form.

The cell's text is authoritative: the form reads its line and writes it back, but never changes the code below. Secrets
are written by name only, and values that do not fit into one line are omitted.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter.core import space
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.options import DEFAULTS, OPTIONS, list_flags
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.form import arguments, values

#: The magics that run a cell as a job; the form writes the first one.
MAGICS = ("%%distributed", "%%distdl")
#: The magic that runs the cell as a sweep.
SWEEP_MAGIC = "%%sweep"
#: A cell magic and the rest of its line.
_MAGIC = re.compile(r"(%%\S*)[ \t]*(.*)")


@dataclass(frozen=True, slots=True)
class CellText:
    """The text of a cell: ``magic`` with its %%, or "" if there is none; ``line``, the rest of its line; and ``body``.

    ``first_line`` is the line number in the cell at which ``body`` starts.
    """

    magic: str = ""
    line: str = ""
    body: str = ""
    first_line: int = 1

    @property
    def is_job(self) -> bool:
        """Whether the cell already runs as a job, or as the trials of a sweep."""
        return self.magic in (*MAGICS, SWEEP_MAGIC)


def split_cell(text: str) -> CellText:
    """Return the parts of a cell's text. As in IPython, empty lines above a magic are ignored."""
    body = text.lstrip("\n")
    empty_lines = len(text) - len(body)
    first, _, rest = body.partition("\n")
    match = _MAGIC.fullmatch(first)
    return CellText(match[1], match[2].strip(), rest, empty_lines + 2) if match else CellText(body=text)


# reading a line ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MagicLine:
    """The parsed magic line of a cell: ``values`` of fields of the form, and environment variables.

    ``other_flags`` are the arguments that have no field. ``magic_flags`` are those that only this magic accepts, which
    is ``%%sweep`` if ``is_sweep``. ``problem`` is why the line cannot be parsed, or None if it can.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    environment_variables: Mapping[str, str] = field(default_factory=dict)
    other_flags: tuple[str, ...] = ()
    magic_flags: tuple[str, ...] = ()
    variable: str = "job"
    is_sweep: bool = False
    problem: DistDLError | None = None


def parse_magic_line(text: CellText, defaults: Mapping[str, Any]) -> MagicLine:
    """Parse the magic line of a cell as the magic does; ``defaults`` are the kernel's.

    A line that cannot be parsed has a ``problem``.
    """
    is_sweep = text.magic == SWEEP_MAGIC
    try:
        if not text.is_job:
            return MagicLine(*values.from_options(arguments.get_job_options(argparse.Namespace(), defaults)))
        search_space, rest = "", text.line
        if is_sweep:
            _, rest = space.parse_line(text.line)
            search_space = text.line.removesuffix(rest).strip()
        parser = arguments.make_sweep_parser() if is_sweep else arguments.make_cell_parser(text.magic.lstrip("%"))
        args = parser.parse(rest)
        parsed, names = vars(args), values.list_form_options()
        # The kernel looks up variables that are set by name only; the form does not need their values.
        options = arguments.get_job_options(args, defaults, get_value=lambda _: "")
        fields, variables = values.from_options({name: options[name] for name in options if name in names})
        other_options = {name: value for name, value in options.items() if name not in names}
        other_options |= {"wait": parsed["wait"]} if "wait" in parsed else {}
        plan = {name: parsed[name] for name in values.SWEEP_ARGUMENTS if name in parsed}
        magic_flags = ("panel", *arguments.SWEEP_FLAGS)
        magic_only = {name: parsed[name] for name in magic_flags if name in parsed and name not in plan}
        return MagicLine(
            values={**fields, **({"sweep": search_space} if is_sweep else {}), **plan},
            environment_variables=variables,
            other_flags=format_arguments(other_options),
            magic_flags=format_arguments(magic_only),
            variable=parsed.get("out", ""),
            is_sweep=is_sweep,
        )
    except DistDLError as error:
        return MagicLine(problem=error, is_sweep=is_sweep)


def parse_search_space(text: str) -> dict[str, Any]:
    """Return the parameters of a sweep that a user typed. Raises InvalidSpec."""
    parameters, rest = space.parse_line(text)
    if rest.strip():
        raise InvalidSpec(
            f"Cannot parse {rest.split()[0]}.",
            code="sweep-line-unreadable",
            field="parameters",
            hint="Write NAME=VALUES, such as width=64,128.",
        )
    return parameters


# writing a line ---------------------------------------------------------------------------------------

#: Options that a line always contains.
_ALWAYS_WRITTEN = ("node_count", "process_count_per_node", "distributed_backend")
#: Maximum number of characters of an argument; a variable name replaces a longer one to keep the cell readable.
_MAX_ARGUMENT_LENGTH = 60


def format_line(
    options: Mapping[str, Any], variable: str = "job", magic: str = "%%distributed", extra: Sequence[str] = ()
) -> str:
    """Return ``%%distributed ...`` for options under their primary names; None and empty values are omitted.

    ``extra`` arguments are inserted unchanged before the variable. An empty ``variable`` omits ``-o``.
    """
    return " ".join(
        [magic, *format_arguments(dict(_select_options(options))), *extra, *(["-o", variable] if variable else [])]
    )


def _select_options(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options that differ from their defaults or are always written, then the options of plug-ins."""
    for name in OPTIONS:
        value = options.get(name)
        if isinstance(value, str) and "\n" in value:  # a file's content
            continue
        if name in _ALWAYS_WRITTEN or value not in (None, "", (), [], {}, DEFAULTS[name]):
            yield name, int(value) if isinstance(value, float) and value.is_integer() else value
    yield from (options.get("plugin_options") or {}).items()


def format_arguments(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments that set options: ``-p 2``, ``--cycle-time-ms 2.5``, ``--no-wait``."""
    parts: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            parts.append(flag if value else flag.replace("--", "--no-", 1))
            continue
        texts = value if name in OPTIONS and OPTIONS[name].is_repeatable else [value]
        if name == "environment_variables":
            texts = filter(None, (_format_assignment(variable, str(text)) for variable, text in value.items()))
        for text in texts:
            parts += [list_flags(name)[0] if name in OPTIONS else flag, shlex.quote(str(text))]
    return tuple(parts)


def _format_assignment(name: str, text: str) -> str:
    """Return NAME=VALUE, or only NAME for a secret, or "" for a value of several lines."""
    if is_secret(name, text):
        return name
    return f"{name}={text}" if len(text.splitlines()) < 2 else ""


def format_cell(
    magic_line: str, function: str, args: Sequence[Any], kwargs: Mapping[str, Any], parameters: Iterable[str] = ()
) -> str:
    """Return the whole cell: ``magic_line``, then a call of the function.

    ``parameters`` are the names of the arguments that a sweep varies.
    """
    values = [_format_literal(value, f"argument_{number}") for number, value in enumerate(args, 1)]
    codes = {name: _format_literal(value, name) for name, value in kwargs.items()} | {name: name for name in parameters}
    return f"{magic_line}\n{function}({', '.join([*values, *(f'{name}={code}' for name, code in codes.items())])})"


def _format_literal(value: Any, name: str) -> str:
    """Return a value as code if that is short and exact, else the name of a variable that the user has to define."""
    is_exact = isinstance(value, str | int | float | bool | type(None))
    return repr(value) if is_exact and len(repr(value)) <= _MAX_ARGUMENT_LENGTH else name
