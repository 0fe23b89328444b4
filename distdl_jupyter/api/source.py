"""HTTP API for source text: jobs, sweeps and the launch form. The text is parsed by the Python that will run it.

That process has the packages of the ranks' environment, and the job runs in the notebook's folder as if a kernel had
started it. The Python is that of the named kernel, otherwise the server's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import string
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
from msgspec import field

from distdl_jupyter.api.endpoint import ServerContext, post
from distdl_jupyter.api.jobs import find_sweep, read_row
from distdl_jupyter.core import errors, machine
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, LaunchFailed, PluginUnavailable
from distdl_jupyter.core.machine import get_requirement
from distdl_jupyter.form.schema import FormRequest, FormState
from distdl_jupyter.jobs import client
from distdl_jupyter.views.job_table import JobRow
from distdl_jupyter.views.sweep import SweepPanel
from distdl_jupyter.views.wire import PageRequest, to_json

#: Maximum number of stderr lines to report when a process fails.
_MAX_ERROR_LINES = 15
#: Maximum number of characters that the server parses in its own process, which takes less than half a second.
_MAX_LOCAL_CHARACTERS = 20_000


class SourceText(PageRequest, frozen=True, kw_only=True):
    """Source text to run as a cell on every rank. ``options`` are those of ``submit``, under any of their names.

    ``notebook`` is the path of a notebook or script below the server's root: the job runs in its folder, and modules
    next to it are copied. ``kernel_name`` selects the Python (default: the server's).
    """

    code: str
    notebook: str = ""
    kernel_name: str = ""
    options: dict[str, Any] = field(default_factory=dict)


class NewJob(SourceText, frozen=True, kw_only=True):
    """Source text to run as a job, or with ``check`` as the first run of a check (``/jobs/{id}/check``)."""

    check: bool = False


class NewSweep(SourceText, frozen=True, kw_only=True):
    """Source text to run as the trials of a sweep; ``options`` may also contain arguments of the sweep.

    ``parameters`` is the search space as on a magic line: ``lr=loguniform(1e-4,1e-1) width=64,128``; each is a name
    that the code uses but does not set, or a flag that it accepts.
    """

    parameters: str


@post("/jobs", status=201, action="execute", slow=True)
def submit(context: ServerContext, body: NewJob) -> JobRow:
    """Run source text as a cell on every rank."""
    job = client.attach(_start(context, body))
    if body.check:
        from distdl_jupyter.studies import correctness  # captures code, which a server needs only here

        correctness.finish_later(job)
    return read_row(job)


@post("/sweeps", status=201, action="execute", slow=True)
def start_sweep(context: ServerContext, body: NewSweep) -> SweepPanel:
    """Run source text many times with different values, and find the best."""
    return find_sweep(_start(context, body)).panel


def _start(context: ServerContext, source: NewJob | NewSweep) -> str:
    """Start the job or sweep and return its id. A client that disconnects does not cancel the start."""
    python, notebook, folder = _prepare(context, source)
    fields = {**to_json(source), "notebook": str(notebook or "")}
    del fields["kernel_name"]
    return str(_run_process(python, "submit", fields, folder, context.submit_timeout))


@post("/form", action="execute", slow=True)
def compute_form(context: ServerContext, disconnected: Future[None], body: FormRequest) -> FormState:
    """Return the launch form for a source text and the values entered so far.

    An idle kernel computes the form of its notebook itself, with the notebook's names. This endpoint is for a kernel
    that is busy or has not started, and for text without a notebook.
    """
    python, notebook, folder = _prepare(context, body, notebook_required=body.standalone)
    if body.standalone:
        # Only the kernel can find the modules that a notebook's cell uses, so the form gets only the notebook's name.
        body = msgspec.structs.replace(body, notebook=str(notebook or ""))
    if python == (sys.executable, {}) and len(body.code) < _MAX_LOCAL_CHARACTERS:
        from distdl_jupyter.form.state import compute_cell_form  # captures code, which a server needs only here

        return compute_cell_form(body, directory=str(folder))
    # A separate process parses a long text, because parsing it here would delay other requests. It returns the fields
    # of a FormState.
    return _run_process(python, "form", to_json(body), folder, context.form_timeout, disconnected)  # type: ignore[no-any-return]


def _prepare(
    context: ServerContext, source: SourceText | FormRequest, *, notebook_required: bool = True
) -> tuple[tuple[str, dict[str, str]], Path | None, Path]:
    """Return the Python for a text and its environment variables, the text's notebook, and the folder to run in.

    Raises InvalidSpec, also for a text that is too long, because parsing takes seconds of CPU time per megabyte.
    """
    size = len(source.code.encode("utf-8", "surrogatepass"))
    if size > context.max_code_bytes:
        raise InvalidSpec(
            f"The code has {size:,} bytes, but the limit of this server is {context.max_code_bytes:,}.",
            code="code-too-long",
            field="code",
            hint="Move long parts into a module or a file in the notebook's folder.",
        )
    notebook = None
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        file = (context.root / source.notebook.lstrip("/")).resolve()
        if file.is_relative_to(context.root.resolve()) and file.suffix in (".ipynb", ".py") and file.parent.is_dir():
            notebook = file
    if notebook is None and source.notebook and notebook_required:
        message = "The notebook or script does not exist in the server's folder."
        raise InvalidSpec(message, code="notebook-unknown", field="notebook")
    return _find_python(context, source.kernel_name), notebook, notebook.parent if notebook else context.root


def _find_python(context: ServerContext, kernel_name: str) -> tuple[str, dict[str, str]]:
    """Return the Python of a kernel (default: the server's) and its environment variables. Raises InvalidSpec."""
    if not kernel_name:
        return sys.executable, {}
    path = None
    with contextlib.suppress(Exception):  # NoSuchKernel, or any error of a third-party kernel manager
        spec = context.kernel_specs.get_kernel_spec(kernel_name)
        program = spec.argv[0]
        if spec.language.lower() == "python" and Path(program).name.startswith("python"):
            # Jupyter also starts kernels with these program names in the server's Python.
            major, minor = sys.version_info[:2]
            is_server_python = program in ("python", f"python{major}", f"python{major}.{minor}")
            path = sys.executable if is_server_python else shutil.which(program)
    if path is None:
        raise InvalidSpec(
            f"{kernel_name!r} is not a Python kernel on this machine, so it cannot run jobs.",
            code="kernel-not-python",
            field="kernel_name",
            hint="Select an ipykernel kernel that is installed on this machine.",
        )
    return path, {name: string.Template(text).safe_substitute(os.environ) for name, text in (spec.env or {}).items()}


def _run_process(
    python: tuple[str, dict[str, str]],
    function: str,
    arguments: Mapping[str, Any],
    folder: Path,
    timeout: float,
    disconnected: Future[None] | None = None,
) -> Any:
    """Call a function of ``submit_process`` in a process of this Python in a folder, and return its value.

    The process is killed after ``timeout`` seconds, and when ``disconnected`` is done. Raises the function's error,
    PluginUnavailable if this Python does not have this package, and LaunchFailed.
    """
    path, variables = python
    try:
        with subprocess.Popen(
            [path, "-P", "-m", "distdl_jupyter.api.submit_process"],
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            if disconnected is not None:
                disconnected.add_done_callback(lambda _: process.kill())
            try:
                request = json.dumps({"call": function, "arguments": arguments})
                output, error_output = process.communicate(request, timeout)
            finally:
                process.kill()
        response = json.loads(output.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        raise LaunchFailed(f"{path} did not respond within {timeout:g} s.", code="kernel-python-silent") from None
    except OSError as error:
        raise machine.make_launch_error(f"{path} cannot be started", error) from None
    except ValueError:
        if "No module named" in error_output and "distdl_jupyter" in error_output:
            raise PluginUnavailable(
                f"{path} does not have this version of distdl_jupyter.",
                code="kernel-without-package",
                hint=f"Run: {path} -m pip install --upgrade {get_requirement()}",
            ) from None
        output = "\n".join(error_output.strip().splitlines()[-_MAX_ERROR_LINES:])
        raise LaunchFailed(f"{path} failed.", code="kernel-python-failed", output=output) from None
    if "error" in response:
        raise restore_error(response["error"])
    return response["value"]


def restore_error(body: Mapping[str, str]) -> DistDLError:
    """Return the error that another process reported; its class is LaunchFailed if it is not one of this package."""
    error_class = getattr(errors, body["type"], LaunchFailed)
    error: DistDLError = error_class(body["message"], code=body["code"], hint=body["hint"])
    for name in ("field", "output"):
        if hasattr(error, name):
            setattr(error, name, body[name])
    return error
