"""HTTP API for source text: jobs, sweeps and the launch form. A process of the Python that will run the code parses it.

This process sees the packages of the environment in which the ranks run, and the job works in the notebook's folder as
if it was started from a kernel. It uses the Python of a kernel, else that of the server.
"""

from __future__ import annotations

import json
import os
import shutil
import string
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import field

from distdl_jupyter.api import submit_process
from distdl_jupyter.api.call import Context, post
from distdl_jupyter.api.jobs import row_of
from distdl_jupyter.api.sweeps import sweep
from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed, PluginUnavailable
from distdl_jupyter.core.machine import requirement
from distdl_jupyter.form.schema import FormRequest, FormState
from distdl_jupyter.jobs import client
from distdl_jupyter.views.job_table import JobRow
from distdl_jupyter.views.sweep import SweepPanel
from distdl_jupyter.views.wire import PageRequest, to_json

#: Number of last error lines of a failed Python that are reported.
_LAST_LINES = 15
#: Seconds between two checks whether the page still waits.
_TICK = 0.1
#: Characters of a text up to which the server computes its form itself, in less than half a second.
_SHORT = 20_000


class SourceText(PageRequest, frozen=True, kw_only=True):
    """Source text to run as a cell on every rank; ``options`` are those of ``submit``, under any of their names.

    ``notebook`` is the path of a notebook or script below the server's root: the job works in its folder, and modules
    beside it are copied. ``kernel_name`` chooses the Python; without one it is that of the server.
    """

    code: str
    name: str = ""
    notebook: str = ""
    kernel_name: str = ""
    options: dict[str, Any] = field(default_factory=dict)


class NewJob(SourceText, frozen=True, kw_only=True):
    """Source text as a job; with ``check`` it is the first run of a check (``/jobs/{id}/check``)."""

    check: bool = False


class NewSweep(SourceText, frozen=True, kw_only=True):
    """Source text as the trials of a sweep; null and "" are the defaults.

    ``parameters`` is the search space as on a magic line: ``lr=loguniform(1e-4,1e-1) width=64,128``; each is a name
    that the code uses but does not set, or a flag that it accepts.
    """

    parameters: str
    trials: int | None = None
    metric: str = ""
    maximize: bool | None = None
    parallel: int | None = None
    sampler: str = ""
    pruner: str = ""
    prune_after: int | None = None
    seed: int | None = None


@post("/jobs", status=201, action="execute", slow=True, refuses=(424, 502, 507))
def submit(context: Context, body: NewJob) -> JobRow:
    """Run source text as a cell on every rank."""
    submitted = client.attach(_start(context, body))
    if body.check:
        from distdl_jupyter.studies import correctness  # a server that only shows jobs does not need it

        correctness.finish_later(submitted)
    return row_of(submitted)


@post("/sweeps", status=201, action="execute", slow=True, refuses=(424, 502, 507))
def start_sweep(context: Context, body: NewSweep) -> SweepPanel:
    """Run source text many times with different values, and find the best."""
    return sweep(_start(context, body)).panel


def _start(context: Context, source: NewJob | NewSweep) -> str:
    """Start the job, or the sweep, and return its id; it is started even if the page closes meanwhile."""
    check_code(context, source.code)
    python = interpreter(context, source.kernel_name)
    notebook = beside(context.root, source.notebook)
    request = {name: value for name, value in to_json(source).items() if name != "kernel_name"}
    folder = notebook.parent if notebook else context.root
    return str(ask(python, "submit", {**request, "notebook": str(notebook or "")}, folder, context.submit_seconds))


@post("/form", action="execute", slow=True, refuses=(424, 502))
def form(context: Context, gone: threading.Event, body: FormRequest) -> FormState:
    """Return the form for a source text and the choices so far.

    A kernel that is free computes the form of its notebook itself, with the notebook's names. This is for a kernel
    that is busy or not started, and for text without a notebook.
    """
    check_code(context, body.code)
    python = interpreter(context, body.kernel_name)
    if gone.is_set():
        raise LaunchFailed("The page has closed or has sent a newer request.", code="page-gone")
    # Only the kernel knows what a notebook's cell uses from beside it: here the notebook is only a name.
    path = beside(context.root, body.notebook) if body.own else None
    request = msgspec.structs.replace(body, notebook=str(path or body.notebook))
    folder = path.parent if path else context.root
    directory = str(path.parent if path else _folder_of(context.root, body.notebook))
    if python.is_server and len(request.code) < _SHORT:
        from distdl_jupyter.form.state import cell_state

        return cell_state(request, directory=directory)
    # A long text is read by a process, because reading it would delay the requests of others. The answer has the
    # fields of a FormState.
    about = {"request": to_json(request), "directory": directory}
    return ask(python, "form", about, folder, context.form_seconds, gone)  # type: ignore[no-any-return]


def _folder_of(root: Path, notebook: str) -> Path:
    """Return the folder of a notebook, where its kernel works; the root for one that is not below it."""
    folder = (root / notebook.lstrip("/")).resolve().parent
    return folder if folder.is_relative_to(root.resolve()) and folder.is_dir() else root


def beside(root: Path, path: str) -> Path | None:
    """Return the notebook or script that the text is from, None for "". Raises InvalidSpec when not below the root."""
    if not path:
        return None
    root = root.resolve()
    try:
        file = (root / path.lstrip("/")).resolve()
        if file.is_relative_to(root) and file.suffix in (".ipynb", ".py") and file.parent.is_dir():
            return file
    except (OSError, ValueError, RuntimeError):
        pass
    raise InvalidSpec(
        "The notebook or script does not exist in the server's folder.", code="notebook-unknown", field="notebook"
    )


def check_code(context: Context, code: str) -> None:
    """Raise InvalidSpec for a text that is too long, because parsing takes seconds of CPU time per megabyte."""
    size = len(code.encode("utf-8", "surrogatepass"))
    if size > context.max_code_bytes:
        raise InvalidSpec(
            f"The code has {size:,} bytes, but the limit of this server is {context.max_code_bytes:,}.",
            code="code-too-long",
            field="code",
            hint="Move long parts into a module or a file in the notebook's folder.",
        )


# The Python that reads the text -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python with the environment variables that its kernel sets; ``name`` is for people."""

    name: str
    python: str
    variables: Mapping[str, str]

    @property
    def is_server(self) -> bool:
        """Whether it is the server's Python in the server's environment."""
        return self.python == sys.executable and not self.variables


def interpreter(context: Context, kernel_name: str) -> Interpreter:
    """Return the Python of a kernel; "" is the server's own. Raises InvalidSpec."""
    if not kernel_name:
        return Interpreter("this server", sys.executable, {})
    try:
        spec = context.kernel_specs.get_kernel_spec(kernel_name)
    except Exception:  # noqa: BLE001 - NoSuchKernel, or whatever a third-party manager of kernels raises
        names = ", ".join(sorted(context.kernel_specs.find_kernel_specs())) or "none"
        raise InvalidSpec(
            f"Unknown kernel {kernel_name!r}. Use one of: {names}.", code="kernel-unknown", field="kernel_name"
        ) from None
    python = _python(spec)
    if python is None:
        raise InvalidSpec(
            f"The kernel {kernel_name} does not use a Python on this machine, so it cannot run jobs.",
            code="kernel-not-python",
            field="kernel_name",
            hint="Choose an ipykernel kernel.",
        )
    variables = {k: string.Template(v).safe_substitute(os.environ) for k, v in (spec.env or {}).items()}
    return Interpreter(f"the kernel {kernel_name}", python, variables)


def _python(spec: Any) -> str | None:
    first = spec.argv[0] if spec.argv else ""
    if str(spec.language).lower() != "python" or not Path(first).name.startswith("python"):
        return None
    # Jupyter starts these names with the server's own Python too.
    server_names = {"python", f"python{sys.version_info[0]}", f"python{sys.version_info[0]}.{sys.version_info[1]}"}
    return sys.executable if first in server_names else shutil.which(first)


def ask(
    python: Interpreter,
    name: str,
    arguments: Mapping[str, Any],
    folder: Path,
    seconds: float,
    gone: threading.Event | None = None,
) -> Any:
    """Run a call of ``submit_process`` in a folder with a Python, and return its value.

    The process is killed after ``seconds``, and when ``gone`` is set. Raises the error of the call, PluginUnavailable
    if this package is missing there, and LaunchFailed.
    """
    text: str | None = json.dumps({"ask": name, "given": arguments})
    until = time.monotonic() + seconds
    try:
        with subprocess.Popen(
            [python.python, "-P", "-m", submit_process.__name__],
            cwd=folder,
            env={**os.environ, **python.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                while process.returncode is None:
                    try:
                        output, errors = process.communicate(text, timeout=_TICK)
                    except subprocess.TimeoutExpired:
                        text = None  # it was sent
                        if time.monotonic() > until or (gone is not None and gone.is_set()):
                            raise
            finally:
                process.kill()
        answer = json.loads(output.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        raise LaunchFailed(
            f"The Python of {python.name} did not respond within {seconds:g} s.", code="kernel-python-silent"
        ) from None
    except OSError as error:
        raise limits.launch_failed(f"The Python of {python.name} cannot be started", error) from None
    except ValueError:
        raise _failure(python, errors) from None
    if "error" in answer:
        raise submit_process.error_from(answer["error"])
    return answer["value"]


def _failure(python: Interpreter, errors: str) -> PluginUnavailable | LaunchFailed:
    if "No module named" in errors and "distdl_jupyter" in errors:
        return PluginUnavailable(
            f"The Python of {python.name} does not have this version of distdl_jupyter.",
            code="kernel-without-package",
            hint=f"Run: {python.python} -m pip install --upgrade {requirement()}",
        )
    output = "\n".join(errors.strip().splitlines()[-_LAST_LINES:])
    return LaunchFailed(f"The Python of {python.name} failed.", code="kernel-python-failed", output=output)
