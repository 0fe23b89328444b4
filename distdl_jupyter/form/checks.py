"""The checks of the form before a start: capture, options, a dry run of the plan, and checks of the code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from distdl_jupyter import preflight
from distdl_jupyter.capture import CapturedCode
from distdl_jupyter.clusters.base import Cluster
from distdl_jupyter.core import data, space
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.options import ABOUT
from distdl_jupyter.core.spec import CodeSource, JobSpec
from distdl_jupyter.form.schema import FormCheck, FormChecks, FormValues
from distdl_jupyter.form.target import CodeInfo
from distdl_jupyter.form.values import addresses
from distdl_jupyter.jobs import jobspec

#: Maximum number of ranks in a dry run, which creates a slot for each rank.
_MAX_RANKS = 4096
#: Fields for errors that do not name one.
_DEFAULT_FIELDS = {"cluster-not-usable": "compute_target", "backend-not-usable": "distributed_backend"}


def run(
    code: CodeInfo, values: FormValues, options: Mapping[str, Any], folder: Path, cluster: Cluster | None
) -> FormChecks:
    """Return the results of all checks; local paths are relative to ``folder``."""
    options = {name: value for name, value in options.items() if value is not None}
    checks = {
        name: _run_check(_title(name), partial(about.check, options[name], name))
        for name, about in ABOUT.items()
        if name in options
    }
    if "data" in checks:
        checks["data"] = _run_check("Data", partial(_check_data, values, folder, cluster))
    errors = {name: check for name, check in checks.items() if check.level == "error"}
    plan, spec = _check_plan(code, {name: options[name] for name in options if name not in errors}, folder)
    items = [_to_check("Capture", code.error)] if code.error else []
    items += [*errors.values(), plan, *(checks[name] for name in checks if name == "data" and name not in errors)]
    if values.sweep.strip():
        check = _run_check("Sweep", partial(_check_sweep, values.sweep))
        items.append(replace(check, field="sweep" if check.level == "error" else ""))
    reports = preflight.report(code.draft, spec).checks if code.draft is not None and spec is not None else ()
    count = len(items) + len(reports)
    for report in reports:
        items += [
            FormCheck(report.name, finding.level, finding.text, finding.remedy, "", finding.code)
            for finding in report.findings
        ] or [FormCheck(report.name, "ok", report.result, "", "", report.code)]
    levels = [item.level for item in items]
    return FormChecks(
        level="error" if "error" in levels else "warning" if "warning" in levels else "ok",
        count=count,
        errors=levels.count("error"),
        warnings=levels.count("warning"),
        items=tuple(items),
    )


def _run_check(name: str, check: Callable[[], object]) -> FormCheck:
    """Return the result of a check as text, or the error that it raises."""
    try:
        return FormCheck(name, "ok", str(check()), "", "")
    except DistDLError as error:
        return _to_check(name, error)


def _to_check(name: str, error: DistDLError) -> FormCheck:
    field = getattr(error, "field", "") or _DEFAULT_FIELDS.get(error.code, "")
    return FormCheck(name, "error", error.message, error.hint, field, error.code)


def _title(option: str) -> str:
    return ABOUT[option].label or option.replace("_", " ").capitalize()


def _check_data(values: FormValues, folder: Path, cluster: Cluster | None) -> str:
    """Check the addresses of data as text; their content is checked when the job starts."""
    sources = [data.source(name, address) for name, address in addresses(values.data)]
    if cluster is not None:
        jobspec.data_sources(sources, folder, cluster)
    return plural(len(sources), "source")


def _check_sweep(search_space: str) -> str:
    """Check the search space of a sweep as it was typed."""
    parameters, rest = space.of_line(search_space)
    if rest.strip():
        raise InvalidSpec(
            f"Cannot parse {rest.split()[0]}.",
            code="sweep-unreadable",
            hint="Write NAME=VALUES, such as width=64,128.",
        )
    return f"{listing([*parameters])} can be varied"


def _check_plan(code: CodeInfo, options: Mapping[str, Any], folder: Path) -> tuple[FormCheck, JobSpec | None]:
    """Return the error that Submit would raise before the checks, and the job's spec if it can be created."""
    draft = code.draft or CapturedCode(kind="cell", name=code.name, source=CodeSource())
    draft = replace(draft, payload_json={**draft.payload_json, "working_directory": str(folder)})
    spec: JobSpec | None = None

    def describe() -> str:
        nonlocal spec
        spec, _, run_dry = jobspec.planned(draft, options)
        if spec.process_count <= _MAX_RANKS:
            run_dry()
        return f"{spec.distributed_backend} can run {plural(spec.process_count, 'process')} on {spec.compute_target}"

    check = _run_check("Backend and cluster", describe)
    return replace(check, name=_title(check.field)) if check.field in ABOUT else check, spec
