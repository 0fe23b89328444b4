"""What the form can find out before the start: capture, the checks of the code, and a dry run of the plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter import preflight
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry, space
from distdl_jupyter.core.data import DataSource, blob_place, sources
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.findings import Check
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.options import ABOUT
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.form import datarows
from distdl_jupyter.form.schema import FormCheck, FormChecks
from distdl_jupyter.jobs import jobspec

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.clusters.base import Cluster
    from distdl_jupyter.form.schema import DataRow

#: A dry run builds one place per rank; beyond this it would only cost time.
_MOST_RANKS = 4096


def gpus() -> int:
    """Return the GPUs of this machine that ranks may use."""
    from distdl_jupyter.core.gpus import visible

    return len(visible())


def run(
    draft: CapturedCode | None,
    capture_error: DistDLError | None,
    options: Mapping[str, Any],
    more: Sequence[FormCheck] = (),
) -> FormChecks:
    """Return the results of all checks of these options.

    ``more`` are results of checks that were done elsewhere.
    """
    items = [] if capture_error is None else [_refusal("Capture", capture_error)]
    items += _refused(options)
    items += [*_check("Backend and cluster", lambda: _plan(options)), *more]
    checks = len(items)
    if draft is not None:
        for check in _code(draft, options):
            checks += 1
            items += _items(check)
    levels = [item.level for item in items]
    return FormChecks(
        level="error" if "error" in levels else "warning" if "warning" in levels else "ok",
        count=checks,
        errors=levels.count("error"),
        warnings=levels.count("warning"),
        items=tuple(items),
    )


#: Options that have a check of their own: their messages name what was typed.
_CHECKED_APART = ("data", "outputs")


def _refused(options: Mapping[str, Any]) -> list[FormCheck]:
    """Return why options of the job have wrong values."""
    given = [name for name in ABOUT if name not in _CHECKED_APART and options.get(name) is not None]
    titles = {name: ABOUT[name].label or name.replace("_", " ").capitalize() for name in given}
    checks = [item for name in given for item in _check(titles[name], functools.partial(_checked, options, name))]
    return [item for item in checks if item.level == "error"]


def _checked(options: Mapping[str, Any], name: str) -> str:
    ABOUT[name].check(options[name], name)
    return ""


def _items(check: Check) -> list[FormCheck]:
    """Return what the page shows of a check: its result, or each of its findings."""
    if not check.findings:
        return [FormCheck(check.name, "ok", check.result, "", "", check.code)]
    return [FormCheck(check.name, one.level, one.text, one.remedy, "", one.code) for one in check.findings]


def _check(name: str, run: Callable[[], str]) -> list[FormCheck]:
    """Return the result of a check, which is text, or the error that it raises."""
    try:
        return _items(Check(name, run()))
    except DistDLError as error:
        return [_refusal(name, error)]


def _refusal(name: str, error: DistDLError) -> FormCheck:
    return FormCheck(name, "error", error.message, error.hint, getattr(error, "field", ""), error.code)


def data(rows: Sequence[DataRow], outputs: str, directory: Path, cluster: Cluster | None) -> list[FormCheck]:
    """Check the addresses of data and outputs as text; their content is checked when the job starts."""
    filled = [row for row in rows if not datarows.is_blank(row)]

    def sources_text() -> str:
        given = [datarows.source(row) for row in filled]
        if cluster is not None:
            jobspec.data_sources(given, directory, cluster)
        return plural(len(filled), "source")

    outputs_check = _check("Outputs", lambda: str(blob_place(outputs.strip(), "outputs"))) if outputs.strip() else []
    refused = [item for item in outputs_check if item.level == "error"]
    return [*(_check("Data", sources_text) if filled else []), *refused]


def sweep(varied: str) -> list[FormCheck]:
    """Check what a sweep varies, as it was typed; "" for no sweep."""

    def parameters_text() -> str:
        parameters, rest = space.of_line(varied)
        if rest.strip():
            raise InvalidSpec(
                f"Cannot parse {rest.split()[0]}.",
                code="sweep-unreadable",
                hint="Write NAME=VALUES, such as width=64,128.",
            )
        return f"{listing([*parameters])} can be varied"

    items = _check("Sweep", parameters_text) if varied.strip() else []
    return [replace(item, field="sweep" if item.level == "error" else "") for item in items]


def _plan(options: Mapping[str, Any]) -> str:
    """Return what backend and cluster can run, after a dry run of the plan. Raises DistDLError."""
    spec, backend, backend_options, cluster, cluster_options = _spec(options)
    problems = {"compute_target": cluster.unavailable(cluster_options)}
    if not cluster.far:  # else the backend's packages are those of the other machines
        problems = {"distributed_backend": backend.unavailable(backend_options), **problems}
    for field, reason in problems.items():
        if reason:
            raise InvalidSpec(reason, code="plugin-unavailable", field=field)
    if spec.process_count <= _MOST_RANKS:
        jobspec.dry_run(spec, cluster, cluster_options, backend, backend_options)
    return f"{spec.distributed_backend} can run {plural(spec.process_count, 'process')} on {spec.compute_target}"


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
