"""Runs all checks over a draft and what is asked for."""

from __future__ import annotations

from distdl_jupyter.preflight import elastic, files, machine, names, reading, sources, training
from distdl_jupyter.preflight.model import Check, Draft, Finding, Report, Request


def report(draft: Draft, request: Request) -> Report:
    """Return every check with what it saw. A JobSpec is a request."""
    code = reading.read(draft)
    checks: list[Check | None] = [
        names.names(draft),
        names.captured_values(draft),
        training.backend(code, draft, request),
        elastic.elastic(code, request),
        training.gradients(code, request),
        training.data(code, draft, request),
        sources.sources(code, request),
        files.files(code, request),
        machine.kernel_memory(),
        machine.cuda(code, request),
        machine.horovod_build(code, request),
        machine.keras(code, request),
        machine.keras_fit(code, draft, request),
    ]
    return Report(tuple(check for check in checks if check is not None))


def check(draft: Draft, request: Request) -> list[Finding]:
    """Return what was found, errors first; the caller refuses to start when there is one."""
    return report(draft, request).findings
