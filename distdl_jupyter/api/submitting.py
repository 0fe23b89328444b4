"""Source text as a job, started by the Python that shall run it: that of a kernel, else the server's own.

A process of that Python captures and checks, so that what it finds out about installed packages is true of the
environment in which the ranks run, and the job works in the notebook's folder as it would from a kernel.
"""

from __future__ import annotations

import json
import os
import shutil
import string
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from distdl_jupyter.api import submit_process
from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed, PluginUnavailable
from distdl_jupyter.core.machine import requirement
from distdl_jupyter.views.wire import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.api.call import Context
    from distdl_jupyter.api.jobs import NewJob
    from distdl_jupyter.api.sweeps import NewSweep

#: Lines of what a Python said before it failed.
_LAST_LINES = 15
#: Seconds between two looks whether somebody still waits for an answer.
_TICK = 0.1


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python with the environment variables that its kernel sets; ``name`` is for people."""

    name: str
    python: str
    environment: Mapping[str, str]

    @property
    def own(self) -> bool:
        """Whether it is the server's own, in the server's own environment."""
        return self.python == sys.executable and not self.environment


def interpreter(kernel_name: str, specs: Any) -> Interpreter:
    """Return the Python of a kernel, by the manager of kernel specs; "" is the server's own. Raises InvalidSpec."""
    if not kernel_name:
        return Interpreter("this server", sys.executable, {})
    try:
        spec = specs.get_kernel_spec(kernel_name)
    except Exception:  # noqa: BLE001 - NoSuchKernel, or whatever a foreign manager of kernels says
        there = ", ".join(sorted(specs.find_kernel_specs())) or "none"
        raise InvalidSpec(
            f"Unknown kernel {kernel_name!r}. Use one of: {there}.", code="kernel-unknown", field="kernel_name"
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
    # Jupyter starts these words with the server's own Python too.
    server_names = {"python", f"python{sys.version_info[0]}", f"python{sys.version_info[0]}.{sys.version_info[1]}"}
    return sys.executable if first in server_names else shutil.which(first)


def start(context: Context, source: NewJob | NewSweep) -> str:
    """Start the job, or the sweep, that a page asks for, and return its id.

    It is started even if the page closes: the user has clicked Submit and wants the job. Raises InvalidSpec,
    PluginUnavailable, LaunchFailed.
    """
    check_code(source.code, context.max_code_bytes)
    python = interpreter(source.kernel_name, context.kernel_specs)
    notebook = beside(context.root, source.notebook)
    request = {name: value for name, value in to_json(source).items() if name != "kernel_name"}
    request["notebook"] = str(notebook or "")
    folder = notebook.parent if notebook else context.root
    answer = ask(python, submit_process.__name__, request, folder, context.submit_seconds)
    return str(answer["id"])


def beside(root: Path, path: str) -> Path | None:
    """Return the notebook or script that the text is from, None for "". Raises InvalidSpec when not below the root."""
    if not path:
        return None
    root = root.resolve()
    try:
        file = (root / path.lstrip("/")).resolve()
        good = file.is_relative_to(root) and file.suffix in (".ipynb", ".py") and file.parent.is_dir()
    except (OSError, ValueError, RuntimeError):
        good = False
    if not good:
        raise InvalidSpec(
            "The notebook or script does not exist in the server's folder.", code="notebook-unknown", field="notebook"
        )
    return file


def check_code(code: str, most: int) -> None:
    """Raise InvalidSpec for a text of more than ``most`` bytes: to read Python takes seconds of a core a megabyte."""
    size = len(code.encode("utf-8", "surrogatepass"))
    if size > most:
        raise InvalidSpec(
            f"The code has {size:,} bytes, but the limit of this server is {most:,}.",
            code="code-too-long",
            field="code",
            hint="Move long parts into a module or a file in the notebook's folder.",
        )


def ask(
    python: Interpreter, module: str, request: Any, folder: Path, seconds: float, gone: Event | None = None
) -> dict[str, Any]:
    """Let ``python -m module`` answer a request in a folder: JSON on standard input, a JSON object as the last line.

    The process ends when it takes longer than ``seconds``, and when nobody waits any more: ``gone`` is set. Raises the
    error that the answer tells of, PluginUnavailable where this package is missing, and LaunchFailed.
    """
    try:
        with subprocess.Popen(
            [python.python, "-P", "-m", module], cwd=folder, env={**os.environ, **python.environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            output, mistakes = _conversed(process, json.dumps(request), seconds, gone or Event())
        answer = json.loads(output.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        raise LaunchFailed(
            f"The Python of {python.name} did not respond within {seconds:g} s.", code="kernel-python-silent"
        ) from None
    except OSError as error:
        raise limits.launch_failed(f"The Python of {python.name} cannot be started", error) from None
    except ValueError:
        raise _silent(python, mistakes) from None
    assert isinstance(answer, dict)
    if "error" in answer:
        raise submit_process.error_from(answer["error"])
    return answer


def _conversed(process: subprocess.Popen[str], text: str, seconds: float, gone: Event) -> tuple[str, str]:
    """Return what the process says to the text; one that is still silent is killed. Raises TimeoutExpired."""
    to_send: str | None = text
    until = time.monotonic() + seconds
    try:
        while True:
            try:
                return process.communicate(to_send, timeout=_TICK)
            except subprocess.TimeoutExpired:
                to_send = None  # it has taken that already
                if gone.is_set() or time.monotonic() > until:
                    raise
    finally:
        process.kill()


def _silent(python: Interpreter, stderr: str) -> PluginUnavailable | LaunchFailed:
    if "No module named" in stderr and "distdl_jupyter" in stderr:
        return PluginUnavailable(
            f"The Python of {python.name} does not have this version of distdl_jupyter.",
            code="kernel-without-package",
            hint=f"Run: {python.python} -m pip install --upgrade {requirement()}",
        )
    output = "\n".join(stderr.strip().splitlines()[-_LAST_LINES:])
    return LaunchFailed(f"The Python of {python.name} failed.", code="kernel-python-failed", output=output)
