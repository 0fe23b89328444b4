"""The launch form of a text over HTTP, computed by the Python that would run it.

A notebook whose kernel is free asks its kernel, which also knows the notebook's names; this is for a kernel that is
busy or not started, and for text without a notebook. A long text is read in a process of its own, because reading it
would delay the requests of others. What belongs to an environment (backends, GPUs) is read in the environment of the
chosen kernel: by this process where that is the server's own, else by a process of that Python.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from distdl_jupyter.api import submitting
from distdl_jupyter.api.call import Context, post
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.form.schema import FormRequest, FormState
from distdl_jupyter.views.wire import to_json

_MODULE = "distdl_jupyter.form"
#: Characters of a text up to which the server reads it itself, in less than half a second.
_SHORT = 20_000


@post("/form", action="execute", slow=True, refuses=(424, 502))
def form(context: Context, body: FormRequest) -> FormState:
    """Return the form for a source text and the choices so far."""
    submitting.check_code(body.code, context.max_code_bytes)
    python = submitting.interpreter(body.kernel_name, context.kernel_specs)
    if context.gone.is_set():
        raise LaunchFailed("The page has closed or has sent a newer request.", code="page-gone")
    # Only the kernel knows what a notebook's cell uses from beside it: here the notebook is only a name.
    path = submitting.beside(context.root, body.notebook) if body.own else None
    request = msgspec.structs.replace(body, notebook=str(path or body.notebook))
    directory = str(path.parent if path else _folder_of(context.root, body.notebook))
    if python.own and len(request.code) < _SHORT:
        from distdl_jupyter.form.state import cell_state

        return cell_state(request, directory=directory)
    question = {"request": to_json(request), "directory": directory}
    folder = path.parent if path else context.root
    # The answer of the other process is JSON with the fields of a FormState.
    return submitting.ask(python, _MODULE, question, folder, context.form_seconds, context.gone)  # type: ignore[return-value]


def _folder_of(root: Path, notebook: str) -> Path:
    """Return the folder of a notebook, where its kernel works; the root for one that is not below it."""
    folder = (root / notebook.lstrip("/")).resolve().parent
    return folder if folder.is_relative_to(root.resolve()) and folder.is_dir() else root
