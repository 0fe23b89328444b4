"""Which names a cell takes from the notebook: pure analysis of source text, nothing is run.

A name counts as taken when some way through the cell reads it before the cell has bound it.

The cell's own statements are followed in ``capture.flow``. A function's body runs later, so what it reads counts
against the names that are bound at the end of the cell.
"""

from __future__ import annotations

import ast
import symtable
import warnings
from dataclasses import dataclass, field

from distdl_jupyter.capture.flow import Flow

_COMPREHENSIONS = ("listcomp", "setcomp", "dictcomp", "genexpr")


@dataclass(frozen=True, slots=True)
class Uses:
    """The names that a piece of code takes from outside, each with the line of its first use (counted from 1).

    ``certain`` are those of them that are read whatever way the code takes; ``deleted`` are names that are deleted
    without ever being bound or read before.
    """

    free: dict[str, int] = field(default_factory=dict)
    certain: frozenset[str] = frozenset()
    deleted: dict[str, int] = field(default_factory=dict)


def uses(code: str) -> Uses:
    """Return what ``code`` takes from outside. Raises SyntaxError when it is not plain Python."""
    tree = parse(code)
    flow = Flow()
    flow.walk_all(tree.body)
    free = dict(flow.free)
    at_the_end = flow.ever_bound if flow.bound is None else flow.bound
    with warnings.catch_warnings(action="ignore"):
        table = symtable.symtable(code, "<cell>", "exec")
    for name in _read_in_functions(table):
        if name not in at_the_end:
            free.setdefault(name, _first_line(tree, name))
    deleted = {name: line for name, line in flow.deleted.items() if name not in free}
    return Uses(free, frozenset(flow.certain), deleted)


def parse(code: str) -> ast.Module:
    """Return the syntax tree of ``code`` without the warnings that Python gives when it runs. Raises SyntaxError."""
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(code)


def _read_in_functions(table: symtable.SymbolTable, *, later: bool = False) -> list[str]:
    """Return the module-level names that function bodies read, in order, without repetition."""
    comprehension = table.get_name() in _COMPREHENSIONS
    later = later or (table.get_type() not in ("module", "class") and not comprehension)
    found = [s.get_name() for s in table.get_symbols() if later and s.is_global() and s.is_referenced()]
    for child in table.get_children():
        found.extend(_read_in_functions(child, later=later))
    return list(dict.fromkeys(found))


def _first_line(tree: ast.AST, name: str) -> int:
    lines = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name]
    return min(lines, default=1)


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
