"""Turns a user's options into a checked spec: resolves names, fills in defaults, reports errors before the start."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter import preflight
from distdl_jupyter.backends.base import Backend, JobPackage
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.clusters.base import Cluster, Provisioner
from distdl_jupyter.core import redact, registry
from distdl_jupyter.core.data import (
    PACKAGE_OPTIONS,
    SCRIPT_METADATA,
    parse_script,
    parse_sources,
    read_requirements,
)
from distdl_jupyter.core.errors import InvalidSpec, JobNotFound, PluginUnavailable
from distdl_jupyter.core.options import OPTIONS, check_count, check_name, check_options, resolve
from distdl_jupyter.core.plan import assign_ports
from distdl_jupyter.core.redact import Redactor
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from distdl_jupyter.azure.prices import Price
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.core.data import DataSource
    from distdl_jupyter.core.spec import Group

#: Default idle timeout of persistent ranks on other machines: seconds without a cell.
_IDLE_SECONDS = 7200.0


def build(
    draft: CapturedCode, options: Mapping[str, Any], *, id_: str, group: Group | None = None, python: str = ""
) -> tuple[JobSpec, dict[str, str]]:
    """Return the spec of a draft and the values of its secret environment variables.

    ``group`` is the study of the job, ``python`` the interpreter of its ranks (default: this one).
    Raises InvalidSpec or PluginUnavailable with a message that names the fix.
    """
    spec, secret_values, check_plan = plan_spec(draft, options, id_=id_, group=group, python=python)
    check_plan()
    redact.refuse_secrets({**spec.cluster_options, **spec.backend_options})
    arguments = redact.find_masked_arguments(spec.script_arguments, draft.true_arguments)
    redactor = Redactor.from_variables(os.environ, {**secret_values, **arguments})
    return redact.mask_spec(_add_findings(spec, draft), redactor), secret_values


def plan_spec(
    draft: CapturedCode, options: Mapping[str, Any], *, id_: str = "", group: Group | None = None, python: str = ""
) -> tuple[JobSpec, dict[str, str], Callable[[], None]]:
    """Return the spec with unchecked code, the secret values, and a function that computes the plan once.

    That function raises InvalidSpec for conflicting options; its run time grows with the number of ranks.
    Raises InvalidSpec or PluginUnavailable for options that cannot be used.
    """
    resolved_options = resolve_options(options)
    values = check_options(resolved_options)
    target = cluster_configs.find(values.pop("compute_target", "local"))
    cluster_values = {**target.options, **_select_options("clusters", target.kind, resolved_options)}
    cluster = registry.get("clusters", target.kind)
    cluster_options = registry.check_options("clusters", target.kind, cluster_values)
    nodes, per_node = values.get("node_count", 1), values.pop("process_count_per_node", 1)
    if per_node == "auto":
        per_node = cluster.process_count_per_node(cluster_options, use_gpu=values.get("use_gpu"))
    label = registry.resolve_label(
        values.pop(
            "distributed_backend", registry.DEFAULT_BACKEND if nodes * per_node > 1 else registry.SINGLE_PROCESS_BACKEND
        )
    )
    backend_values = _select_options("backends", registry.load_backend(label, {})[0].name, resolved_options)
    backend, backend_options = registry.load_backend(label, backend_values)
    _check_unknown(resolved_options, {*cluster_values, *backend_values}, label, target.name)
    python = python or sys.executable
    # The packages of another machine or another Python are checked there.
    is_local = not cluster.is_remote and python == sys.executable
    is_checked_here = is_local and not any(map(values.get, PACKAGE_OPTIONS))
    if reason := cluster.unavailable(cluster_options):
        raise PluginUnavailable(reason, code="cluster-not-usable")
    if is_checked_here and (reason := backend.unavailable(backend_options)):
        raise PluginUnavailable(reason, code="backend-not-usable")
    variables = values.pop("environment_variables", {})
    secret_values = {k: v for k, v in variables.items() if redact.is_secret(k, v) or k in draft.secret_variables}
    working_directory = str(draft.payload_json.get("working_directory") or Path.cwd())
    vm_size = _find_vm_size(values.pop("vm_size", None))
    rate = find_node_price(values.pop("price_per_hour", None), vm_size, cluster, cluster_values)
    values |= _derive_gpu_options(values, cluster)
    if values.get("after"):
        values["after"] = _find_predecessors(values["after"])
    _check_restarts(values.get("max_restarts", 0), cluster, draft)
    values |= _get_session_defaults(values, cluster, target.name, draft)
    _check_packages(values, cluster)
    requirements = _read_requirements(values.pop("requirements", ""), Path(working_directory), draft, cluster)
    spec = JobSpec(
        id=id_,
        kind=draft.kind,
        group=group,
        process_count_per_node=check_count(per_node, "process_count_per_node"),
        distributed_backend=label,
        backend_options={name: getattr(backend_options, name) for name in backend_values},
        compute_target=target.name,
        cluster=target.kind,
        cluster_options=cluster_values,
        vm_size=vm_size,
        price_per_hour=rate.per_hour if rate else None,
        currency=rate.currency if rate else "",
        price_source=rate.source if rate else "",
        environment_variables={k: v for k, v in variables.items() if k not in secret_values},
        secret_variables=tuple(secret_values),
        python=python,
        working_directory=working_directory,
        data=resolve_data(values.pop("data", None), Path(working_directory), cluster),
        requirements=requirements,
        script_arguments=draft.script_arguments,
        source=draft.source,
        captured=draft.captured,
        capture_seconds=draft.seconds,
        versions=_find_versions(backend, backend_options),
        created=time.time(),
        **{"name": check_name(draft.name), **values},
    )
    _check_min_node_count(spec)
    if is_local and any(getattr(spec, name) for name in PACKAGE_OPTIONS):
        spec = _use_cached_python(spec)
    return spec, secret_values, lambda: _compute_plan(spec, cluster, cluster_options, backend, backend_options)


def _use_cached_python(spec: JobSpec) -> JobSpec:
    """Return the spec with the Python of its package environment if that exists, so that the job can start warm."""
    from distdl_jupyter.data import packages as environments  # lazy: few jobs request packages

    python = environments.find_environment(environments.from_options(spec))
    return dataclasses.replace(spec, python=python) if python else spec


def _check_min_node_count(spec: JobSpec) -> None:
    min_nodes = spec.min_node_count or spec.node_count
    if min_nodes > spec.node_count:
        raise InvalidSpec(
            f"min_node_count is {min_nodes}, but node_count is only {spec.node_count}.",
            code="min-node-count-too-large",
            field="min_node_count",
            hint="min_node_count is the lowest number of nodes with which the job may continue.",
        )
    sharded = next((source for source in spec.data if source.shard), None)
    if sharded is not None and min_nodes < spec.node_count:
        raise InvalidSpec(
            f"{sharded.name} is split over {spec.node_count} nodes, so its data would be incomplete without one of "
            "them.",
            code="shard-with-fewer-nodes",
            field="min_node_count",
            hint="Remove min_node_count or ?shard.",
        )


def _compute_plan(spec: JobSpec, cluster: Any, cluster_options: Any, backend: Any, backend_options: Any) -> None:
    """Compute the launch plan without starting it. Raises InvalidSpec."""
    preview = dataclasses.replace(cluster.preview(spec, cluster_options), ports=(0,) * backend.ports)
    placement = assign_ports(preview, backend.rank_ports, lambda _, ports: (preview.address, (0,) * ports))
    backend.plan(spec, placement, backend_options)


def resolve_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options under their primary names. Raises InvalidSpec.

    Plug-ins are loaded lazily: most jobs use none of their options, and loading them all is slow.
    """
    allowed = set(OPTIONS)
    for kind in registry.KINDS:
        with contextlib.suppress(InvalidSpec):
            return resolve(options, allowed)
        allowed |= list_option_names(kind)
    return resolve(options, allowed)


def list_option_names(kind: registry.Kind) -> set[str]:
    """Return the names of the options of all clusters or backends."""
    names: set[str] = set()
    for name in registry.list_names(kind):
        with contextlib.suppress(PluginUnavailable):
            names |= {field.name for field in registry.get_options(kind, name)}
    return names


def _select_options(kind: registry.Kind, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: options[field.name] for field in registry.get_options(kind, name) if field.name in options}


def _check_unknown(options: Mapping[str, Any], plugin_options: set[str], label: str, target: str) -> None:
    for name in options:
        if name not in OPTIONS and name not in plugin_options:
            raise InvalidSpec(
                f"Neither the backend {label} nor the cluster {target} has an option {name}.",
                code="option-of-neither",
                field=name,
                hint="Remove it, or choose a backend or cluster that has it.",
            )


def resolve_data(value: Any, working_directory: Path, cluster: Cluster) -> tuple[DataSource, ...]:
    """Return the sources of ``data=`` for a cluster, with absolute local paths. Raises InvalidSpec."""
    data = tuple(_make_absolute(source, working_directory) for source in parse_sources(value))
    if data and (error := make_data_error(cluster)) is not None:
        raise error
    sharded = next((source for source in data if source.shard and source.scheme in ("path", "shared", "https")), None)
    if sharded is not None:
        raise InvalidSpec(
            f"{sharded.name} uses ?shard, which works only with object storage.",
            code="shard-not-in-store",
            field="data",
            hint="Remove ?shard. Every node sees all files.",
        )
    mounted = next((source for source in data if source.mode == "mount"), None)
    if mounted is not None and not cluster.can_mount:
        raise InvalidSpec(
            f"{cluster.title or cluster.name} does not support mode=mount, which {mounted.name} uses.",
            code="mount-unsupported",
            field="data",
            hint="Remove mode=mount. The files are then copied to every node before the ranks start.",
        )
    return data


def make_data_error(cluster: Cluster) -> InvalidSpec | None:
    """Return the error if a cluster does not support data sources, or None if it does."""
    if cluster.has_agents or cluster.can_mount:
        return None
    return InvalidSpec(
        f"{cluster.title or cluster.name} cannot copy data to its nodes.",
        code="cluster-without-data",
        field="data",
        hint="Remove data and read from a path that every node sees, or choose another cluster.",
    )


def _make_absolute(source: DataSource, working_directory: Path) -> DataSource:
    if source.scheme != "path":
        return source
    path = working_directory / Path(source.path).expanduser()
    if not path.exists():
        raise InvalidSpec(
            f"The data source {source.name} points to {path}, which does not exist here.",
            code="data-path-missing",
            field="data",
            hint="Check the path. For a path that only the nodes see, use shared:/path.",
        )
    return dataclasses.replace(source, path=str(path.resolve()))


def _derive_gpu_options(options: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """Return the options derived from ``gpus``. Raises InvalidSpec if the cluster has no queue for these options."""
    field = next((name for name in ("gpus", "cores", "memory", "priority") if options.get(name)), "")
    if field and not cluster.has_slots:
        raise InvalidSpec(
            f"{cluster.title or cluster.name} has its own queue, which does not support {field}.",
            code="option-of-local-queue",
            field=field,
            hint="Remove it, and use the options of the cluster instead.",
        )
    gpus, use_gpu = options.get("gpus"), options.get("use_gpu")
    if gpus and use_gpu is False:
        raise InvalidSpec(
            f"gpus is {gpus}, but use_gpu is False.",
            code="gpus-without-use-gpu",
            field="gpus",
            hint="Use only one of them.",
        )
    return {} if gpus is None else {"use_gpu": gpus > 0}


def _find_predecessors(ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the full ids of the jobs that must complete first. Raises InvalidSpec."""
    store = JobStore()
    try:
        return tuple(store.find(id_).id for id_ in ids)
    except JobNotFound as error:
        raise InvalidSpec(
            f"after: {error.message}", code="after-unknown", field="after", hint="List the jobs with 'distdl ls'."
        ) from None


def _check_restarts(count: int, cluster: Cluster, draft: CapturedCode) -> None:
    if count and not cluster.can_restart:
        raise InvalidSpec(
            f"{cluster.title or cluster.name} cannot restart ranks.",
            code="restarts-unsupported",
            field="max_restarts",
            hint="Remove max_restarts, and submit the job again after a failure.",
        )
    if count and draft.kind == "ranks":
        raise InvalidSpec(
            "The ranks of a session cannot restart, because the variables of their cells would be lost.",
            code="restarts-with-kept-ranks",
            field="max_restarts",
            hint="Remove max_restarts.",
        )


def _get_session_defaults(
    options: Mapping[str, Any], cluster: Cluster, target: str, draft: CapturedCode
) -> dict[str, Any]:
    """Return the defaults of persistent ranks. Raises InvalidSpec if the ranks cannot be reached.

    Forgotten ranks on other machines stop after an idle timeout. For other jobs, a timeout raises InvalidSpec.
    """
    idle = options.get("idle_timeout_seconds")
    if draft.kind != "ranks":
        if idle is not None:
            raise InvalidSpec(
                "idle_timeout_seconds applies only to a session of ranks. Other jobs end with their code.",
                code="idle-timeout-without-ranks",
                field="idle_timeout_seconds",
                hint="Remove it.",
            )
        return {}
    if not cluster.has_agents:
        raise InvalidSpec(
            f"A session of ranks cannot run on {target}, because its ranks cannot be reached from here.",
            code="kept-ranks-unsupported",
            field="compute_target",
            hint="Run the cell as a job with %%distributed.",
        )
    return {"idle_timeout_seconds": _IDLE_SECONDS} if cluster.is_remote and idle is None else {}


def _check_packages(options: Mapping[str, Any], cluster: Cluster) -> None:
    field = next((name for name in PACKAGE_OPTIONS if options.get(name)), "")
    if field and not cluster.can_install:
        raise InvalidSpec(
            f"{cluster.title or cluster.name} cannot install packages.",
            code="packages-unsupported",
            field=field,
            hint="Install them where the ranks run, or choose another cluster.",
        )


def _read_requirements(text: str, folder: Path, draft: CapturedCode, cluster: Cluster) -> str:
    """Return the text of the requirements, by default from the script's declaration."""
    if not text and cluster.can_install and draft.kind == "script" and SCRIPT_METADATA.search(draft.source.code):
        text = parse_script(draft.source.code, Path(draft.source.filename).name)
    return read_requirements(text, folder)


def _find_vm_size(name: Any) -> str | None:
    if name in (None, ""):
        return None
    from distdl_jupyter.azure import find_size

    return find_size(str(name)).size


def find_node_price(price: Any, vm_size: str | None, cluster: Cluster, options: Mapping[str, Any]) -> Price | None:
    """Return the price of a node: the user's price, else the cached price for the size of a billed cluster.

    The cluster options may name size and tier; interruptible nodes have no price. Raises InvalidSpec.
    """
    if price in (None, "") and not isinstance(cluster, Provisioner):
        return None
    from distdl_jupyter.azure import prices

    if price not in (None, ""):
        return prices.parse_price(price)
    size = vm_size or options.get("vm_size")
    interruptible = str(options.get("job_tier") or "").lower() in ("spot", "basic")
    return prices.find_cached(size) if size and not interruptible else None


def _find_versions(backend: Backend, options: Any) -> dict[str, str]:
    common_packages = (JobPackage("", "distdl-jupyter"), JobPackage("", "numpy"))
    versions = {package.name: package.version() for package in (*common_packages, *backend.packages(options))}
    return {"python": platform.python_version()} | {name: version for name, version in versions.items() if version}


def _add_findings(spec: JobSpec, draft: CapturedCode) -> JobSpec:
    findings = preflight.check(draft, spec)
    preflight.raise_errors(findings)
    return dataclasses.replace(spec, findings=tuple(dataclasses.asdict(finding) for finding in findings))
