"""The magic line, and the cell, that do the same as the form. Pure text.

A secret stands in it by its name only, and what does not fit into one line does not stand in it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from distdl_jupyter.core.options import ABOUT, DEFAULTS, flags
from distdl_jupyter.core.redact import is_secret

#: What a line says in any case.
_ALWAYS = ("node_count", "process_count_per_node", "distributed_backend")
#: Longer arguments than this would make the cell unreadable; a name stands for them.
_LONGEST = 60


def line(
    options: Mapping[str, Any], variable: str = "job", magic: str = "%%distributed", kept: Sequence[str] = ()
) -> str:
    """Return ``%%distributed ...`` for options under their primary names; what is None or empty is left out.

    ``kept`` are words that go before the variable as they are. Without a variable there is no ``-o``.
    """
    words = [magic]
    for name in ABOUT:
        value = options.get(name)
        if isinstance(value, str) and "\n" in value:  # the text of a file
            continue
        if name in _ALWAYS or value is False or (value and value != DEFAULTS[name]):
            words += _words(name, value)
    for name, value in (options.get("plugin_options") or {}).items():
        words += flag_words(name, value)
    return " ".join([*words, *kept, *(["-o", variable] if variable else [])])


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


def _literal(value: Any, name: str) -> str:
    """Return a value as code where that is short and exact, else a variable's name for the user to fill in."""
    if isinstance(value, str | int | float | bool | type(None)) and len(repr(value)) <= _LONGEST:
        return repr(value)
    return name
