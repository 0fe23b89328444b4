"""Runs all checks over a draft and what is asked for."""

from __future__ import annotations

from distdl_jupyter.preflight import files, names, reading, sources, training
from distdl_jupyter.preflight.model import Check, Draft, Finding, Report, Request


def report(draft: Draft, request: Request) -> Report:
    """Return every check with what it saw. A JobSpec is a request."""
    code = reading.read(draft)
    backend = training.chosen(request)
    checks: list[Check | None] = [names.names(draft), names.captured_values(draft)]
    if backend is not None:
        checks += [
            training.backend(code, draft, request, backend),
            training.gradients(code, request, backend.usage),
            training.data(code, draft, request, backend.usage),
        ]
    checks += [sources.sources(code, request), files.files(code, request)]
    if backend is not None:
        checks += backend.checks(code, draft, request)
    return Report(tuple(check for check in checks if check is not None))


def check(draft: Draft, request: Request) -> list[Finding]:
    """Return what was found, errors first; the caller refuses to start when there is one."""
    return report(draft, request).findings
