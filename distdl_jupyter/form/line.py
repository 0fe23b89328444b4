"""Parse the magic line of a cell, and write the magic line or the call that is equivalent to a form.

The cell's text is authoritative: the form reads its line and writes it back, and never changes the code below it. Only
the names of secrets are written, and values that do not fit into one line are omitted.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distdl_jupyter.core import space
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.options import ABOUT, DEFAULTS, flags
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.space import Space
from distdl_jupyter.form import arguments, values

#: The magics that run a cell as a job; the form writes the first one.
MAGICS = ("%%distributed", "%%distdl")
#: The magic that runs the cell as a sweep.
SWEEP = "%%sweep"
_MAGIC = re.compile(r"(%%\S*)[ \t]*(.*)")


@dataclass(frozen=True, slots=True)
class CellText:
    """``magic`` is the cell magic with its %% signs ("" if none), ``line`` the rest of its line, ``body`` all below.

    ``first_line`` is the cell's number of line 1 of ``body``.
    """

    magic: str
    line: str
    body: str
    first_line: int

    @property
    def is_job(self) -> bool:
        """Whether the cell already runs as a job, or as the trials of a sweep."""
        return self.magic in (*MAGICS, SWEEP)

    @property
    def foreign(self) -> str:
        """Another cell magic on top of the cell, "" without one: a cell can have only one."""
        return "" if self.is_job else self.magic


NO_CELL = CellText("", "", "", 1)


def split(text: str) -> CellText:
    """Return the parts of a cell's text. Empty lines above a magic do not count, as in IPython."""
    body = text.lstrip("\n")
    above = len(text) - len(body)
    first, _, rest = body.partition("\n")
    match = _MAGIC.fullmatch(first)
    return CellText(match[1], match[2].strip(), rest, above + 2) if match else CellText("", "", text, 1)


def joined(magic_line: str, body: str) -> str:
    """Return the text of the cell with this line on top."""
    return f"{magic_line}\n{body}"


# reading a line ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MagicLine:
    """The parsed magic line of a cell: ``values`` of fields of the form, and environment variables.

    ``other_flags`` are its arguments without a field, and ``magic_flags`` those that only this magic accepts:
    ``%%sweep`` if ``is_sweep``. ``problem`` is why the line cannot be parsed.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    environment_variables: Mapping[str, str] = field(default_factory=dict)
    other_flags: tuple[str, ...] = ()
    magic_flags: tuple[str, ...] = ()
    variable: str = "job"
    is_sweep: bool = False
    problem: DistDLError | None = None


def of_options(options: Mapping[str, Any]) -> MagicLine:
    """Return the initial values of a form for options under any of their names. Raises InvalidSpec."""
    return MagicLine(*values.from_options(options))


def read(text: CellText, defaults: Mapping[str, Any]) -> MagicLine:
    """Parse the magic line of a cell as the magic does; ``defaults`` are the kernel's.

    A line that cannot be parsed has a ``problem``.
    """
    is_sweep = text.magic == SWEEP
    try:
        if not text.is_job:
            return of_options(arguments.job_options(argparse.Namespace(), defaults))
        varied, rest = "", text.line
        if is_sweep:
            _, rest = space.of_line(text.line)
            varied = text.line.removesuffix(rest).strip()
        parser = arguments.sweep_parser() if is_sweep else arguments.cell_parser(text.magic.lstrip("%"))
        args = vars(parser.parse(rest))
        # The kernel looks up variables that are written by name; the form does not need their values.
        options = arguments.job_options(argparse.Namespace(**args), defaults, value=lambda _: "")
        names = values.names_in_form()
        line = of_options({name: value for name, value in options.items() if name in names})
        plan = {name: args[name] for name in values.PLAN if name in args}
        other = {name: value for name, value in options.items() if name not in names}
        other |= {"wait": args["wait"]} if "wait" in args else {}
        only = [name for name in ("panel", *arguments.SWEEP) if name in args and name not in plan]
        return replace(
            line,
            values={**line.values, **({"sweep": varied} if is_sweep else {}), **plan},
            other_flags=tuple(part for name, value in other.items() for part in flag_words(name, value)),
            magic_flags=tuple(part for name in only for part in flag_words(name, args[name])),
            variable=args.get("out", ""),
            is_sweep=is_sweep,
        )
    except DistDLError as error:
        return MagicLine(problem=error, is_sweep=is_sweep)


# writing a line ---------------------------------------------------------------------------------------

#: Options that a line always contains.
_ALWAYS = ("node_count", "process_count_per_node", "distributed_backend")
#: Longer arguments than this would make the cell unreadable; a variable name replaces them.
_LONGEST = 60


def line(
    options: Mapping[str, Any], variable: str = "job", magic: str = "%%distributed", more: Sequence[str] = ()
) -> str:
    """Return ``%%distributed ...`` for options under their primary names; None and empty values are omitted.

    ``more`` are words that are inserted unchanged before the variable. Without a variable there is no ``-o``.
    """
    parts = [part for name, value in _written(options) for part in _flag_words(name, value)]
    parts += [part for name, value in _plugin_options(options) for part in flag_words(name, value)]
    return " ".join([magic, *parts, *more, *(["-o", variable] if variable else [])])


def _written(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options that differ from their defaults or are always written."""
    for name in ABOUT:
        value = options.get(name)
        if isinstance(value, str) and "\n" in value:  # the text of a file
            continue
        if name in _ALWAYS or value not in (None, "", (), [], {}, DEFAULTS[name]):
            yield name, int(value) if isinstance(value, float) and value.is_integer() else value


def _plugin_options(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from (options.get("plugin_options") or {}).items()


def _flag_words(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return flag_words(name, value)
    if name == "environment_variables":
        value = [_assignment(variable, str(text)) for variable, text in value.items()]
    texts = filter(None, value) if ABOUT[name].repeats else [value]
    return [part for text in texts for part in (flags(name)[0], shlex.quote(str(text)))]


def _assignment(name: str, text: str) -> str:
    """Return NAME=VALUE, only the name of a secret, and "" for a multi-line value."""
    if is_secret(name, text):
        return name
    return f"{name}={text}" if len(text.splitlines()) < 2 else ""


def flag_words(name: str, value: Any) -> list[str]:
    """Return the words that set an option: ``--cycle-time-ms 2.5``, ``--no-wait``."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", shlex.quote(str(value))]


def cell(first: str, function: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> str:
    """Return the whole cell: the magic line ``first``, then the call of the function by its name."""
    named = [f"{name}={_literal(value, name)}" for name, value in (kwargs or {}).items()]
    return f"{first}\n{function}({', '.join([*_positional(args), *named])})"


def sweep(
    function: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    parameters: Space,
    plan: Mapping[str, Any],
    options: Mapping[str, Any],
) -> tuple[str, str]:
    """Return the call that sweeps a function as one line, and the whole cell."""
    codes = {name: space.code(parameter) for name, parameter in parameters.items()}
    items = [function, f"{{{', '.join(f'{name!r}: {code}' for name, code in codes.items())}}}"]
    items += [f"args=[{', '.join(_positional(args))}]"] if args else []
    fixed = ", ".join(f"{name!r}: {_literal(value, name)}" for name, value in kwargs.items())
    items += [f"kwargs={{{fixed}}}"] if kwargs else []
    keywords = {**plan, **dict(_written(options)), **dict(_plugin_options(options))}
    items += [f"{name}={_code(name, value)}" for name, value in keywords.items()]
    call = f"found = sweep({', '.join(items)})"
    ranges = {codes[name].partition("(")[0] for name, value in parameters.items() if isinstance(value, space.Range)}
    imports = f"from distdl_jupyter import {', '.join(sorted({*ranges, 'sweep'}))}"
    return call, "\n".join([*(["import os", ""] if "os.environ[" in call else []), imports, "", call, "found"])


def _code(name: str, value: Any) -> str:
    """Return an option's value as code, and only the name of a secret."""
    if name != "environment_variables":
        return repr(value)
    each = (
        f"{key!r}: {f'os.environ[{key!r}]' if is_secret(key, str(text)) else repr(text)}" for key, text in value.items()
    )
    return f"{{{', '.join(each)}}}"


def _positional(args: Sequence[Any]) -> list[str]:
    return [_literal(value, f"argument_{number}") for number, value in enumerate(args, 1)]


def _literal(value: Any, name: str) -> str:
    """Return a value as code if that is short and exact, else a placeholder variable for the user to define."""
    if isinstance(value, str | int | float | bool | type(None)) and len(repr(value)) <= _LONGEST:
        return repr(value)
    return name
