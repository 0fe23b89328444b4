"""The checks of the form before a start: capture, options, a dry run of the plan, and checks of the code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter import preflight
from distdl_jupyter.core import space
from distdl_jupyter.core.data import blob_place
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.findings import Check
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.options import ABOUT
from distdl_jupyter.core.spec import JobSpec, Source
from distdl_jupyter.form import datarows
from distdl_jupyter.form.schema import FormCheck, FormChecks, FormValues
from distdl_jupyter.jobs import jobspec

if TYPE_CHECKING:
    from distdl_jupyter.clusters.base import Cluster
    from distdl_jupyter.form.target import CodeInfo

#: Maximum number of ranks of a dry run, which creates a slot for each rank.
_MOST_RANKS = 4096
#: Fields for errors that do not name one.
_FIELDS = {"cluster-not-usable": "compute_target", "backend-not-usable": "distributed_backend"}


def gpus() -> int:
    """Return the GPUs of this machine that ranks may use."""
    from distdl_jupyter.core.gpus import visible

    return len(visible())


def run(
    code: CodeInfo, values: FormValues, options: Mapping[str, Any], folder: Path, cluster: Cluster | None
) -> FormChecks:
    """Return the results of all checks; local paths are relative to ``folder``."""
    items = [_refusal("Capture", code.error)] if code.error else []
    data = [*_data(values, folder, cluster), *_outputs(values.outputs.strip())]
    wrong = [item for item in (*_option_errors(options), *data) if item.level == "error"]
    refused = {item.field for item in wrong}
    valid = {name: value for name, value in options.items() if value is not None and name not in refused}
    spec, plan = _plan(code, valid, folder)
    items += [*wrong, plan, *(item for item in data if item.level != "error"), *_sweep(values.sweep)]
    count = len(items)
    if code.draft is not None and spec is not None:
        reports = preflight.report(code.draft, spec).checks
        count += len(reports)
        items += [item for check in reports for item in _items(check)]
    levels = [item.level for item in items]
    return FormChecks(
        level="error" if "error" in levels else "warning" if "warning" in levels else "ok",
        count=count,
        errors=levels.count("error"),
        warnings=levels.count("warning"),
        items=tuple(items),
    )


def _items(check: Check) -> list[FormCheck]:
    """Return the rows of a check for the page: its result, or each of its findings."""
    if not check.findings:
        return [FormCheck(check.name, "ok", check.result, "", "", check.code)]
    return [
        FormCheck(check.name, finding.level, finding.text, finding.remedy, "", finding.code)
        for finding in check.findings
    ]


def _checked(name: str, run: Callable[[], str]) -> FormCheck:
    """Return the result of a check, which is text, or the error that it raises."""
    try:
        return FormCheck(name, "ok", run(), "", "")
    except DistDLError as error:
        return _refusal(name, error)


def _refusal(name: str, error: DistDLError) -> FormCheck:
    field = getattr(error, "field", "") or _FIELDS.get(error.code, "")
    return FormCheck(name, "error", error.message, error.hint, field, error.code)


def _option_errors(options: Mapping[str, Any]) -> list[FormCheck]:
    """Return why options of the job have wrong values. Data and outputs have checks of their own."""
    errors = []
    for name, about in ABOUT.items():
        if options.get(name) is not None and name not in ("data", "outputs"):
            try:
                about.check(options[name], name)
            except DistDLError as error:
                errors.append(_refusal(_title(name), error))
    return errors


def _title(option: str) -> str:
    return ABOUT[option].label or option.replace("_", " ").capitalize()


def _data(values: FormValues, folder: Path, cluster: Cluster | None) -> list[FormCheck]:
    """Check the addresses of data as text; their content is checked when the job starts."""
    filled = [row for row in values.data if not datarows.is_blank(row)]

    def text() -> str:
        sources = [datarows.source(row) for row in filled]
        if cluster is not None:
            jobspec.data_sources(sources, folder, cluster)
        return plural(len(filled), "source")

    return [_checked("Data", text)] if filled else []


def _outputs(address: str) -> list[FormCheck]:
    check = _checked("Outputs", lambda: str(blob_place(address, "outputs")))
    return [check] if address and check.level == "error" else []


def _sweep(varied: str) -> list[FormCheck]:
    """Check the search space of a sweep as it was typed; "" for no sweep."""

    def text() -> str:
        parameters, rest = space.of_line(varied)
        if rest.strip():
            raise InvalidSpec(
                f"Cannot parse {rest.split()[0]}.",
                code="sweep-unreadable",
                hint="Write NAME=VALUES, such as width=64,128.",
            )
        return f"{listing([*parameters])} can be varied"

    check = _checked("Sweep", text)
    return [replace(check, field="sweep" if check.level == "error" else "")] if varied.strip() else []


def _plan(code: CodeInfo, options: Mapping[str, Any], folder: Path) -> tuple[JobSpec | None, FormCheck]:
    """Return the spec of the job, if it can be created, and the error that Submit would raise before checks."""
    from distdl_jupyter.capture import CapturedCode

    draft = code.draft or CapturedCode(kind="cell", name=code.name, source=Source())
    draft = replace(draft, payload_json={**draft.payload_json, "working_directory": str(folder)})
    spec: JobSpec | None = None

    def text() -> str:
        nonlocal spec
        spec, _, run_dry = jobspec.planned(draft, options)
        if spec.process_count <= _MOST_RANKS:
            run_dry()
        return f"{spec.distributed_backend} can run {plural(spec.process_count, 'process')} on {spec.compute_target}"

    check = _checked("Backend and cluster", text)
    return spec, replace(check, name=_title(check.field)) if check.field in ABOUT else check
