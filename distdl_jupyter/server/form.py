"""POST form: the launch form of a text, worked out by the Python that would run it.

A notebook whose kernel is free asks its kernel, which also knows the notebook's names; this is for a kernel that is
busy or not started, and for text without a notebook. A long text is read in a process of its own, because that would
keep everybody else's requests waiting. What belongs to an environment (backends, GPUs) is found out in
the environment of the kernel that was chosen: by this process where that is the server's own, else by a process of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.form.schema import FormRequest, FormState
from distdl_jupyter.server import submitting
from distdl_jupyter.server.base import Handler, answers, executes
from distdl_jupyter.views.wire import to_json

if TYPE_CHECKING:
    from threading import Event

    from distdl_jupyter.server.submitting import Interpreter


class Form(Handler):
    """The launch form."""

    @answers(FormState, body=FormRequest, refuses=(424, 502))
    @executes
    async def post(self, body: FormRequest) -> object:
        """Return the form for a source text and the choices so far."""
        submitting.check_code(body.code, self.app.max_code_bytes)
        python = submitting.interpreter(body.kernel_name, self.kernel_spec_manager)
        return await self.slowly(_state, body, python, self.root, self.app.form_seconds, self.gone)


def _state(request: FormRequest, python: Interpreter, root: Path, seconds: float, gone: Event) -> object:
    """Return the form. Raises PluginUnavailable when that Python has no distdl_jupyter, LaunchFailed."""
    if gone.is_set():
        raise LaunchFailed("The page has closed or has sent a newer request.", code="page-gone")
    # What a notebook's cell takes from beside it only its kernel can tell: the notebook is no more than a name here.
    path = submitting.beside(root, request.notebook) if request.own else None
    request = msgspec.structs.replace(request, notebook=str(path or request.notebook))
    directory = str(path.parent if path else _beside(root, request.notebook))
    if python.own and len(request.code) < _SHORT:
        from distdl_jupyter.form.cell import cell_state

        return cell_state(request, directory=directory)
    asked = {"request": to_json(request), "directory": directory}
    return submitting.ask(python, _MODULE, asked, path.parent if path else root, seconds, gone)


def _beside(root: Path, notebook: str) -> Path:
    """Return the folder of a notebook, where its kernel works; the root for one that is not below it."""
    folder = (root / notebook.lstrip("/")).resolve().parent
    return folder if folder.is_relative_to(root.resolve()) and folder.is_dir() else root


_MODULE = "distdl_jupyter.form"
#: Characters of a text up to which the server reads it itself, which takes it less than half a second.
_SHORT = 20_000
