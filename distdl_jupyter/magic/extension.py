"""Registers the magics with an IPython shell, beside whatever other extensions have registered."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from distdl_jupyter.magic.cell import CellMagics
from distdl_jupyter.magic.commands import LineMagics
from distdl_jupyter.magic.ranks_lines import RankLines
from distdl_jupyter.magic.ranks_magic import RanksMagic
from distdl_jupyter.magic.session import Session

_NAMES = ("distributed", "distdl")
#: The target of the comms that pages open.
TARGET = "distdl-jupyter"
#: What the magics of each shell remember; loading them again forgets nothing.
_SESSIONS: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()


def load(ip: Any) -> None:
    """Register ``%%distributed``, its alias ``%%distdl``, ``%%sweep``, ``%%ranks``, ``%distdl`` and ``%dist_...``.

    Doing it again is harmless.

    When another extension owns ``%%distributed`` it keeps it, and one line says so.
    """
    session = _SESSIONS.setdefault(ip, Session(ip))
    cells = CellMagics(session)
    foreign = owner(ip)
    for name in _NAMES if foreign is None else _NAMES[1:]:
        ip.register_magic_function(cells.distributed(name), "cell", name)
    if foreign is not None:
        print(f"%%distributed is already defined by {foreign}. Use %%distdl instead; it does the same.")  # noqa: T201
    ip.register_magic_function(RanksMagic(session).function(), "cell", "ranks")
    ip.register_magic_function(cells.sweep(), "cell", "sweep")
    lines = {**LineMagics(session).all(), "dist_ranks": RankLines(session).function()}
    for name, function in lines.items():
        ip.register_magic_function(function, "line", name)
    _show_help_without_body(ip, (*(_NAMES if foreign is None else _NAMES[1:]), "ranks", "sweep"))
    if hasattr(ip, "kernel"):
        from comm import get_comm_manager

        get_comm_manager().register_target(TARGET, functools.partial(_answer, session))


def _answer(session: Session, comm: Any, opening: dict[str, Any]) -> None:
    """Answer the request with which a page opened a comm."""
    from distdl_jupyter.magic import frontend_api  # few notebooks open a form
    from distdl_jupyter.views import wire

    magic = f"%%{_NAMES[0] if owner(session.ip) is None else _NAMES[1]}"
    comm.close(data=wire.answer(frontend_api.calls(session, magic), opening["content"]["data"]))


class HelpWithoutBody:
    """Give a cell that only asks a cell magic for its help the body without which IPython refuses the cell."""

    def __init__(self, names: Iterable[str]) -> None:
        # %distdl with one sign is the line magic, which answers itself.
        self._request = re.compile(rf"%(?:%|(?!distdl\b))({'|'.join(names)})([ \t].*)?[ \t](-h|--help)([ \t].*)?")

    def __call__(self, lines: list[str]) -> list[str]:
        """Return the lines of a cell, ``%%sweep --help`` with a body (an input transformer of IPython's)."""
        request = self._request.fullmatch("".join(lines).strip())
        return [f"%%{request[1]} --help\n", "\n"] if request else lines


def _show_help_without_body(ip: Any, names: Iterable[str]) -> None:
    transformers = ip.input_transformers_cleanup
    transformers[:] = [HelpWithoutBody(names), *(each for each in transformers if type(each) is not HelpWithoutBody)]


def owner(ip: Any) -> str | None:
    """Return the name of the other package whose magic ``%%distributed`` is, None when it is free or ours."""
    manager = ip.magics_manager
    found = manager.magics["cell"].get("distributed")
    if found is None:
        lazy = manager.lazy_magics.get("distributed")
        return None if lazy is None or lazy.startswith("distdl_jupyter") else str(lazy)
    module = str(getattr(found, "__module__", None) or type(found).__module__)
    return None if module.startswith("distdl_jupyter") else module.partition(".")[0]
