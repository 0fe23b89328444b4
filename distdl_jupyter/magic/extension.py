"""Registers the magics with an IPython shell, without replacing magics of other extensions."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from distdl_jupyter.magic.cell import CellMagics
from distdl_jupyter.magic.commands import LineMagics
from distdl_jupyter.magic.ranks_magic import RanksMagics
from distdl_jupyter.magic.session import Session, say

_NAMES = ("distributed", "distdl")
#: The target of the comms that pages open.
TARGET = "distdl-jupyter"
#: State of the magics of each shell, kept when the extension is loaded again.
_SESSIONS: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()


def load(ip: Any) -> None:
    """Register ``%%distributed``, its alias ``%%distdl``, ``%%sweep``, ``%%ranks``, ``%distdl`` and ``%dist_...``.

    Repeated calls are harmless. If another extension owns ``%%distributed``, it keeps the name and a message is
    printed.
    """
    session = _SESSIONS.setdefault(ip, Session(ip))
    cells, ranks, foreign = CellMagics(session), RanksMagics(session), owner(ip)
    if foreign is not None:
        say(f"%%distributed is already defined by {foreign}. Use %%distdl instead; it does the same.")
    names = _NAMES if foreign is None else _NAMES[1:]
    functions = {name: cells.distributed(name) for name in names} | {"ranks": ranks.cell(), "sweep": cells.sweep()}
    for name, function in functions.items():
        ip.register_magic_function(function, "cell", name)
    for name, function in {**LineMagics(session).all(), "dist_ranks": ranks.line()}.items():
        ip.register_magic_function(function, "line", name)
    transformers = ip.input_transformers_cleanup
    transformers[:] = [
        HelpWithoutBody(functions),
        *(each for each in transformers if type(each) is not HelpWithoutBody),
    ]
    if hasattr(ip, "kernel"):
        from comm import get_comm_manager

        get_comm_manager().register_target(TARGET, functools.partial(_answer, session))


def _answer(session: Session, comm: Any, opening: dict[str, Any]) -> None:
    """Respond to the request of a page that opened a comm."""
    from distdl_jupyter.magic import frontend_api  # lazy: few notebooks open a form

    magic = f"%%{_NAMES[0] if owner(session.ip) is None else _NAMES[1]}"
    comm.close(data=frontend_api.answer(session, magic, opening["content"]["data"]))


class HelpWithoutBody:
    """Adds a body to a cell that only requests a cell magic's help: IPython rejects cell magics without one."""

    def __init__(self, names: Iterable[str]) -> None:
        # %distdl with a single % is the line magic, which prints its own help.
        self._request = re.compile(rf"%(?:%|(?!distdl\b))({'|'.join(names)})([ \t].*)?[ \t](-h|--help)([ \t].*)?")

    def __call__(self, lines: list[str]) -> list[str]:
        """Return the lines of a cell, ``%%sweep --help`` with a body (an input transformer of IPython's)."""
        request = self._request.fullmatch("".join(lines).strip())
        return [f"%%{request[1]} --help\n", "\n"] if request else lines


def owner(ip: Any) -> str | None:
    """Return the name of another package that owns ``%%distributed``, None if it is free or ours."""
    manager = ip.magics_manager
    magic, lazy = manager.magics["cell"].get("distributed"), manager.lazy_magics.get("distributed", "")
    module = str(getattr(magic, "__module__", None) or type(magic).__module__) if magic is not None else str(lazy)
    return module.partition(".")[0] if module and not module.startswith("distdl_jupyter") else None
