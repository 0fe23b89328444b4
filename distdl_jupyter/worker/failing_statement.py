"""The names and attributes that a failing statement uses, and their values, without running code.

``View`` is one frame with its statement's syntax tree. Attributes are read from instance dictionaries only, so that no
property or ``__getattr__`` of the user's classes runs a second time while an error is reported.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

MISSING = object()
#: The dictionaries in which torch modules store submodules, parameters and buffers.
_MODULE_DICTS = ("_modules", "_parameters", "_buffers")


class View(NamedTuple):
    """One frame at the line that failed; ``statement`` is None if its source is unknown."""

    variables: dict[str, Any]
    globals: dict[str, Any]
    statement: ast.stmt | None
    loops: tuple[ast.expr, ...]

    def expressions(self) -> Iterator[ast.AST]:
        """Yield every node of the failing statement, except nested statements."""
        if self.statement is not None:
            for part in _own_parts(self.statement):
                yield from ast.walk(part)

    def value(self, node: ast.AST) -> Any:
        """Return the value of a name, a plain attribute of one, or a constant; MISSING for anything else."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.variables.get(node.id, self.globals.get(node.id, MISSING))
        if isinstance(node, ast.Attribute):
            return _attribute(self.value(node.value), node.attr)
        return MISSING

    def used(self) -> list[tuple[str, Any]]:
        """Return (text, value) of the statement's operands: loop variables, names it reads, names it reassigns.

        Modules, functions and classes are excluded.
        """
        values: dict[str, Any] = {}
        for node in [*self.loops, *_chains(self)]:
            name = ast.unparse(node)
            value = self.value(node)
            if name not in values and value is not MISSING and not isinstance(value, _VERBS):
                values[name] = value
        return list(values.items())


_VERBS = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def view(source: list[str], line: int | None, variables: dict[str, Any], globals_: dict[str, Any]) -> View:
    """Return the view of a frame at ``line`` (counted as ``source`` is)."""
    try:
        tree = ast.parse("".join(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return View(variables, globals_, None, ())
    statement, loops = _find(tree, line or 0)
    return View(variables, globals_, statement, tuple(loops))


def _find(tree: ast.AST, line: int) -> tuple[ast.stmt | None, list[ast.expr]]:
    """Return the innermost statement at the line, and the targets of the ``for`` loops around it in its function."""
    statement: ast.stmt | None = None
    loops: list[ast.expr] = []
    inner: ast.AST | None = tree
    while inner is not None:
        inner = next((s for s in _statements(inner) if _first_line(s) <= line <= (s.end_lineno or 0)), None)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            loops = []
        if isinstance(statement, ast.For | ast.AsyncFor) and inner is not None:
            loops.extend(_names(statement.target))
        statement = inner or statement
    return statement, loops


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(node.lineno for node in decorators)])


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.excepthandler | ast.match_case):
            yield from _statements(child)


def _own_parts(statement: ast.stmt) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child


def _names(target: ast.expr) -> list[ast.expr]:
    return [node for node in ast.walk(target) if isinstance(node, ast.Name)]


def _chains(view: View) -> Iterator[ast.expr]:
    """Yield names and dotted names in the order of the text: first those that are read, then those that are set."""
    nodes = [node for node in view.expressions() if isinstance(node, ast.Name | ast.Attribute)]
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    tops = [node for node in nodes if id(node) not in inner]
    tops.sort(key=lambda node: (isinstance(node.ctx, ast.Store), node.lineno, node.col_offset))
    for node in tops:
        yield _longest(view, node)


def _longest(view: View, node: ast.expr) -> ast.expr:
    """Return the longest prefix of a dotted name that has a plain value: ``x`` of ``x.view``, all of ``self.fc``."""
    while isinstance(node, ast.Attribute):
        value = view.value(node)
        if value is not MISSING and not isinstance(value, _VERBS):
            return node
        node = node.value
    return node


def _attribute(owner: Any, name: str) -> Any:
    if owner is MISSING:
        return MISSING
    try:
        attributes = object.__getattribute__(owner, "__dict__")
    except Exception:  # noqa: BLE001  objects without a dictionary, and custom metaclasses
        attributes = {}
    if name in attributes:
        return attributes[name]
    for part in _MODULE_DICTS:
        inside = attributes.get(part)
        if type(inside).__name__ in ("dict", "OrderedDict") and name in inside:
            return inside[name]
    return _slot(owner, name)


def _slot(owner: Any, name: str) -> Any:
    for base in type(owner).__mro__:
        member = base.__dict__.get(name, MISSING)
        if isinstance(member, types.MemberDescriptorType):
            try:
                return member.__get__(owner)
            except AttributeError:
                return MISSING
        if member is not MISSING:
            # A plain class attribute; a property or another descriptor would run code.
            return MISSING if hasattr(type(member), "__get__") else member
    return MISSING
