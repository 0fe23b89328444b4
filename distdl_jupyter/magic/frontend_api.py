"""What a page asks a kernel: the launch form for one of the notebook's cells, with the names that the kernel has.

The page evaluates ``page.form('<JSON>')`` and ``page.keep('<JSON>')`` as user expressions of a silent request, so that
nothing is printed and no cell is counted.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import msgspec
from IPython.display import JSON

from distdl_jupyter import capture
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.form.cell import KernelContext, cell_state
from distdl_jupyter.form.magic import MAGICS
from distdl_jupyter.form.schema import FormRequest
from distdl_jupyter.magic import extension
from distdl_jupyter.magic.extension import owner
from distdl_jupyter.magic.session import Session
from distdl_jupyter.views import wire
from distdl_jupyter.views.wire import to_json

if TYPE_CHECKING:
    from collections.abc import Hashable

    from distdl_jupyter.form.target import Look

#: The last look at a cell's names.
_LOOKS: dict[Hashable, Look] = {}


def form(request: str) -> JSON:
    """Return the FormState for a FormRequest; loads the magics first, as ``%load_ext`` would."""
    ip, session = _ready()
    free = MAGICS[0] if owner(ip) is None else MAGICS[1]
    kernel = KernelContext(ip.user_ns, session.defaults, free, ip.execution_count, _LOOKS)
    try:
        asked = wire.from_json(FormRequest, request.encode())
        asked = msgspec.structs.replace(asked, notebook=capture.here().path or asked.notebook)
        return _answer(to_json(cell_state(asked, kernel)))
    except DistDLError as error:
        return _answer({"error": error.to_json()})


def keep(variables: str) -> JSON:
    """Put secrets into this kernel's environment, where ``--env NAME`` finds them; their values go nowhere else."""
    _ready()
    given = json.loads(variables)
    os.environ.update({str(name): str(value) for name, value in given.items()})
    return _answer({"kept": sorted(given)})


def _answer(data: dict[str, Any]) -> JSON:
    return JSON(data)  # type: ignore[no-untyped-call]


def _ready() -> tuple[Any, Session]:
    from IPython import get_ipython

    ip = get_ipython()
    assert ip is not None, "a page asks a kernel"
    ip.extension_manager.load_extension("distdl_jupyter")
    return ip, extension.session_of(ip)
