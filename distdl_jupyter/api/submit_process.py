"""``python -m distdl_jupyter.api.submit_process``: submit source text, or compute its launch form, for a server.

Standard input contains a request as JSON, ``{"call": "submit" or "form", "arguments": {...}}``, which is the only place
for secret environment variables. The last line of standard output is the response of ``views.wire.handle_request``:
``value`` or ``error``. The job runs in the current directory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from distdl_jupyter import capture
from distdl_jupyter.capture import CapturedCode
from distdl_jupyter.core import files, space, store
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.form.line import parse_search_space
from distdl_jupyter.form.schema import FormRequest, FormState
from distdl_jupyter.form.state import compute_cell_form
from distdl_jupyter.jobs import client
from distdl_jupyter.jobs.client import Job
from distdl_jupyter.studies import correctness, sweeps
from distdl_jupyter.studies.sweeps import Sweep
from distdl_jupyter.views import wire

#: Timeout in seconds for a remote cluster; polling does not continue after the response, because this process ends.
_CLUSTER_SECONDS = 5.0


def submit_source(
    code: str, *, notebook: str = "", options: Mapping[str, Any] | None = None, check: bool = False
) -> Job:
    """Run ``code`` as a cell on every rank and return the job; with ``check``, it is the first run of a check.

    Raises InvalidSpec, also for code that is not valid Python, PluginUnavailable, LaunchFailed.
    """
    start = correctness.start if check else client.launch
    return start(_capture(code, {}, notebook), **(options or {}))


def _capture(code: str, names: Mapping[str, Any], notebook: str) -> CapturedCode:
    if not code.strip():
        raise InvalidSpec("There is no code to run.", code="no-code", field="code")
    try:
        return capture.capture_cell(code, names, notebook=notebook, first_line=1)
    except SyntaxError as error:
        raise InvalidSpec(
            f"Line {error.lineno} is not valid Python: {error.msg}.", code="code-syntax", field="code"
        ) from None


def submit(code: str, *, parameters: str | None = None, **source: Any) -> str:
    """Start a job, or a sweep over ``parameters``, and return its id. Raises the errors of ``submit_source``."""
    try:
        if parameters is None:
            return submit_source(code, **source).id
        return _start_sweep(code, parameters, **source).id
    except OSError as error:
        raise files.make_disk_error(error, store.get_home()) from None


def _start_sweep(code: str, parameters: str, *, notebook: str, options: Mapping[str, Any]) -> Sweep:
    search_space = parse_search_space(parameters)
    draft = _capture(code, space.get_first_values(search_space), notebook)
    return sweeps.sweep_draft(draft, search_space, **options)


def compute_form(**request: Any) -> FormState:
    """Return the launch form of a source text for this Python and the current directory."""
    state = compute_cell_form(wire.from_data(FormRequest, request), directory=str(Path.cwd()), timeout=_CLUSTER_SECONDS)
    # Polling of the cluster ends with this process.
    return replace(state, cluster_status=state.cluster_status and replace(state.cluster_status, pending=False))


if __name__ == "__main__":
    response = wire.handle_request({"submit": submit, "form": compute_form}, json.load(sys.stdin))
    print(json.dumps(response), flush=True)  # noqa: T201 - standard output is the response
