"""What ``launcher(train, ...)`` was given to begin with, checked: options of ``submit`` under any of their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from distdl_jupyter import azure, jobspec, registry, targets
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.names import backend_label, resolve
from distdl_jupyter.core.spec import check_count
from distdl_jupyter.form import datarows
from distdl_jupyter.form.choices import split_label
from distdl_jupyter.form.datarows import Row

#: Options of every job but those that the form has no place for.
_NAMES = {*jobspec.COMMON} - {"max_log_bytes", "stop_grace_seconds", "min_node_count"}
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
    stop_after: float = 0.0
    hang_after: float = 0.0
    max_restarts: int = 0
    vm_size: str = ""
    use_gpu: GpuWord = ""
    data: tuple[Row, ...] = ()
    outputs: str = ""
    price_per_hour: str = ""


def read(given: Mapping[str, Any]) -> Defaults:
    """Return the checked defaults. Raises InvalidSpec that names the option and what it takes."""
    options = _options()
    found = resolve(given, names())
    label, preset = _backend(found.get("distributed_backend"))
    target = str(found.get("compute_target") or "local")
    targets.find(target)
    return Defaults(
        node_count=check_count(found.get("node_count", 1), "node_count"),
        process_count_per_node=_per_node(found.get("process_count_per_node")),
        distributed_backend=label,
        backend_options={**preset, **{name: found[name] for name in options if name in found}},
        compute_target=target,
        name=str(found.get("name") or ""),
        environment_variables=_variables(found.get("environment_variables")),
        stop_after=_seconds(found.get("max_run_duration_seconds"), "max_run_duration_seconds"),
        hang_after=_seconds(found.get("hang_timeout_seconds"), "hang_timeout_seconds"),
        max_restarts=jobspec.restarts(found.get("max_restarts")),
        vm_size=azure.find(str(found["vm_size"])).name if found.get("vm_size") else "",
        use_gpu=_gpu(found.get("use_gpu")),
        data=tuple(datarows.begun(found.get("data"))),
        price_per_hour=str(found.get("price_per_hour") or ""),
        outputs=datarows.unsigned(str(found.get("outputs") or "")),
    )


def names() -> set[str]:
    """Return the primary names of all options that the form has a place for."""
    return {*_NAMES, *_options()}


def _options() -> set[str]:
    """Return the names of all options that backends declare."""
    names = set(registry.backend_labels().values())
    return {option.name for name in names for option in registry.options("backends", name)}


def _backend(label: Any) -> tuple[str, dict[str, Any]]:
    return ("", {}) if label is None else split_label(backend_label(str(label)))


def _per_node(value: Any) -> int | Literal["auto"] | None:
    if value is None:
        return None
    return "auto" if value == "auto" else check_count(value, "process_count_per_node")


def _variables(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping | None):
        raise InvalidSpec("environment_variables takes a dict of names and values.", field="environment_variables")
    return {str(name): str(text) for name, text in (value or {}).items()}


def _seconds(value: Any, field: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidSpec(f"{field} is {value!r}, but it takes a number above zero.", field=field)
    return float(value)


def _gpu(value: Any) -> GpuWord:
    if value is not None and not isinstance(value, bool):
        raise InvalidSpec(f"use_gpu is {value!r}, but it takes True, False or None (automatic).", field="use_gpu")
    return _GPU_WORDS[value]
