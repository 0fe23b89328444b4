"""``python -m distdl_jupyter.api.submit_process``: submit source text, or compute its launch form, for a server.

Standard input holds a call as JSON, ``{"ask": "submit" or "form", "given": arguments}``. Secret environment variables
are sent only this way. The last line on standard output is the answer of ``views.wire.answer``: ``value``, or
``error`` with the class of ``core.errors``. The job works in the current directory.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import errors, files, store
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.views import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.form.schema import FormState
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.studies.sweeps import Sweep

#: Seconds that a form waits for a remote cluster; a later request would start over.
_CLUSTER_TIMEOUT = 5.0


def submit_source(
    code: str, *, name: str = "", notebook: str = "", options: Mapping[str, Any] | None = None, check: bool = False
) -> Job:
    """Run ``code`` as a cell on every rank and return the job's handle; with ``check`` it is the first run of a check.

    Raises InvalidSpec, also for code that is not Python, and PluginUnavailable, LaunchFailed.
    """
    from distdl_jupyter.jobs import client

    draft = _captured(code, {}, notebook)
    job_options = {**(options or {}), **({"name": name} if name else {})}
    if not check:
        return client.launch(draft, **job_options)
    from distdl_jupyter.studies import correctness

    return correctness.start(draft, **job_options)


def sweep_source(
    code: str,
    parameters: str,
    *,
    name: str = "",
    notebook: str = "",
    options: Mapping[str, Any] | None = None,
    **plan: Any,
) -> Sweep:
    """Run ``code`` many times as a cell with different values of ``parameters`` and return the sweep.

    ``plan`` has the arguments of ``sweep`` besides the options of its trials; None and "" are the defaults. Raises
    what ``submit_source`` raises.
    """
    from distdl_jupyter.core import space
    from distdl_jupyter.studies import sweeps

    varied, rest = space.of_line(parameters)
    if rest.strip():
        raise InvalidSpec(
            f"Cannot parse {rest.split()[0]}.",
            code="sweep-line-unreadable",
            field="parameters",
            hint="Write NAME=VALUES, such as width=64,128.",
        )
    draft = _captured(code, space.sample(varied), notebook)
    job_options = {**(options or {}), **({"name": name} if name else {})}
    plan = {key: argument for key, argument in plan.items() if argument not in (None, "")}
    return sweeps.of_draft(draft, varied, **plan, **job_options)


def _captured(code: str, names: Mapping[str, Any], notebook: str) -> CapturedCode:
    from distdl_jupyter import capture

    if not code.strip():
        raise InvalidSpec("There is no code to run.", code="no-code", field="code")
    try:
        return capture.capture_cell(code, names, notebook=notebook, first_line=1)
    except SyntaxError as error:
        raise InvalidSpec(
            f"Line {error.lineno} is not valid Python: {error.msg}.", code="code-syntax", field="code"
        ) from None


def submit(**source: Any) -> str:
    """Start a job, or a sweep if the source text has parameters, and return its id."""
    try:
        return (sweep_source if "parameters" in source else submit_source)(**source).id
    except OSError as error:
        raise files.disk_refusal(error, store.home()) from None


def form(request: object, directory: str) -> FormState:
    """Return the form of a text as this Python would run it."""
    from dataclasses import replace

    from distdl_jupyter.form.schema import FormRequest
    from distdl_jupyter.form.state import cell_state

    state = cell_state(wire.from_data(FormRequest, request), directory=directory, timeout=_CLUSTER_TIMEOUT)
    # The cluster is no longer polled after this process has ended.
    return replace(state, place=state.place and replace(state.place, looking=False))


def error_from(body: Mapping[str, str]) -> DistDLError:
    """Return the error of an answer, of its own class; LaunchFailed for an unknown class."""
    kind = getattr(errors, body.get("type", ""), None)
    if not (isinstance(kind, type) and issubclass(kind, DistDLError)):
        kind = errors.LaunchFailed
    error = kind(body.get("message", ""), code=body.get("code", ""), hint=body.get("hint", ""))
    for name in ("field", "output"):
        if hasattr(error, name):
            setattr(error, name, body.get(name, ""))
    return error


if __name__ == "__main__":
    answer = wire.answer({"submit": submit, "form": form}, json.load(sys.stdin))
    print(json.dumps(answer), flush=True)  # noqa: T201 - the answer
