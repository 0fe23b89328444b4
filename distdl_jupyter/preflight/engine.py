"""Runs all checks and advice rules on a job that is about to start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distdl_jupyter.core.errors import LEVELS, Check, Finding, InvalidSpec
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.preflight import advice, files, machines
from distdl_jupyter.preflight.advice import Advice, PastJob, Request, RuleInput
from distdl_jupyter.worker.frames import deep_recursion

if TYPE_CHECKING:
    from distdl_jupyter.azure import VmSize
    from distdl_jupyter.capture.captured_code import CapturedCode


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All checks in display order."""

    checks: tuple[Check, ...]

    @property
    def findings(self) -> list[Finding]:
        """All findings, errors first."""
        findings = [finding for check in self.checks for finding in check.findings]
        return sorted(findings, key=lambda finding: LEVELS.index(finding.level))

    def format_summary(self) -> str:
        """Return one line: ``All 6 checks passed``, ``4 of 6 checks passed, 1 error, 1 warning``."""
        passed = sum(check.passed for check in self.checks)
        if passed == len(self.checks):
            return f"All {passed} checks passed"
        counts = [(sum(f.level == level for f in self.findings), level) for level in LEVELS[:2]]
        problems = ", ".join(plural(count, level) for count, level in counts if count)
        return f"{passed} of {len(self.checks)} checks passed, {problems}"


def report(draft: CapturedCode, spec: JobSpec) -> CheckReport:
    """Return the result of every check."""
    with deep_recursion():
        return CheckReport(tuple(_run_checks(draft, spec)))


def _run_checks(draft: CapturedCode, spec: JobSpec) -> Iterator[Check]:
    from distdl_jupyter.preflight import names, training  # lazy: the server gives advice without these

    code = draft.analysis
    backend = training.find_backend(spec)
    checks: list[Check | None] = [
        names.check_names(draft, spec),
        names.check_values(draft),
        training.check_calls(draft),
        training.check_processes(code, spec),
    ]
    if backend is not None:
        checks += [
            training.check_backend(code, draft, spec, backend),
            training.check_gradients(code, spec, backend.usage),
            training.check_data(code, draft, spec, backend.usage),
        ]
    checks += [files.check_sources(code, spec), files.check_files(code, spec)]
    if backend is not None:
        checks += backend.checks(code, spec)
    yield from (check for check in checks if check is not None)


def check(draft: CapturedCode, spec: JobSpec) -> list[Finding]:
    """Return the findings, errors first; ``raise_errors`` raises if there are errors."""
    return report(draft, spec).findings


def raise_errors(findings: Iterable[Finding]) -> None:
    """Raise InvalidSpec with all errors in the findings, and each remedy once."""
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise InvalidSpec(
            " ".join(finding.text for finding in errors),
            code=errors[0].code,
            field=errors[0].code,
            hint=" ".join(dict.fromkeys(finding.remedy for finding in errors)).strip(),
        )


#: The most expensive problems first: jobs that cannot start, wasted machines, wasted runs, then other information.
RULES: tuple[Callable[[RuleInput], Advice | None], ...] = (
    machines.check_retired_size,
    machines.prefer_one_machine,
    machines.check_gpu_count,
    advice.check_checkpoints,
    advice.check_time_limit,
    advice.suggest_search_jobs,
    advice.check_job_size,
    advice.suggest_learning_rate,
    machines.check_core_count,
    machines.check_local_disk,
)


def advise(request: Request, catalogue: Sequence[VmSize], history: Sequence[PastJob] = ()) -> list[Advice]:
    """Return the advice on ``request``, most expensive problems first."""
    case = RuleInput(request, catalogue, history)
    return [item for rule in RULES if (item := rule(case)) is not None]
