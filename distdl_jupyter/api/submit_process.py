"""``python -m distdl_jupyter.api.submit_process``: submit source text as a job of this Python for another process.

Standard input holds one JSON object: ``code``, ``name``, ``notebook`` (path of its file, "" for none) and ``options``
of ``submit``, for a sweep also ``parameters`` and the other arguments of ``sweep``. Secret environment variables are
sent only this way. The last line on standard output is ``{"id": ...}``, or ``{"error": {"type", "message",
"code", "hint", "field", "output"}}`` with the class of ``core.errors``. The job works in the current directory.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import errors, limits, store
from distdl_jupyter.core.errors import DistDLError, InvalidSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.studies.sweeps import Sweep


def submit_source(
    code: str, *, name: str = "", notebook: str = "", options: Mapping[str, Any] | None = None, check: bool = False
) -> Job:
    """Run ``code`` as a cell on every rank and return the job's handle; with ``check`` it is the first run of a check.

    Raises InvalidSpec, also for code that is no Python, and PluginUnavailable, LaunchFailed.
    """
    from distdl_jupyter.jobs import client

    draft = _captured(code, {}, notebook)
    job_options = {**(options or {}), **({"name": name} if name else {})}
    if not check:
        return client.launch(draft, **job_options)
    from distdl_jupyter.studies import correctness

    return correctness.start(draft, **job_options)


def sweep_source(
    code: str, parameters: str, *, name: str = "", notebook: str = "", options: Mapping[str, Any] | None = None,
    **plan: Any,
) -> Sweep:  # fmt: skip
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
    return sweeps.of_draft(
        draft, varied, **{key: argument for key, argument in plan.items() if argument not in (None, "")}, **job_options
    )


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


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response to a request, which is written to standard output."""
    try:
        return {"id": (sweep_source if "parameters" in request else submit_source)(**request).id}
    except DistDLError as error:
        return {"error": error.to_json()}
    except OSError as error:
        return {"error": limits.disk_refusal(error, store.home()).to_json()}


def error_from(body: Mapping[str, str]) -> DistDLError:
    """Return the error of an ``answer``, of its own class; LaunchFailed for an unknown class."""
    kind = getattr(errors, body.get("type", ""), None)
    if not (isinstance(kind, type) and issubclass(kind, DistDLError)):
        kind = errors.LaunchFailed
    error = kind(body.get("message", ""), code=body.get("code", ""), hint=body.get("hint", ""))
    for name in ("field", "output"):
        if hasattr(error, name):
            setattr(error, name, body.get(name, ""))
    return error


def main() -> None:
    """Read a request, submit it and write the response."""
    print(json.dumps(answer(json.load(sys.stdin))), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
