"""Kernel side of the launch form: it serves a form for a cell of the notebook, with the kernel's names.

* The page opens a comm with a request, ``{"ask": name, "given": arguments}``. The kernel closes it with the response.
* Nothing is printed and the execution count does not change.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from distdl_jupyter import capture
from distdl_jupyter.form.schema import FormRequest
from distdl_jupyter.form.state import KernelContext, cell_state
from distdl_jupyter.views import wire

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from distdl_jupyter.form.schema import FormState
    from distdl_jupyter.form.target import CodeInfo
    from distdl_jupyter.magic.session import Session

#: State of the last cell.
_CACHE: dict[Hashable, CodeInfo] = {}


def answer(session: Session, magic: str, request: Any) -> dict[str, Any]:
    """Respond to a request of a page; ``magic`` is the cell magic that the form writes."""

    def state(request: object) -> FormState:
        kernel = KernelContext(session.ip.user_ns, session.defaults, magic, session.ip.execution_count, _CACHE)
        query = wire.from_data(FormRequest, request)
        return cell_state(msgspec.structs.replace(query, notebook=capture.here().path or query.notebook), kernel)

    return wire.answer({"form.state": state, "form.keep": keep}, request)


def keep(variables: Mapping[str, object]) -> dict[str, list[str]]:
    """Put secrets into this kernel's environment, where ``--env NAME`` reads them; they are stored nowhere else."""
    os.environ.update({str(name): str(value) for name, value in variables.items()})
    return {"kept": sorted(variables)}
