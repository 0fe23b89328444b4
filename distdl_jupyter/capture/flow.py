"""Which names are bound at each point of a cell, following every way that Python can take through it.

* Statements are walked in the order in which Python evaluates them, with the set of names that are bound for sure.
* Branches (``if``, ``try``, ``match``) bind a name only when each of them that goes on does; a loop's body counts as
  run at least once.
* What the body of a function reads counts where the function is first mentioned, for it may be called there; what is
  never mentioned counts at the end.
"""

from __future__ import annotations

import ast
import contextlib
import symtable
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

_COMPREHENSIONS = ("listcomp", "setcomp", "dictcomp", "genexpr")
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class _Scope:
    """Names of a class body or a comprehension, which hide those of the cell while it lasts.

    ``branches`` is how deep in branches it begins; what a class binds in a deeper one is not bound for sure.
    """

    def __init__(self, *, is_class: bool, branches: int) -> None:
        self.is_class = is_class
        self.branches = branches
        self.names: set[str] = set()


class Flow:
    """Walks statements in evaluation order; ``bound`` is None behind a raise, break or continue."""

    def __init__(self) -> None:
        self.bound: set[str] | None = set()
        self.free: dict[str, int] = {}
        self.deleted: dict[str, int] = {}
        #: What the body of each function and class of the cell reads when it is called.
        self._bodies: dict[str, dict[str, int]] = {}
        self._branches = 0
        self._scopes: list[_Scope] = []
        self._breaks: list[list[set[str]]] = []

    def walk(self, node: ast.AST) -> None:
        """Follow one statement or expression."""
        handler = self._handlers.get(type(node))
        if handler is not None:
            handler(self, node)
        else:
            self.walk_all(ast.iter_child_nodes(node))

    def walk_all(self, nodes: Iterable[ast.AST | None]) -> None:
        """Follow several in order."""
        for node in nodes:
            if node is not None:
                self.walk(node)

    def _perhaps(self, nodes: Iterable[ast.AST]) -> None:
        """Follow expressions that are evaluated on some ways only."""
        self._branches += 1
        self.walk_all(nodes)
        self._branches -= 1

    # -- names -----------------------------------------------------------------------------------------------------

    def bind(self, name: str) -> None:
        """Take note that a name is bound from here on."""
        scope = next((s for s in reversed(self._scopes) if s.is_class), None)
        if scope is not None:
            if scope.branches == self._branches:
                scope.names.add(name)
            return
        if self.bound is not None:
            self.bound.add(name)

    def read(self, name: str, line: int) -> None:
        """Take note that a name is read."""
        hidden = self._hidden(name)
        if self.bound is None or (hidden and name not in self._bodies):
            return
        if hidden or name in self.bound:
            self._mention(self._bodies.get(name, {}))
        else:
            self.free.setdefault(name, line)

    def _hidden(self, name: str) -> bool:
        """Say whether a class body or a comprehension binds the name; inside the second, class names are not seen."""
        scopes = enumerate(reversed(self._scopes))
        return any(name in scope.names and not (scope.is_class and depth) for depth, scope in scopes)

    def _mention(self, body: dict[str, int]) -> None:
        """Take note of what a body reads if it runs here, and what functions of the cell that it calls read in turn."""
        pending, seen = list(body.items()), set[str]()
        while pending and self.bound is not None:
            name, line = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name not in self.bound and not any(name in s.names for s in self._scopes if not s.is_class):
                self.free.setdefault(name, line)
            pending.extend(self._bodies.get(name, {}).items())

    def finish(self) -> None:
        """Take note of what functions read that nothing has mentioned."""
        for name, body in self._bodies.items():
            if self.bound is not None and name in self.bound:
                self._mention(body)

    def _name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read(node.id, node.lineno)
        elif isinstance(node.ctx, ast.Store):
            self.bind(node.id)
        else:
            self._delete(node)

    def _delete(self, node: ast.Name) -> None:
        if self._scopes and self._scopes[-1].is_class:
            self._scopes[-1].names.discard(node.id)
        elif self.bound is not None:
            if node.id not in self.bound:
                self.deleted.setdefault(node.id, node.lineno)
            self.bound.discard(node.id)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self.bind(alias.asname or alias.name.partition(".")[0])

    # -- statements whose parts are evaluated in another order than they are written -------------------------------

    def _assign(self, node: ast.Assign) -> None:
        self.walk(node.value)
        self.walk_all(node.targets)

    def _aug_assign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.read(node.target.id, node.target.lineno)
        self.walk(node.value)
        self.walk(node.target)

    def _ann_assign(self, node: ast.AnnAssign) -> None:
        self.walk(node.annotation)
        if node.value is not None:
            self.walk(node.value)
            self.walk(node.target)

    def _named_expr(self, node: ast.NamedExpr) -> None:
        self.walk(node.value)
        self.walk(node.target)

    # -- definitions -----------------------------------------------------------------------------------------------

    def _function_def(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.walk_all(node.decorator_list)
        with self._type_parameters(node):
            self._signature(node.args)
            self.walk_all([node.returns])
        self._define(node)

    @contextlib.contextmanager
    def _type_parameters(self, node: Any) -> Iterator[None]:
        """Hide the names of ``def f[T](...)`` and ``class C[T]`` (Python 3.12) while their heads are walked."""
        scope = _Scope(is_class=False, branches=self._branches)
        scope.names.update(parameter.name for parameter in getattr(node, "type_params", ()))
        self._scopes.append(scope)
        yield
        self._scopes.pop()

    def _type_alias(self, node: Any) -> None:
        self.walk(node.name)
        with self._type_parameters(node):
            self._perhaps([node.value])

    def _lambda(self, node: ast.Lambda) -> None:
        self._signature(node.args)
        self._mention(read_later(node))

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        body = read_later(node)
        if node.decorator_list:
            # A decorator may call it at once.
            self._mention(body)
        self.bind(node.name)
        self._bodies[node.name] = body

    def _signature(self, args: ast.arguments) -> None:
        self.walk_all([*args.defaults, *args.kw_defaults])
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        self.walk_all(arg.annotation for arg in every if arg is not None)

    def _class_def(self, node: ast.ClassDef) -> None:
        self.walk_all(node.decorator_list)
        with self._type_parameters(node):
            self.walk_all([*node.bases, *node.keywords])
            self._scopes.append(_Scope(is_class=True, branches=self._branches))
            self.walk_all(node.body)
            self._scopes.pop()
        self._define(node)

    # -- comprehensions --------------------------------------------------------------------------------------------

    def _comprehension(self, node: _Comprehension) -> None:
        scope = _Scope(is_class=False, branches=self._branches)
        self.walk(node.generators[0].iter)
        self._scopes.append(scope)
        for number, generator in enumerate(node.generators):
            if number:
                self._perhaps([generator.iter])
            scope.names.update(n.id for n in ast.walk(generator.target) if isinstance(n, ast.Name))
            self._perhaps(generator.ifs)
        self._perhaps([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self._scopes.pop()

    # -- ways through the cell -------------------------------------------------------------------------------------

    def _if_exp(self, node: ast.IfExp) -> None:
        self.walk(node.test)
        start = self.bound
        self.bound = _join(self._branch(start, [node.body]), self._branch(start, [node.orelse]))

    def _bool_op(self, node: ast.BoolOp) -> None:
        self.walk(node.values[0])
        start = self.bound
        self.bound = _join(start, self._branch(start, node.values[1:]))

    def _branch(self, start: set[str] | None, nodes: Iterable[ast.AST]) -> set[str] | None:
        """Walk ``nodes`` from ``start`` and return what is bound behind them."""
        self.bound = None if start is None else set(start)
        self._perhaps(nodes)
        return self.bound

    def _if(self, node: ast.If) -> None:
        self.walk(node.test)
        start = self.bound
        self.bound = _join(self._branch(start, node.body), self._branch(start, node.orelse))

    def _try(self, node: ast.Try) -> None:
        start = self.bound
        ends = [self._branch(start, [*node.body, *node.orelse])]
        broken_off = None if start is None else start - _deleted_in(node.body)
        ends.extend(self._branch(broken_off, [handler]) for handler in node.handlers)
        end = _join(*ends)
        behind = self._branch(broken_off if end is None else end, node.finalbody)
        self.bound = None if end is None else behind

    def _except_handler(self, node: ast.ExceptHandler) -> None:
        self.walk_all([node.type])
        if node.name:
            self.bind(node.name)
        self.walk_all(node.body)
        if node.name and self.bound is not None:
            self.bound.discard(node.name)

    def _match(self, node: ast.Match) -> None:
        self.walk(node.subject)
        start = self.bound
        ends = [
            self._branch(start, [case.pattern, *([case.guard] if case.guard else []), *case.body])
            for case in node.cases
        ]
        last = node.cases[-1]
        covers_all = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None
        self.bound = _join(*ends) if covers_all else _join(start, *ends)

    def _match_as(self, node: ast.MatchAs) -> None:
        self.walk_all([node.pattern])
        if node.name:
            self.bind(node.name)

    def _match_star(self, node: ast.MatchStar) -> None:
        if node.name:
            self.bind(node.name)

    def _match_mapping(self, node: ast.MatchMapping) -> None:
        self.walk_all([*node.keys, *node.patterns])
        if node.rest:
            self.bind(node.rest)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        self.walk_all([node.iter, node.target])
        self._loop(node.body, node.orelse)

    def _while(self, node: ast.While) -> None:
        self.walk(node.test)
        self._loop(node.body, node.orelse)

    def _loop(self, body: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        start = self.bound
        self._breaks.append([])
        end = self._branch(start, body)
        breaks = self._breaks.pop()
        self.bound = _join(*breaks) if end is None and breaks else (end if end is not None else start)
        self._perhaps(orelse)

    def _break(self, node: ast.Break) -> None:
        if self._breaks and self.bound is not None:
            self._breaks[-1].append(set(self.bound))
        self.bound = None

    def _continue(self, node: ast.Continue) -> None:
        self.bound = None

    def _raise(self, node: ast.Raise) -> None:
        self.walk_all([node.exc, node.cause])
        self.bound = None

    _handlers: ClassVar[dict[type[ast.AST], Callable[[Any, Any], None]]] = {
        ast.AnnAssign: _ann_assign,
        ast.Assign: _assign,
        ast.AsyncFor: _for,
        ast.AsyncFunctionDef: _function_def,
        ast.AugAssign: _aug_assign,
        ast.BoolOp: _bool_op,
        ast.Break: _break,
        ast.ClassDef: _class_def,
        ast.Continue: _continue,
        ast.DictComp: _comprehension,
        ast.ExceptHandler: _except_handler,
        ast.For: _for,
        ast.FunctionDef: _function_def,
        ast.GeneratorExp: _comprehension,
        ast.If: _if,
        ast.IfExp: _if_exp,
        ast.Import: _import,
        ast.ImportFrom: _import,
        ast.Lambda: _lambda,
        ast.ListComp: _comprehension,
        ast.Match: _match,
        ast.MatchAs: _match_as,
        ast.MatchMapping: _match_mapping,
        ast.MatchStar: _match_star,
        ast.Name: _name,
        ast.NamedExpr: _named_expr,
        ast.Raise: _raise,
        ast.SetComp: _comprehension,
        ast.Try: _try,
        ast.TryStar: _try,
        ast.While: _while,
    }
    if hasattr(ast, "TypeAlias"):
        _handlers[ast.TypeAlias] = _type_alias


def _join(*ends: set[str] | None) -> set[str] | None:
    """Return what is bound whichever way was taken; None stands for a way that does not go on."""
    going_on = [end for end in ends if end is not None]
    return set.intersection(*going_on) if going_on else None


def _deleted_in(statements: Iterable[ast.stmt]) -> set[str]:
    nodes = [node for statement in statements for node in ast.walk(statement)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)}


def read_later(node: ast.stmt | ast.Lambda) -> dict[str, int]:
    """Return the names from outside that the bodies of functions inside ``node`` read when called, with their lines."""
    with warnings.catch_warnings(action="ignore"):
        table = symtable.symtable(ast.unparse(node), "<cell>", "exec")
    # Not from the table: since comprehensions are part of their function (Python 3.12) it forgets some that are read.
    read: dict[str, int] = {}
    for part in ast.walk(node):
        name = part.target if isinstance(part, ast.AugAssign) else part
        if isinstance(name, ast.Name) and (name is not part or isinstance(name.ctx, ast.Load)):
            read[name.id] = min(name.lineno, read.get(name.id, name.lineno))
    return {name: read[name] for name in _globals_of_functions(table, later=False) if name in read}


def _globals_of_functions(table: symtable.SymbolTable, *, later: bool) -> list[str]:
    """Return the names from outside that the functions inside a scope know."""
    later = later or (
        table.get_type() not in ("module", "class") and table.get_name().strip("<>") not in _COMPREHENSIONS
    )
    found = [symbol.get_name() for symbol in table.get_symbols() if later and symbol.is_global()]
    for child in table.get_children():
        found.extend(_globals_of_functions(child, later=later))
    return found
