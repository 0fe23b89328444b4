"""Runs all checks over a draft and what is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.preflight import files, names, reading, sources, training
from distdl_jupyter.preflight.model import CapturedCode, Check, Finding, Report
from distdl_jupyter.worker.recursion import deep_recursion


def report(draft: CapturedCode, spec: JobSpec) -> Report:
    """Return every check with what it saw."""
    with deep_recursion():
        return Report(tuple(_checks(draft, spec)))


def _checks(draft: CapturedCode, spec: JobSpec) -> Iterator[Check]:
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
    yield from (check for check in checks if check is not None)


def check(draft: CapturedCode, spec: JobSpec) -> list[Finding]:
    """Return what was found, errors first; ``refuse`` raises when there is one."""
    return report(draft, spec).findings


def refuse(findings: Iterable[Finding]) -> None:
    """Raise InvalidSpec with all errors among the findings, and each remedy once."""
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise InvalidSpec(
            " ".join(finding.text for finding in errors),
            code=errors[0].code,
            field=errors[0].code,
            hint=" ".join(dict.fromkeys(finding.remedy for finding in errors)).strip(),
        )
