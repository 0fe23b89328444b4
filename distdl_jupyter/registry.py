"""Plug-ins by name: backends and clusters from Python entry points, loaded when first asked for.

Built-in ones are registered like anybody else's. One broken plug-in never hides the others: ``problems()`` lists it.
Knows nothing about what a plug-in does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from importlib import metadata
from typing import Any, Literal

from distdl_jupyter.core.errors import InvalidSpec, PluginUnavailable
from distdl_jupyter.core.names import backend_label, unknown

Kind = Literal["backends", "clusters"]
KINDS: tuple[Kind, ...] = ("backends", "clusters")


@functools.cache
def _points(kind: Kind) -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=f"distdl_jupyter.{kind}")}


def names(kind: Kind) -> list[str]:
    """Return the names of all plug-ins of this kind, sorted, without loading them."""
    return sorted(_points(kind))


def get(kind: Kind, name: str) -> Any:
    """Return the plug-in ``name`` as a fresh object.

    Raises InvalidSpec for an unknown name and PluginUnavailable when it cannot be loaded.
    """
    point = _points(kind).get(name)
    if point is None:
        raise InvalidSpec(unknown(name, names(kind), kind[:-1]), field=kind[:-1])
    try:
        return point.load()()
    except Exception as error:
        raise PluginUnavailable(
            f"The {kind[:-1]} {name!r} cannot be loaded: {type(error).__name__}: {error}.",
            hint=f"It comes from {point.value!r}; reinstall the package that brings it.",
        ) from error


def problems() -> list[tuple[str, str, str]]:
    """Return (kind, name, reason) of each plug-in that cannot be loaded."""
    found: list[tuple[str, str, str]] = []
    for kind in KINDS:
        for name in names(kind):
            try:
                get(kind, name)
            except PluginUnavailable as error:
                found.append((kind, name, str(error)))
    return found


def options(kind: Kind, name: str) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a plug-in's ``Options`` (help and choices stand in each field's metadata)."""
    return dataclasses.fields(get(kind, name).Options)


def check_options(kind: Kind, name: str, given: dict[str, Any]) -> Any:
    """Return the plug-in's ``Options`` made from ``given``.

    Raises InvalidSpec for an unknown option or a value that is not among the option's choices.
    """
    fields = {field.name: field for field in options(kind, name)}
    for key, value in given.items():
        if key not in fields:
            raise InvalidSpec(unknown(key, fields, f"option of the {kind[:-1]} {name}"), field=key)
        choices = fields[key].metadata.get("choices")
        if choices and value not in choices:
            raise InvalidSpec(f"{key} is {value!r}, but it takes one of {', '.join(map(str, choices))}.", field=key)
    return get(kind, name).Options(**given)


def backend_labels() -> dict[str, str]:
    """Return every label a user can choose and the backend that knows it: {"horovod-mpi": "horovod", ...}.

    A backend that cannot be loaded is left out (``problems`` names it).
    """
    found: dict[str, str] = {}
    for name in names("backends"):
        with contextlib.suppress(PluginUnavailable):
            found |= dict.fromkeys(get("backends", name).labels or (name,), name)
    return found


def backend(label: str, given: dict[str, Any]) -> tuple[Any, Any]:
    """Return the backend that knows ``label`` and its options (the label's own, then ``given``).

    Raises InvalidSpec for an unknown label or option, PluginUnavailable when the backend cannot be loaded.
    """
    label = backend_label(label)
    known = backend_labels()
    name = known.get(label, label)
    if label not in known and label not in names("backends"):
        raise InvalidSpec(unknown(label, known, "distributed backend"), field="distributed_backend")
    plugin = get("backends", name)
    return plugin, check_options("backends", name, {**plugin.labels.get(label, {}), **given})
