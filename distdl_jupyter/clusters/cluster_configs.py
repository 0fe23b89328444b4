"""Named clusters and their status: ``compute_target="mini"`` refers to a type of cluster and its options by a name.

They are stored in ``distdl_jupyter.json`` in the user's Jupyter configuration folder, which kernels, the server and the
command line share. The file contains no secrets. The name of a type refers to it with its default options.

A probe of a cluster never raises. A plug-in may block for a long time, so each one is called in its own thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdl_jupyter.clusters.base import Cluster, Machines, NodeCheck, NodeInfo, Provisioner
from distdl_jupyter.core import files, redact, registry
from distdl_jupyter.core.errors import ClusterNotFound, ClusterRefused, DistDLError, InvalidSpec, PluginUnavailable
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.options import describe_unknown
from distdl_jupyter.worker.secret_patterns import looks_secret

FILE_NAME = "distdl_jupyter.json"
#: Seconds that a request waits for a cluster: if its status is unknown, and if a previous status is known.
FIRST_SECONDS, REFRESH_SECONDS = 1.5, 0.3
#: Seconds after which a form probes a cluster again: for the nodes, and for checks without errors.
_NODES_FRESH_SECONDS, _CHECKS_FRESH_SECONDS = 15.0, 300.0
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """A cluster on which jobs can run; ``named`` is true if a user has added it, false for a type's default cluster."""

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    named: bool = False


def get_config_path() -> Path:
    """Return the path of the file with the named clusters."""
    from jupyter_core.paths import jupyter_config_dir

    return Path(jupyter_config_dir()) / FILE_NAME


def list_named() -> list[ClusterConfig]:
    """Return the named clusters sorted by name. Raises DistDLError if their file is invalid."""
    entries = sorted(_read_entries(get_config_path()).items())
    return [ClusterConfig(name, item["kind"], item["options"], named=True) for name, item in entries]


def list_clusters() -> list[ClusterConfig]:
    """Return all clusters for display, named ones last. Raises DistDLError if the file of the named ones is invalid."""
    return [*list_defaults(), *list_named()]


def list_defaults() -> list[ClusterConfig]:
    """Return a cluster for each type that works without options."""
    configs = []
    for kind in registry.list_names("clusters"):
        try:
            options = registry.get("clusters", kind).default_options()
        except PluginUnavailable:
            options = {}  # the status of the cluster shows the problem
        if options is not None:
            configs.append(ClusterConfig(kind, kind, options))
    return configs


def get(name: str) -> ClusterConfig:
    """Return a cluster by name. Raises ClusterNotFound, whose hint lists all clusters or explains ``add``."""
    configs = {config.name: config for config in list_clusters()}
    if name in configs:
        return configs[name]
    text, hint = f"Unknown cluster {name!r}.", describe_unknown(name, list(configs), "cluster").partition(". ")[2]
    if name in registry.list_names("clusters"):
        text = f"{name} is a type of cluster, not the name of a cluster."
        hint = f'Add one with add_cluster("lab", "{name}", ...) or distdl clusters add lab {name}.'
    raise ClusterNotFound(text, code="cluster-not-in-list", hint=hint)


def list_names() -> list[str]:
    """Return all values of ``compute_target``: types, then named clusters."""
    return [*registry.list_names("clusters"), *(config.name for config in list_named())]


def find(name: str) -> ClusterConfig:
    """Return the cluster that ``compute_target`` names. Raises InvalidSpec, which lists all clusters."""
    if name in registry.list_names("clusters"):
        return ClusterConfig(name, name, registry.get("clusters", name).default_options() or {})
    if match := next((config for config in list_named() if config.name == name), None):
        return match
    text, hint = describe_unknown(name, list_names(), "cluster"), f"To add it, call add_cluster({name!r}, ...)"
    raise InvalidSpec(text, code="cluster-unknown", field="compute_target", hint=hint)


def add(name: str, kind: str, options: Mapping[str, Any]) -> ClusterConfig:
    """Add a named cluster. Raises InvalidSpec, PluginUnavailable, and ClusterRefused if the name is in use."""
    if not _NAME_PATTERN.fullmatch(name):
        text = f"{name!r} is not a valid cluster name."
        hint = "Use 1 to 40 letters, digits, dots, dashes and underscores, starting with a letter or digit."
        raise InvalidSpec(text, code="cluster-name-invalid", field="name", hint=hint)
    if name in registry.list_names("clusters"):
        text = f"{name} is a cluster type and cannot be the name of a cluster."
        raise InvalidSpec(text, code="cluster-name-is-a-kind", field="name")
    checked_options = _check_options(kind, options)
    with _edit_entries() as entries:
        if name in entries:
            text = f"Cluster {name} already exists. Use another name, or remove it first."
            raise ClusterRefused(text, code="cluster-exists")
        entries[name] = {"kind": kind, "options": checked_options}
    return ClusterConfig(name, kind, checked_options, named=True)


def change(name: str, options: Mapping[str, Any]) -> None:
    """Replace the options of a named cluster. Raises ClusterNotFound, InvalidSpec, PluginUnavailable."""
    with _edit_entries() as entries:
        if name not in entries:
            raise ClusterNotFound(f"Unknown cluster {name!r}.", code="cluster-name-unknown")
        entries[name]["options"] = _check_options(entries[name]["kind"], options)


def remove(name: str, active: Sequence[object] = ()) -> None:
    """Remove a named cluster unless one of the ``active`` jobs runs on it. Raises ClusterNotFound, ClusterRefused."""
    if not get(name).named:
        raise ClusterRefused(f"{name} is built in and cannot be removed.", code="cluster-built-in")
    refuse_active(name, active)
    with _edit_entries() as entries:
        entries.pop(name, None)


def refuse_active(name: str, active: Sequence[object]) -> None:
    """Raise ClusterRefused if there are ``active`` jobs on a cluster."""
    if active:
        text = f"{plural(len(active), 'job')} of {name} {'has' if len(active) == 1 else 'have'} not ended."
        raise ClusterRefused(text, code="cluster-has-jobs", hint="Cancel them, or wait until they end.")


def _check_options(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, normalized by the ``Options`` class of the cluster type. Raises InvalidSpec."""
    if kind not in (kinds := registry.list_names("clusters")):
        raise InvalidSpec(describe_unknown(kind, kinds, "cluster type"), code="cluster-kind-unknown", field="kind")
    if secret := next((name for name in options if looks_secret(name)), ""):
        text = f"{secret} looks like a secret, which must not be stored. Put it into an environment variable."
        raise InvalidSpec(text, code="cluster-option-secret", field=secret)
    checked_options = registry.check_options("clusters", kind, dict(options))
    registry.get("clusters", kind).validate(checked_options)
    redact.refuse_secrets(options)
    return {name: getattr(checked_options, name) for name in options}


def _read_entries(path: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of the file, or {} if it does not exist. Raises DistDLError."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["clusters"].items()
        return {str(name): {"kind": str(item["kind"]), "options": dict(item["options"])} for name, item in entries}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        text = f"The list of clusters in {path} cannot be read ({type(error).__name__})."
        raise DistDLError(text, code="clusters-file-unreadable", hint="Fix or delete that file.") from None


@contextlib.contextmanager
def _edit_entries() -> Iterator[dict[str, dict[str, Any]]]:
    """Yield the entries under a lock, then write the changed entries unless an exception was raised."""
    path = get_config_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        entries = _read_entries(path)
        yield entries
        files.write_json(path, {"version": 1, "clusters": entries})
    finally:
        os.close(folder)


@dataclass(frozen=True, slots=True)
class ClusterStatus(ClusterConfig):
    """A cluster with its current status; ``code`` is the stable identifier of the problem."""

    title: str = ""
    detail: str = ""
    #: The reason why the cluster cannot be used now, or "".
    problem: str = ""
    remedy: str = ""
    code: str = ""
    nodes: tuple[NodeInfo, ...] = ()
    is_remote: bool = False
    #: Whether the cluster has answered at least once.
    checked: bool = True
    #: The machines as a whole, if this package creates and deletes them.
    machines: Machines | None = None
    can_create: bool = False
    #: The number of nodes that cost money now, and their total cost per hour. None: the cost is unknown.
    billed: int = 0
    cost_per_hour: float | None = None
    currency: str = ""

    @classmethod
    def from_config(cls, target: ClusterConfig, **fields: Any) -> ClusterStatus:
        """Return the status of a cluster, with the cost of its nodes."""
        billed = [node for node in fields.get("nodes", ()) if node.billed]
        costs = [node.cost_per_hour for node in billed if node.cost_per_hour is not None]
        cost = sum(costs) if billed and len(costs) == len(billed) else None
        fields |= {"billed": len(billed), "cost_per_hour": cost}
        fields["currency"] = next((node.currency for node in billed if node.currency), "")
        return cls(target.name, target.kind, target.options, target.named, **{"title": target.kind, **fields})


def load_plugin(target: ClusterConfig) -> tuple[Cluster, Any]:
    """Return a cluster's plug-in and options. Raises InvalidSpec, PluginUnavailable."""
    cluster: Cluster = registry.get("clusters", target.kind)
    return cluster, registry.check_options("clusters", target.kind, dict(target.options))


def probe(target: ClusterConfig) -> ClusterStatus:
    """Return the current status of a cluster; an error is its ``problem``. This may take seconds."""
    try:
        cluster, options = load_plugin(target)
        problem, remedy = cluster.unavailable(options), ""
        machines = cluster.get_machines(options) if isinstance(cluster, Provisioner) and not problem else None
        if machines is not None and not machines.exists:
            problem = "The machines have not been created yet."
            remedy = f"Create them: distdl clusters compute create {target.name}"
        return ClusterStatus.from_config(
            target,
            title=cluster.title or cluster.name,
            detail="" if problem else (machines.detail if machines else "") or cluster.detail(options),
            problem=problem,
            remedy=remedy,
            nodes=() if problem else tuple(cluster.list_nodes(options)),
            is_remote=cluster.is_remote,
            machines=machines,
            can_create=isinstance(cluster, Provisioner),
        )
    except Exception as error:  # noqa: BLE001 - a failing plug-in must not hide the other clusters
        plugin_error = _make_plugin_error(error)
        problem, remedy = plugin_error.message, plugin_error.hint
        return ClusterStatus.from_config(target, problem=problem, remedy=remedy, code=plugin_error.code)


def _make_plugin_error(error: Exception) -> DistDLError:
    if isinstance(error, DistDLError):
        return error
    hint = "Report the error to the authors of the plug-in."
    return DistDLError(f"The plug-in failed: {type(error).__name__}: {error}", code="cluster-plugin-failed", hint=hint)


def mark_unknown(target: ClusterConfig, seconds: float, previous: ClusterStatus | None = None) -> ClusterStatus:
    """Return the status of a cluster that has not responded for ``seconds``: its last known nodes, as unknown."""
    status = previous or ClusterStatus.from_config(target, checked=False)
    nodes = tuple(dataclasses.replace(node, state="unknown", detail="", load=None, ranks=None) for node in status.nodes)
    return dataclasses.replace(status, problem=f"No response for {seconds:g} s.", code="cluster-silent", nodes=nodes)


def check(target: ClusterConfig, needs: Mapping[str, Sequence[str]] | None = None) -> list[NodeCheck]:
    """Check every node for problems that prevent jobs of a backend with these needs; this takes up to 30 seconds."""
    try:
        cluster, options = load_plugin(target)
        if reason := cluster.unavailable(options):
            return [NodeCheck("", "Cluster", "error", reason, "", "cluster-unavailable")]
        if rows := cluster.run_checks(options, **(needs or {})):
            return rows
        if down_names := ", ".join(node.name for node in cluster.list_nodes(options) if node.state == "down"):
            text = f"{down_names} cannot be used."
            return [NodeCheck("", "Reachable", "error", text, "Check these machines.", "cluster-reachable")]
        return [NodeCheck("", "Reachable", "ok", "All nodes respond.")]
    except Exception as error:  # noqa: BLE001 - as in ``probe``
        plugin_error = _make_plugin_error(error)
        return [NodeCheck("", "Cluster", "error", plugin_error.message, plugin_error.hint, plugin_error.code)]


def get_needs(backend_label: str) -> dict[str, Sequence[str]]:
    """Return the ``modules`` and ``programs`` that a backend needs on every node. Raises InvalidSpec."""
    backend, options = registry.load_backend(backend_label, {})
    return {"modules": backend.modules(options), "programs": backend.programs(options)}


@dataclass(slots=True)
class _Probe:
    """A running or completed probe; ``latest`` is the latest answer, or None if there is none yet."""

    started_at: float
    answer: Future[Any]
    latest: Any


@dataclass(frozen=True, slots=True)
class CachedStatus:
    """The status and checks of a cluster, None while unknown. ``pending`` is true while probes run."""

    status: ClusterStatus | None
    checks: tuple[NodeCheck, ...] | None
    pending: bool


class StatusCache:
    """The newest status and checks of each cluster. A cluster is unresponsive after ``seconds`` without a response.

    At most one probe per cluster runs at a time. Until it has ended, the previous answer is used.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._timeout = seconds
        self._lock = threading.Lock()
        self._probes: dict[str, _Probe] = {}

    def start(self, function: Callable[..., Any], target: ClusterConfig, *needs: Any, max_age: float = 0.0) -> _Probe:
        """Return the running call, or one that started at most ``max_age`` seconds ago, else start a new one."""
        fields = [function.__name__, target.name, target.kind, dict(target.options), needs]
        key = json.dumps(fields, sort_keys=True, default=str)
        with self._lock:
            now, previous = time.monotonic(), self._probes.get(key)
            if previous is not None and not (previous.answer.done() and now - previous.started_at >= max_age):
                return previous
            current = self._probes[key] = _Probe(now, Future(), previous and previous.latest)

        def work() -> None:
            current.latest = function(target, *needs)
            current.answer.set_result(current.latest)

        threading.Thread(target=work, name="distdl-probe", daemon=True).start()
        return current

    async def get_status(self, target: ClusterConfig) -> ClusterStatus:
        """Return the current status of a cluster, or the last known one if the cluster responds slowly."""
        current = self.start(probe, target)
        timeout = min(self._timeout, FIRST_SECONDS if current.latest is None else REFRESH_SECONDS)
        await asyncio.wait([asyncio.wrap_future(current.answer)], timeout=timeout)
        if not current.answer.done() and time.monotonic() - current.started_at >= self._timeout:
            return mark_unknown(target, self._timeout, current.latest)
        return current.latest or ClusterStatus.from_config(target, checked=False)

    async def run_checks(self, target: ClusterConfig, needs: Mapping[str, Sequence[str]] | None) -> list[NodeCheck]:
        """Return new checks of a cluster; requests during a check share its results."""
        return await asyncio.shield(asyncio.wrap_future(self.start(check, target, needs).answer))

    def get_cached(
        self, target: ClusterConfig, needs: Mapping[str, Sequence[str]], timeout: float = 1.0, *, fresh: bool = False
    ) -> CachedStatus:
        """Return the last known status of a cluster; wait for at most ``timeout`` seconds if there is none.

        ``needs`` are the ``modules`` and ``programs`` of the backend. With ``fresh``, probe the cluster again.
        """
        max_age = 0.0 if fresh else _NODES_FRESH_SECONDS
        current = self.start(probe, target, max_age=max_age)
        if current.latest is None:
            concurrent.futures.wait([current.answer], timeout)
        status: ClusterStatus | None = current.latest
        if status is None or status.problem:
            return CachedStatus(status, None if status is None else (), pending=not current.answer.done())
        checks = self.start(check, target, needs, max_age=_CHECKS_FRESH_SECONDS)
        has_problem = any(node.state == "down" for node in status.nodes)
        if fresh or has_problem or any(row.level == "error" for row in checks.latest or ()):
            checks = self.start(check, target, needs, max_age=max_age)
        rows, pending = checks.latest, not (current.answer.done() and checks.answer.done())
        return CachedStatus(current.latest, None if rows is None else tuple(rows), pending)


#: The cache of the forms in this process.
FORM_CACHE = StatusCache()


def probe_all(targets: Sequence[ClusterConfig], seconds: float) -> list[ClusterStatus]:
    """Return the current status of several clusters within ``seconds`` seconds."""
    cache = StatusCache(seconds)
    running = [cache.start(probe, target) for target in targets]
    concurrent.futures.wait([current.answer for current in running], seconds)
    return [current.latest or mark_unknown(target, seconds) for current, target in zip(running, targets, strict=True)]
