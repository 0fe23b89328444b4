"""The text of a cell: its magic line and the code below it, and the line or the call that does the same as a form.

The cell's text stays the truth: the form reads its line and writes it back, and changes nothing below it. A secret is
written by its name only, and what does not fit into one line is left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.core import space
from distdl_jupyter.core.options import ABOUT, DEFAULTS, flags
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.space import Space

#: The magics that run a cell as a job; the first is the one that is written.
MAGICS = ("%%distributed", "%%distdl")
#: The magic that runs it as many jobs, with other values of some names.
SWEEP = "%%sweep"
_MAGIC = re.compile(r"(%%\S*)[ \t]*(.*)")


@dataclass(frozen=True, slots=True)
class CellText:
    """``magic`` is the cell magic with its signs ("" without one), ``line`` what follows it, ``body`` all below.

    ``first_line`` is the cell's number of line 1 of ``body``.
    """

    magic: str
    line: str
    body: str
    first_line: int

    @property
    def ours(self) -> bool:
        """Whether the cell already runs as a job, or as the trials of a sweep."""
        return self.magic in (*MAGICS, SWEEP)

    @property
    def foreign(self) -> str:
        """Another cell magic on top of the cell, "" without one: a cell can have only one."""
        return "" if self.ours else self.magic


NO_CELL = CellText("", "", "", 1)


def split(text: str) -> CellText:
    """Return the parts of a cell's text. Empty lines above a magic do not count, as in IPython."""
    body = text.lstrip("\n")
    above = len(text) - len(body)
    first, _, rest = body.partition("\n")
    found = _MAGIC.fullmatch(first)
    if found is None:
        return CellText("", "", text, 1)
    return CellText(found[1], found[2].strip(), rest, above + 2)


def joined(magic_line: str, body: str) -> str:
    """Return the text of the cell with this line on top."""
    return f"{magic_line}\n{body}"


# writing a line ---------------------------------------------------------------------------------------

#: Options that a line always contains.
_ALWAYS = ("node_count", "process_count_per_node", "distributed_backend")
#: Longer arguments than this would make the cell unreadable; a variable name replaces them.
_LONGEST = 60


def line(
    options: Mapping[str, Any], variable: str = "job", magic: str = "%%distributed", kept: Sequence[str] = ()
) -> str:
    """Return ``%%distributed ...`` for options under their primary names; what is None or empty is left out.

    ``kept`` are words that go before the variable as they are. Without a variable there is no ``-o``.
    """
    words = [magic]
    for name, value in _told(options):
        words += _words(name, value)
    for name, value in (options.get("plugin_options") or {}).items():
        words += flag_words(name, value)
    return " ".join([*words, *kept, *(["-o", variable] if variable else [])])


def _told(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options that differ from their defaults, and those that are always written."""
    for name in ABOUT:
        value = options.get(name)
        if isinstance(value, str) and "\n" in value:  # the text of a file
            continue
        if name in _ALWAYS or value not in (None, "", (), [], {}, DEFAULTS[name]):
            yield name, value


def _words(name: str, value: Any) -> list[str]:
    flag, *_ = flags(name)
    if name == "environment_variables":
        return _variables(value)
    if isinstance(value, bool):
        return flag_words(name, value)
    if ABOUT[name].repeats:
        return [word for one in value for word in (flag, shlex.quote(str(one)))]
    return [flag, shlex.quote(f"{value:g}" if isinstance(value, float) else str(value))]


def _variables(variables: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in variables.items():
        if is_secret(name, str(value)):
            words += ["--env", shlex.quote(name)]
        elif len(str(value).splitlines()) < 2:
            words += ["--env", shlex.quote(f"{name}={value}")]
    return words


def flag_words(name: str, value: Any) -> list[str]:
    """Return the words that give an option its value: ``--cycle-time-ms 2.5``, ``--no-wait``."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", shlex.quote(str(value))]


def cell(first: str, function: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> str:
    """Return the whole cell: the magic line ``first``, then the call of the function by its name."""
    given = [_literal(value, f"argument_{number}") for number, value in enumerate(args, 1)]
    given += [f"{name}={_literal(value, name)}" for name, value in (kwargs or {}).items()]
    return f"{first}\n{function}({', '.join(given)})"


def sweep(
    function: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    parameters: Space,
    plan: Mapping[str, Any],
    options: Mapping[str, Any],
) -> tuple[str, str]:
    """Return the call that sweeps a function as one line, and the whole cell."""
    varied = ", ".join(f"{name!r}: {space.code(one)}" for name, one in parameters.items())
    words = [function, f"{{{varied}}}"]
    if args:
        words.append(
            f"args=[{', '.join(_literal(value, f'argument_{number}') for number, value in enumerate(args, 1))}]"
        )
    if kwargs:
        words.append(f"kwargs={{{', '.join(f'{name!r}: {_literal(value, name)}' for name, value in kwargs.items())}}}")
    told = {**plan, **dict(_told(options)), **(options.get("plugin_options") or {})}
    words += [f"{name}={_code(name, value)}" for name, value in told.items()]
    line = f"found = sweep({', '.join(words)})"
    makers = {space.code(one).partition("(")[0] for one in parameters.values() if isinstance(one, space.Range)}
    imports = f"from distdl_jupyter import {', '.join(sorted({*makers, 'sweep'}))}"
    return line, "\n".join([*(["import os", ""] if "os.environ[" in line else []), imports, "", line, "found"])


def _code(name: str, value: Any) -> str:
    """Return an option's value as code; of a secret its name alone."""
    if name != "environment_variables":
        return repr(int(value) if isinstance(value, float) and value.is_integer() else value)
    each = (
        f"{one!r}: {f'os.environ[{one!r}]' if is_secret(one, str(text)) else repr(text)}" for one, text in value.items()
    )
    return f"{{{', '.join(each)}}}"


def _literal(value: Any, name: str) -> str:
    """Return a value as code where that is short and exact, else a variable's name for the user to fill in."""
    if isinstance(value, str | int | float | bool | type(None)) and len(repr(value)) <= _LONGEST:
        return repr(value)
    return name
