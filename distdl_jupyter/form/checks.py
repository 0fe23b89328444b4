"""What the form can find out before the start: capture, the checks of the code, and a dry run of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter import preflight
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry, space
from distdl_jupyter.core.data import DataSource, blob_place, sources
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.findings import Check, Finding
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.options import check_name
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.form import datarows
from distdl_jupyter.form.schema import FormCheck, FormChecks
from distdl_jupyter.jobs import jobspec
from distdl_jupyter.preflight import Report

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.clusters.base import Cluster
    from distdl_jupyter.form.schema import DataRow

#: A dry run builds one place per rank; beyond this it would only cost time.
_MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class _FieldCheck(Check):
    """A check of what one field of the form holds; ``field`` is the option's name, "" for none."""

    field: str = ""


def gpus() -> int:
    """Return the GPUs of this machine that ranks may use."""
    from distdl_jupyter.core.gpus import visible

    return len(visible())


def run(
    draft: CapturedCode | None,
    capture_error: DistDLError | None,
    options: Mapping[str, Any],
    more: Sequence[Check] = (),
) -> FormChecks:
    """Return the results of all checks of these options.

    ``more`` are checks that were done elsewhere.
    """
    checks = [*_captured(capture_error), *_named(options), _place(options), *more]
    if draft is not None:
        checks += _code(draft, options)
    report = Report(tuple(checks))
    items = [item for check in checks for item in _items(check)]
    levels = {item.level for item in items}
    return FormChecks(
        level="error" if "error" in levels else "warning" if "warning" in levels else "ok",
        count=len(checks),
        errors=sum(one.level == "error" for one in report.findings),
        warnings=sum(one.level == "warning" for one in report.findings),
        items=tuple(items),
    )


def _items(check: Check) -> list[FormCheck]:
    """Return what the page shows of a check: its result, or each of its findings."""
    field = check.field if isinstance(check, _FieldCheck) else ""
    if not check.findings:
        return [FormCheck(check.name, "ok", check.result, "", field, check.code)]
    return [FormCheck(check.name, one.level, one.text, one.remedy, field, one.code) for one in check.findings]


def _refused(name: str, error: DistDLError) -> Check:
    finding = Finding("error", error.code, error.message, error.hint)
    return _FieldCheck(name, "", (finding,), field=getattr(error, "field", ""))


def _captured(error: DistDLError | None) -> list[Check]:
    return [] if error is None else [_refused("Capture", error)]


def _named(options: Mapping[str, Any]) -> list[Check]:
    try:
        check_name(options["name"])
    except DistDLError as error:
        return [_refused("Name", error)]
    return []


def data(rows: Sequence[DataRow], outputs: str, directory: Path, cluster: Cluster | None) -> list[Check]:
    """Check the addresses of data and outputs as text; their content is checked when the job starts."""
    filled = [row for row in rows if not datarows.is_blank(row)]
    checks: list[Check] = []
    try:
        given = [datarows.source(row) for row in filled]
        if cluster is not None:
            jobspec.data_sources(given, directory, cluster)
    except InvalidSpec as error:
        checks.append(_refused("Data", error))
    try:
        if outputs.strip():
            blob_place(outputs.strip(), "outputs")
    except InvalidSpec as error:
        checks.append(_refused("Outputs", error))
    return checks or ([Check("Data", plural(len(filled), "source"))] if filled else [])


def sweep(varied: str) -> list[Check]:
    """Check what a sweep varies, as it was typed; "" for no sweep."""
    if not varied.strip():
        return []
    try:
        parameters, rest = space.of_line(varied)
    except InvalidSpec as error:
        return [_FieldCheck("Sweep", "", (Finding("error", error.code, error.message, error.hint),), field="sweep")]
    if rest.strip():
        text, remedy = f"Cannot parse {rest.split()[0]}.", "Write NAME=VALUES, such as width=64,128."
        return [_FieldCheck("Sweep", "", (Finding("error", "sweep-unreadable", text, remedy),), field="sweep")]
    return [Check("Sweep", f"{listing([*parameters])} can be varied")]


def _place(options: Mapping[str, Any]) -> Check:
    """Check that backend and cluster can be used here and fit each other, by a dry run of the plan."""
    name = "Backend and cluster"
    try:
        spec, backend, backend_options, cluster, cluster_options = _spec(options)
        for field, plugin, given in (
            ("distributed_backend", backend, backend_options),
            ("compute_target", cluster, cluster_options),
        ):
            elsewhere = cluster.far and plugin is backend  # its packages are those of the other machines
            if not elsewhere and (reason := plugin.unavailable(given)):
                return _FieldCheck(name, "", (Finding("error", "plugin-unavailable", reason),), field=field)
        if spec.process_count <= _MOST_RANKS:
            jobspec.dry_run(spec, cluster, cluster_options, backend, backend_options)
    except DistDLError as error:
        return _refused(name, error)
    ranks = plural(spec.process_count, "process")
    return Check(name, f"{spec.distributed_backend} can run {ranks} on {spec.compute_target}")


def _spec(options: Mapping[str, Any]) -> tuple[JobSpec, Any, Any, Any, Any]:
    label = options["distributed_backend"]
    target = cluster_configs.find(options["compute_target"])
    cluster = registry.get("clusters", target.kind)
    known = {field.name for field in registry.options("backends", registry.backend(label, {})[0].name)}
    given = {name: value for name, value in options.items() if name in known}
    backend, backend_options = registry.backend(label, given)
    spec = JobSpec(
        id="",
        name=options["name"],
        node_count=options["node_count"],
        process_count_per_node=options["process_count_per_node"],
        distributed_backend=label,
        backend_options=given,
        compute_target=target.name,
        cluster=target.kind,
        cluster_options=dict(target.options),
        use_gpu=options["use_gpu"],
        allow_undefined=bool(options.get("allow_undefined")),
        data=_sources(options.get("data")),
        outputs=options.get("outputs") or "",
    )
    return (
        spec,
        backend,
        backend_options,
        cluster,
        registry.check_options("clusters", target.kind, dict(target.options)),
    )


def _sources(words: Sequence[str] | None) -> tuple[DataSource, ...]:
    """Return the sources, () when one of them is wrong, which has a check of its own."""
    try:
        return sources(words)
    except InvalidSpec:
        return ()


def _code(draft: CapturedCode, options: Mapping[str, Any]) -> tuple[Check, ...]:
    try:
        spec, *_ = _spec(options)
    except DistDLError:
        return ()
    return preflight.report(draft, spec).checks
