"""Named clusters: ``compute_target="mini"`` refers to a type of cluster and its options by a name.

They are stored in ``distdl_jupyter.json`` in the user's Jupyter configuration folder, which kernels, the server and the
command line share. The file contains no secrets. The name of a type refers to it with its default options.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdl_jupyter.core import files, redact, registry
from distdl_jupyter.core.errors import ClusterNotFound, ClusterRefused, DistDLError, InvalidSpec, PluginUnavailable
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.options import describe_unknown
from distdl_jupyter.worker.secret_patterns import looks_secret

FILE_NAME = "distdl_jupyter.json"
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


def change(name: str, options: Mapping[str, Any]) -> ClusterConfig:
    """Replace the options of a named cluster. Raises ClusterNotFound, InvalidSpec, PluginUnavailable."""
    with _edit_entries() as entries:
        if name not in entries:
            raise ClusterNotFound(f"Unknown cluster {name!r}.", code="cluster-name-unknown")
        entry = entries[name]
        entry["options"] = checked_options = _check_options(entry["kind"], options)
    return ClusterConfig(name, entry["kind"], checked_options, named=True)


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
