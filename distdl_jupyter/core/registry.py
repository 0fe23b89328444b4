"""Plug-ins by name: backends and clusters, including built-in ones, from entry points that are loaded on first use."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from distdl_jupyter.core.errors import InvalidSpec, PluginUnavailable
from distdl_jupyter.core.options import describe_unknown

Kind = Literal["backends", "clusters"]
KINDS: tuple[Kind, ...] = ("backends", "clusters")
#: Descriptions of the types of options that are checked.
_DESCRIPTIONS = {str: "a string", bool: "true or false", int: "an integer", float: "a number", types.NoneType: ""}
#: The default backends for several processes and for one.
DEFAULT_BACKEND, SINGLE_PROCESS_BACKEND = "torch", "plain"


@functools.cache
def _scan_entry_points() -> dict[Kind, dict[str, Any]]:
    """Return the entry points of all plug-ins by kind and name. Cached: it reads the metadata of all packages."""
    from importlib import metadata  # imports the whole ``email`` package

    points = metadata.entry_points()
    return {kind: {point.name: point for point in points.select(group=f"distdl_jupyter.{kind}")} for kind in KINDS}


def list_names(kind: Kind) -> list[str]:
    """Return the names of all plug-ins of this kind, sorted, without loading them."""
    return sorted(_scan_entry_points()[kind])


def list_built_in(kind: Kind) -> list[str]:
    """Return the modules of the plug-ins that come with this package, sorted, without loading them."""
    modules = (point.value.partition(":")[0] for point in _scan_entry_points()[kind].values())
    return sorted(module for module in modules if module.startswith("distdl_jupyter."))


def get(kind: Kind, name: str) -> Any:
    """Return a new instance of the plug-in ``name``. Raises InvalidSpec, and PluginUnavailable if it is broken."""
    point = _scan_entry_points()[kind].get(name)
    if point is None:
        raise InvalidSpec(describe_unknown(name, list_names(kind), kind[:-1]), code="plugin-unknown", field=kind[:-1])
    try:
        return point.load()()
    except Exception as error:
        message = f"The {kind[:-1]} {name!r} cannot be loaded: {type(error).__name__}: {error}."
        hint = f"It comes from {point.value!r}. Reinstall the package that provides it."
        if isinstance(error, ModuleNotFoundError) and point.dist is not None:
            extras = point.dist.metadata.get_all("Provides-Extra") or ()
            if extra := next(filter(name.startswith, extras), ""):  # "azure" for the cluster azureml
                hint = f"Install it: pip install '{point.dist.name}[{extra}]'"
        raise PluginUnavailable(message, code="plugin-not-loadable", hint=hint) from error


def get_options(kind: Kind, name: str) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a plug-in's ``Options`` (help and choices are in each field's metadata)."""
    return dataclasses.fields(get(kind, name).Options)


def check_options(kind: Kind, name: str, values: dict[str, Any]) -> Any:
    """Return the plug-in's ``Options`` made from ``values``. Raises InvalidSpec as ``make_options`` does."""
    return make_options(get(kind, name).Options, values, f"the {kind[:-1]} {name}")


def make_options(options_class: type, values: Mapping[str, Any], owner: str) -> Any:
    """Return an instance of the dataclass with ``values``. Raises InvalidSpec, which names the ``owner``."""
    fields = {field.name: field for field in dataclasses.fields(options_class)}
    for name, value in values.items():
        if name not in fields:
            message = describe_unknown(name, fields, "option", f"of {owner}")
            raise InvalidSpec(message, code="plugin-option-unknown", field=name)
        choices = fields[name].metadata.get("choices")
        if choices and value not in choices:
            message = f"{name} must be one of {', '.join(map(str, choices))}, not {value!r}."
            raise InvalidSpec(message, code="plugin-option-not-a-choice", field=name)
    for name, field in fields.items():
        if field.default is field.default_factory is dataclasses.MISSING and name not in values:
            raise InvalidSpec(f"{name} is missing.", code="option-missing", field=name)
    options, hints = options_class(**values), typing.get_type_hints(options_class)
    for name, value in values.items():
        allowed = typing.get_args(hints[name]) if isinstance(hints[name], types.UnionType) else (hints[name],)
        actual = getattr(options, name)  # the class may have converted the value
        is_valid = type(actual) in allowed or (type(actual) is int and float in allowed)
        if not is_valid and _DESCRIPTIONS.keys() >= set(allowed):
            expected = " or ".join(filter(None, map(_DESCRIPTIONS.get, allowed)))
            raise InvalidSpec(f"{name} must be {expected}, not {value!r}.", code="plugin-option-type", field=name)
    return options


def load_backends() -> list[Any]:
    """Return all backends that can be loaded, in display order."""
    loaded = []
    for name in list_names("backends"):
        with contextlib.suppress(PluginUnavailable):
            loaded.append(get("backends", name))
    return sorted(loaded, key=lambda plugin: (plugin.order, plugin.name))


def map_labels() -> dict[str, str]:
    """Return the backend of every label: {"horovod-mpi": "horovod", ...}."""
    return {label: plugin.name for plugin in load_backends() for label in plugin.labels or (plugin.name,)}


def _find_backend(label: str) -> str:
    """Return the backend with whose name the label begins, or "". The name may contain a hyphen."""
    names = (name for name in list_names("backends") if f"{label}-".startswith(f"{name}-"))
    return max(names, key=len, default="")


def resolve_label(name: str) -> str:
    """Return the canonical label of a backend ("horovod-mpi" for "mpi"), or other names unchanged."""
    backend = _find_backend(name)  # if there is one, the others need not be loaded
    with contextlib.suppress(PluginUnavailable):
        plugins = [get("backends", backend)] if backend else load_backends()
        return next((plugin.aliases[name] for plugin in plugins if name in plugin.aliases), name)
    return name


def load_backend(label: str, values: dict[str, Any]) -> tuple[Any, Any]:
    """Return the backend of ``label`` and its options, changed by ``values``. Raises InvalidSpec, PluginUnavailable."""
    label = resolve_label(label)
    name = _find_backend(label)
    plugin = get("backends", name) if name else None
    if plugin is None or label not in (plugin.labels or (name,)):
        message = describe_unknown(label, map_labels(), "distributed backend")
        raise InvalidSpec(message, code="backend-unknown", field="distributed_backend")
    return plugin, check_options("backends", name, {**plugin.labels.get(label, {}), **values})
