"""Runs all checks over a draft and what is asked for."""

from __future__ import annotations

from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.preflight import files, names, reading, sources, training
from distdl_jupyter.preflight.model import CapturedCode, Check, Finding, Report


def report(draft: CapturedCode, spec: JobSpec) -> Report:
    """Return every check with what it saw."""
    code = reading.read(draft)
    backend = training.chosen(spec)
    checks: list[Check | None] = [
        names.names(draft, spec),
        names.captured_values(draft),
        training.called(draft),
        training.processes(code, spec),
    ]
    if backend is not None:
        checks += [
            training.backend(code, draft, spec, backend),
            training.gradients(code, spec, backend.usage),
            training.data(code, draft, spec, backend.usage),
        ]
    checks += [sources.sources(code, spec), files.files(code, spec)]
    if backend is not None:
        checks += backend.checks(code, draft, spec)
    return Report(tuple(check for check in checks if check is not None))


def check(draft: CapturedCode, spec: JobSpec) -> list[Finding]:
    """Return what was found, errors first; the caller refuses to start when there is one."""
    return report(draft, spec).findings
