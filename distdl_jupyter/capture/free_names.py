"""Which names a cell takes from the notebook: pure analysis of source text, nothing is run.

A name counts as taken when some way through the cell reads it before the cell has bound it.

How the cell's statements are followed stands in ``capture.flow``.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass, field

from distdl_jupyter.capture.flow import Flow
from distdl_jupyter.core.errors import InvalidSpec


@dataclass(frozen=True, slots=True)
class Uses:
    """The names that a piece of code takes from outside, each with the line of its first use (counted from 1).

    ``deleted`` are names that are deleted without ever being bound or read before.
    """

    free: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)


def uses(code: str) -> Uses:
    """Return what ``code`` takes from outside. Raises SyntaxError when it is not plain Python."""
    flow = Flow()
    flow.walk_all(parse(code).body)
    flow.finish()
    deleted = {name: line for name, line in flow.deleted.items() if name not in flow.free}
    return Uses(flow.free, deleted)


def parse(code: str) -> ast.Module:
    """Return the syntax tree of ``code`` without the warnings that Python gives when it runs.

    Raises SyntaxError, and InvalidSpec for code that Python cannot compile because it is nested too deeply.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(code)
    except (RecursionError, MemoryError):
        raise InvalidSpec(
            "The code is nested too deeply for Python to compile.",
            code="code-nested-too-deeply",
            field="code",
            hint="Split the longest expression, or the longest chain of elif, into several statements.",
        ) from None


def imported(tree: ast.AST) -> dict[str, int]:
    """Return the top-level names of all modules that the code imports anywhere, with the line of the first import."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.setdefault(alias.name.partition(".")[0], node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.setdefault(node.module.partition(".")[0], node.lineno)
    return found
