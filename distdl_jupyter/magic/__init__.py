"""The magics: ``%%distributed`` runs a cell on many processes, ``%dist_...`` run commands.

The magics are a thin layer over ``capture``, ``client`` and ``widgets``: they parse the line, call a function and
display the result. This module registers them with an IPython shell, and handles the requests of launch forms.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from distdl_jupyter import capture
from distdl_jupyter.magic import cell, commands
from distdl_jupyter.magic.ranks_magic import RanksMagics
from distdl_jupyter.magic.session import Session, say
from distdl_jupyter.views import wire

#: The target name of the comms that pages open.
COMM_TARGET = "distdl-jupyter"
#: The state of the magics of each shell, which is reused if the extension is loaded again.
_SESSIONS: WeakKeyDictionary[Any, Session] = WeakKeyDictionary()


def load(ip: Any) -> None:
    """Register ``%%distributed``, its alias ``%%distdl``, ``%%sweep``, ``%%ranks``, ``%distdl`` and ``%dist_...``.

    Can be called repeatedly. A ``%%distributed`` of another package is not replaced; a message is printed instead.
    """
    session = _SESSIONS.setdefault(ip, Session(ip))
    ranks, other_package = RanksMagics(session), find_owner(ip)
    if other_package is not None:
        say(f"%%distributed is already defined by {other_package}. Use %%distdl instead; it does the same.")
    names = ("distributed", "distdl") if other_package is None else ("distdl",)
    for name, function in {**cell.create_magics(session, names), "ranks": ranks.make_cell_magic()}.items():
        ip.register_magic_function(function, "cell", name)
    for name, function in {**commands.create_magics(session), "dist_ranks": ranks.make_line_magic()}.items():
        ip.register_magic_function(function, "line", name)
    if hasattr(ip, "kernel"):
        from comm import get_comm_manager

        get_comm_manager().register_target(COMM_TARGET, functools.partial(_handle_request, session))


def find_owner(ip: Any) -> str | None:
    """Return the name of another package that defines ``%%distributed``, or None if there is none."""
    manager = ip.magics_manager
    magic, lazy = manager.magics["cell"].get("distributed"), manager.lazy_magics.get("distributed", "")
    module = str(getattr(magic, "__module__", None) or type(magic).__module__) if magic is not None else str(lazy)
    return module.partition(".")[0] if module and not module.startswith("distdl_jupyter") else None


# the launch form of a cell ----------------------------------------------------------------------------


def _handle_request(session: Session, comm: Any, message: dict[str, Any]) -> None:
    """Close a comm that a page opened with a request (``{"call": name, "arguments": {...}}``) with the response.

    Nothing is printed, and the execution count does not change.
    """
    # Lazy: few notebooks open a form.
    from distdl_jupyter.form.schema import FormRequest
    from distdl_jupyter.form.state import compute_cell_form
    from distdl_jupyter.form.target import KernelContext

    def compute_state(request: object) -> object:
        ip = session.ip
        magic = "%%distributed" if find_owner(ip) is None else "%%distdl"
        kernel = KernelContext(ip.user_ns, session.defaults, magic, ip.execution_count, session.form_cache)
        form_request = wire.from_data(FormRequest, request)
        notebook = capture.current_location().path or form_request.notebook
        return compute_cell_form(msgspec.structs.replace(form_request, notebook=notebook), kernel)

    handlers = {"form.state": compute_state, "form.keep": _keep_secrets}
    comm.close(data=wire.handle_request(handlers, message["content"]["data"]))


def _keep_secrets(variables: Mapping[str, object]) -> dict[str, list[str]]:
    """Put secrets into this kernel's environment, where ``--env NAME`` reads them; they are stored nowhere else."""
    os.environ.update({str(name): str(value) for name, value in variables.items()})
    return {"kept": sorted(variables)}
