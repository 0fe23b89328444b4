"""POST form: the launch form of a text, worked out by the Python that would run it.

A notebook whose kernel is free asks its kernel, which also knows the notebook's names; this is for a kernel that is
busy or not started, and for text without a notebook. What belongs to an environment (backends, GPUs) is found out in
the environment of the kernel that was chosen: by this process where that is the server's own, else by a process of it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.server import submitting
from distdl_jupyter.server.base import Handler, answers, reads
from distdl_jupyter.server.schema import FormAnswer, FormQuestion

if TYPE_CHECKING:
    from distdl_jupyter.server.submitting import Interpreter


class Form(Handler):
    """The launch form."""

    @answers(FormAnswer, body=FormQuestion, refuses=(424, 502))
    @reads
    async def post(self, body: FormQuestion) -> FormAnswer:
        """Return the form for a text and what was chosen so far."""
        python = submitting.interpreter(body.kernel_name, self.kernel_spec_manager)
        root = Path(str(getattr(self.contents_manager, "root_dir", "") or "."))
        return await self.apart(_worked_out, body, python, root, self.app.submit_seconds)


def _worked_out(body: FormQuestion, python: Interpreter, root: Path, seconds: float) -> FormAnswer:
    """Return the form. Raises PluginUnavailable when that Python has no distdl_jupyter, LaunchFailed."""
    asked = {field.name: getattr(body, field.name) for field in dataclasses.fields(body) if field.name != "kernel_name"}
    # What a notebook's cell takes from beside it only its kernel can tell: the notebook is no more than a name here.
    path = submitting.beside(root, body.notebook) if body.own else None
    asked["notebook"] = str(path or body.notebook)
    folder = path.parent if path else root
    asked["directory"] = str(path.parent if path else _beside(root, body.notebook))
    return FormAnswer(**(_here(asked) if python.own else submitting.ask(python, _MODULE, asked, folder, seconds)))


def _beside(root: Path, notebook: str) -> Path:
    """Return the folder of a notebook, where its kernel works."""
    folder = (root / notebook).parent
    return folder if folder.is_dir() else root


_MODULE = "distdl_jupyter.form"


def _here(asked: dict[str, Any]) -> dict[str, Any]:
    from distdl_jupyter.form.answer import Question, answer

    return answer(Question(**asked))
