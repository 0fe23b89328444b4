"""What ``launcher(train, ...)`` was given to begin with, checked: options of ``submit`` under any of their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from distdl_jupyter import azure, cluster_configs, registry
from distdl_jupyter.core.aliases import resolve
from distdl_jupyter.core.options import ABOUT, checked
from distdl_jupyter.form import datarows
from distdl_jupyter.form.choices import split_label
from distdl_jupyter.form.schema import DataRow

GpuWord = Literal["", "yes", "no"]
_GPU_WORDS: dict[bool | None, GpuWord] = {None: "", True: "yes", False: "no"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What the form begins with; it chooses itself where ``process_count_per_node`` is None or the backend ""."""

    node_count: int = 1
    process_count_per_node: int | Literal["auto"] | None = None
    distributed_backend: str = ""
    backend_options: dict[str, Any] = field(default_factory=dict)
    compute_target: str = "local"
    name: str = ""
    environment_variables: dict[str, str] = field(default_factory=dict)
    max_run_duration_seconds: float = 0.0
    hang_timeout_seconds: float = 0.0
    max_restarts: int = 0
    vm_size: str = ""
    use_gpu: GpuWord = ""
    data: tuple[DataRow, ...] = ()
    outputs: str = ""
    price_per_hour: str = ""


def read(given: Mapping[str, Any]) -> Defaults:
    """Return the checked defaults. Raises InvalidSpec that names the option and what it takes."""
    options = _options()
    found = {name: value for name, value in resolve(given, names()).items() if value is not None}
    common = checked(found)
    label, preset = _backend(common.get("distributed_backend"))
    target = common.get("compute_target", "local")
    cluster_configs.find(target)
    return Defaults(
        node_count=common.get("node_count", 1),
        process_count_per_node=common.get("process_count_per_node"),
        distributed_backend=label,
        backend_options={**preset, **{name: found[name] for name in options if name in found}},
        compute_target=target,
        name=common.get("name", ""),
        environment_variables=common.get("environment_variables", {}),
        max_run_duration_seconds=common.get("max_run_duration_seconds", 0.0),
        hang_timeout_seconds=common.get("hang_timeout_seconds", 0.0),
        max_restarts=common.get("max_restarts", 0),
        vm_size=azure.find(common["vm_size"]).name if "vm_size" in common else "",
        use_gpu=_GPU_WORDS[common.get("use_gpu")],
        data=tuple(datarows.begun(common.get("data"))),
        price_per_hour=str(common.get("price_per_hour", "")),
        outputs=datarows.unsigned(str(found.get("outputs") or "")),
    )


def names() -> set[str]:
    """Return the primary names of all options that the form has a place for."""
    return {*(name for name, about in ABOUT.items() if about.in_form), *_options()}


def _options() -> set[str]:
    """Return the names of all options that backends declare."""
    names = set(registry.backend_labels().values())
    return {option.name for name in names for option in registry.options("backends", name)}


def _backend(label: Any) -> tuple[str, dict[str, Any]]:
    return ("", {}) if label is None else split_label(registry.backend_label(str(label)))
