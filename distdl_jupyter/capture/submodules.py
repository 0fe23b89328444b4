"""Modules that travel by name bring along the submodules that the cell reaches through them.

``import matplotlib.pyplot`` in the notebook binds only ``matplotlib``; a rank that imports just that has no ``pyplot``.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from distdl_jupyter.capture.pickler import shipped_whole


def with_submodules(values: Mapping[str, Any], tree: ast.AST) -> dict[str, Any]:
    """Return the values; each module whose loaded submodules the code uses is put so that a rank imports them too."""
    chains = list(_chains(tree))
    found = dict(values)
    for name, value in values.items():
        if isinstance(value, types.ModuleType):
            names = sorted({sub for chain in chains if chain[0] == name for sub in _loaded(value.__name__, chain[1:])})
            if names:
                found[name] = _Importing(value.__name__, names)
    return found


def _chains(tree: ast.AST) -> Iterator[list[str]]:
    """Yield ``a.b.c`` as ["a", "b", "c"] wherever the code has it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            words: list[str] = []
            part: ast.expr = node
            while isinstance(part, ast.Attribute):
                words.append(part.attr)
                part = part.value
            if isinstance(part, ast.Name):
                yield [part.id, *reversed(words)]


def _loaded(module: str, words: list[str]) -> Iterator[str]:
    for word in words:
        module = f"{module}.{word}"
        if not isinstance(sys.modules.get(module), types.ModuleType):
            return
        yield module


class _Importing:
    """Pickles as a module that is imported together with submodules."""

    def __init__(self, name: str, submodules: list[str]) -> None:
        self._names = [*submodules, name]

    def __reduce__(self) -> tuple[Any, ...]:
        return _IMPORT, (self._names,)


def _import(names: list[str]) -> Any:
    """Run in a rank: import all and return the last."""
    import importlib

    return [importlib.import_module(name) for name in names][-1]


_IMPORT = shipped_whole(_import)
