"""What ``launcher(train, ...)`` was given to begin with, checked: options of ``submit`` under any of their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter import azure
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry
from distdl_jupyter.core.aliases import resolve
from distdl_jupyter.core.options import ABOUT, checked
from distdl_jupyter.form import datarows
from distdl_jupyter.form.choices import split_label
from distdl_jupyter.form.schema import Chosen

_GPU_WORDS: dict[bool | None, str] = {None: "", True: "yes", False: "no"}


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the form begins with: fields of ``Chosen``, only those that were given, and environment variables."""

    chosen: Mapping[str, Any] = field(default_factory=dict)
    environment_variables: Mapping[str, str] = field(default_factory=dict)


def read(given: Mapping[str, Any]) -> Defaults:
    """Return the checked defaults. Raises InvalidSpec that names the option and what it takes."""
    options = _options()
    found = {name: value for name, value in resolve(given, names()).items() if value is not None}
    common = checked(found)
    chosen = {name: common[name] for name in Chosen.__struct_fields__ if name in common}
    label, preset = _backend(common.get("distributed_backend"))
    cluster_configs.find(common.get("compute_target", "local"))
    chosen |= {"distributed_backend": label} if label else {}
    chosen["backend_options"] = {**preset, **{name: found[name] for name in options if name in found}}
    chosen["use_gpu"] = _GPU_WORDS[common.get("use_gpu")]
    chosen["data"] = tuple(datarows.begun(common.get("data")))
    chosen["outputs"] = datarows.unsigned(str(found.get("outputs") or ""))
    if "memory" in common:
        chosen["memory"] = str(found["memory"])
    chosen["after"] = ",".join(common.get("after", ()))
    if "vm_size" in common:
        chosen["vm_size"] = azure.find(common["vm_size"]).name
    if "price_per_hour" in common:
        chosen["price_per_hour"] = str(common["price_per_hour"])
    return Defaults(chosen, common.get("environment_variables", {}))


def names() -> set[str]:
    """Return the primary names of all options that the form has a place for."""
    return {*(name for name, about in ABOUT.items() if about.in_form), *_options()}


def _options() -> set[str]:
    """Return the names of all options that backends declare."""
    names = set(registry.backend_labels().values())
    return {option.name for name in names for option in registry.options("backends", name)}


def _backend(label: Any) -> tuple[str, dict[str, Any]]:
    return ("", {}) if label is None else split_label(registry.backend_label(str(label)))
