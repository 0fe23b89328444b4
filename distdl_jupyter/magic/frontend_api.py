"""What a page asks a kernel: the launch form for one of the notebook's cells, with the names that the kernel has.

* The page opens a comm with a request, ``{"ask": name, "given": arguments}``. The kernel closes it with the answer.
* Nothing is printed and no cell is counted.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

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
    from distdl_jupyter.views.wire import Calls

#: What was known of the last cell.
_CACHE: dict[Hashable, CodeInfo] = {}


def calls(session: Session, magic: str) -> Calls:
    """Return what a page may ask for, by name; ``magic`` is the cell magic that is written."""
    return {"form.state": functools.partial(form, session, magic), "form.keep": keep}


def form(session: Session, magic: str, request: object) -> FormState:
    """Return the form of a cell's text."""
    ip = session.ip
    kernel = KernelContext(ip.user_ns, session.defaults, magic, ip.execution_count, _CACHE)
    asked = wire.from_data(FormRequest, request)
    return cell_state(msgspec.structs.replace(asked, notebook=capture.here().path or asked.notebook), kernel)


def keep(variables: Mapping[str, object]) -> dict[str, list[str]]:
    """Put secrets into this kernel's environment, where ``--env NAME`` finds them; their values go nowhere else."""
    os.environ.update({str(name): str(value) for name, value in variables.items()})
    return {"kept": sorted(variables)}
