"""The names that code takes from outside, and those that nothing defines: pure analysis, nothing is run.

The statements at the top are followed once, in the order in which Python evaluates them. What functions read comes from
their compiled code.

* A name is free when some way through the code reads it before the code binds it. Branches bind a name only when each
  of them does; the body of a loop counts as run. What a function reads counts where the function is first mentioned,
  because it may be called there.
* A name is undefined in every run when a statement that always runs, or a function that such a statement calls, reads
  it and nothing can have bound it before. Statements that may not run (a branch, a loop over what may be empty, a
  method, a ``try``) can bind names and end the run, and what they read is only possibly undefined.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import dataclasses
import difflib
import functools
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MappingProxyType
from typing import Any

from distdl_jupyter.capture.notebook import CodeLocation, code_text
from distdl_jupyter.capture.references import WRITES, code_objects, instructions, reads_of
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.findings import UndefinedName
from distdl_jupyter.core.source import dotted_name, parse

#: Names that every rank has besides the builtins: ``display``, which it shows as text, what modules and class bodies
#: have, and the usual name of gettext's function.
_MODULE_NAMES = ("name", "file", "doc", "builtins", "spec", "package", "loader", "annotations", "cached")
_CLASS_NAMES = ("class", "module", "qualname")
_ALWAYS_DEFINED = {*(f"__{name}__" for name in (*_MODULE_NAMES, *_CLASS_NAMES)), "display", "_", "WindowsError"}
#: Builtins of a notebook that no rank has.
_OF_NOTEBOOKS = ("get_ipython", "__IPYTHON__")
#: Functions that can define names unseen; the second ones only where they are called without arguments.
_DEFINES_UNSEEN, _DEFINES_UNSEEN_BARE = ("exec", "eval", "globals", "builtins", "__builtins__"), ("locals", "vars")
_EXITS = ("exit", "quit", "sys.exit", "os._exit", "os.abort", "os.execv", "os.execvp", "os.execve")
#: Context managers that let every exception pass, by the last part of their name.
_TRANSPARENT = re.compile(
    r"open|(no|enable|set)_grad(_enabled)?|inference_mode|autocast|no_sync|device|stream|record_function|profile|tqdm|"
    r"(Thread|Process)?Pool(Executor)?|SummaryWriter|TemporaryDirectory|NamedTemporaryFile|catch_warnings"
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True)
class CompiledSource:
    """A function or a whole module, as source and compiled; ``shift`` is added to its line numbers."""

    node: ast.AST
    compiled: CodeType
    label: str = ""
    shift: int = 0

    @classmethod
    def from_text(cls, text: str, label: str = "", first_line: int = 1) -> CompiledSource:
        """Return the code of a cell or a script."""
        tree = parse(text)
        with warnings.catch_warnings(action="ignore"):
            compiled = compile(text, label, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        return cls(tree, compiled, label, first_line - 1)

    @classmethod
    def from_function(cls, function: FunctionType, location: CodeLocation) -> CompiledSource | None:
        """Return the code of a function, None where its source is not available."""
        compiled = function.__code__
        text = code_text(compiled.co_filename, location)
        try:
            tree = parse(text.text if text is not None else "")
        except (SyntaxError, ValueError, InvalidSpec):
            return None
        key = compiled.co_firstlineno, compiled.co_name
        nodes = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) and _key(node) == key]
        return (
            cls(nodes[0], compiled, text.label, text.first_line - 1) if text is not None and len(nodes) == 1 else None
        )

    @functools.cached_property
    def _inner(self) -> dict[tuple[int, str], list[CodeType]]:
        inner: dict[tuple[int, str], list[CodeType]] = {}
        for part in code_objects(self.compiled):
            inner.setdefault((part.co_firstlineno, part.co_name), []).append(part)
        return inner

    def inner(self, node: _Function | ast.ClassDef) -> list[CodeType]:
        """Return what a function or class inside was compiled to; several for lambdas that share a line."""
        return self._inner.get(_key(node), [])

    @property
    def evaluates_annotations(self) -> bool:
        """Whether annotations are evaluated where they are written."""
        return sys.version_info < (3, 14) and not self.compiled.co_flags & __future__.annotations.compiler_flag

    def place(self, line: int) -> str:
        """Return a line for people: ``line 2 of Cell [3]``."""
        return f"line {line + self.shift}{f' of {self.label}' if self.label else ''}"


def _key(node: _Function | ast.ClassDef) -> tuple[int, str]:
    lines = [node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]
    return min(lines), getattr(node, "name", "<lambda>")


# results ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Uses:
    """The names that a piece of code takes from outside, each with the line of its first use (counted from 1).

    ``deleted`` are names that are deleted without ever being bound or read before.
    """

    free: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)


def uses(code: str) -> Uses:
    """Return what ``code`` takes from outside. Raises SyntaxError when it is not plain Python."""
    walk = _Walk(CompiledSource.from_text(code))
    walk.run()
    return Uses(walk.free, {name: line for name, line in walk.deleted.items() if name not in walk.free})


def find_undefined(
    main: CompiledSource,
    namespace: Collection[str],
    where: str,
    *,
    called: Callable[[str], CompiledSource | None] = lambda _: None,
    others: Iterable[CompiledSource] = (),
    numbers: Mapping[str, float] = MappingProxyType({}),
) -> tuple[UndefinedName, ...]:
    """Return the names that neither ``namespace`` nor the code defines.

    ``main`` runs as a module, or is the function that is called. ``called`` returns the source of a function of the
    namespace, ``others`` are all functions that may be called, and ``numbers`` values of the namespace.
    """
    codes = [main, *others]
    if any(_defines_unseen(code.node) for code in codes):
        return ()
    known = {*namespace, *dir(builtins), *_ALWAYS_DEFINED} - {*_OF_NOTEBOOKS} | {*namespace}
    compiled = [code.compiled for code in codes]
    assigned = {step.argval for code in compiled for step in instructions(code, WRITES)}
    bound = assigned | {step.argval for code in compiled for step in instructions(code, ("STORE_NAME",))}
    walk = _Walk(main, known, called, assigned, numbers)
    walk.run()
    undefined = {name: UndefinedName(name, location, where, certain=True) for name, location in walk.undefined.items()}
    for code in codes:
        for name, line in reads_of(code.compiled, _lines_that_may_fail(code.node)).items():
            if name not in known | bound:
                undefined.setdefault(name, UndefinedName(name, code.place(line), where, certain=False))
    variables = {name for code in compiled for part in code_objects(code) for name in part.co_varnames}
    names = sorted(name for name in known | bound | variables if not name.startswith("_"))
    return tuple(
        dataclasses.replace(name, similar=tuple(difflib.get_close_matches(name.name, names, 2, 0.7)))
        for name in undefined.values()
    )


# the walk ---------------------------------------------------------------------------------------------


@dataclass
class _Scope:
    """The names of a module, a class body or a called function at one point of the walk.

    ``bound`` are those that are bound on every way to this point, None where no way leads; ``maybe`` those that are
    bound on some way.
    """

    is_class: bool = False
    bound: set[str] | None = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)
    functions: dict[str, CompiledSource] = field(default_factory=dict)


class _Walk(ast.NodeVisitor):
    """Follows statements in evaluation order."""

    def __init__(
        self,
        main: CompiledSource,
        known: Collection[str] = (),
        called: Callable[[str], CompiledSource | None] = lambda _: None,
        assigned: Collection[str] = (),
        numbers: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.free: dict[str, int] = {}
        self.deleted: dict[str, int] = {}
        self.undefined: dict[str, str] = {}
        self._known, self._called, self._assigned = known, called, assigned
        self._scope = self._module = _Scope(maybe={*assigned})
        self._code = main
        #: Variables of functions, comprehensions and type parameters around this point.
        self._hidden: frozenset[str] = frozenset()
        #: What the body of each function and class reads when it is called.
        self._bodies: dict[str, dict[str, int]] = {}
        self._entered: set[int] = set()
        self._in_function = False
        #: How many statements that may not run are around this point, and how the code may have left before it.
        self._doubts = 0
        self._jumps: set[str] = set()
        #: Values of names of the module, as far as they are known.
        self._numbers = {name: value for name, value in numbers.items() if name not in assigned}

    def run(self) -> None:
        """Follow a module, or a function that is called."""
        if not isinstance(self._code.node, ast.Module):
            self._enter(self._code)
            return
        self._all(self._code.node.body)
        for body in list(self._bodies.values()):
            self._mention(body)

    @property
    def _is_certain(self) -> bool:
        """Whether every run comes to this point."""
        return not self._doubts and not self._jumps

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _perhaps(self, nodes: Iterable[ast.AST | None], *, certain: bool = False) -> None:
        """Follow what may not run, unless it is ``certain`` to."""
        self._doubts += not certain
        self._all(nodes)
        self._doubts -= not certain

    def _branch(
        self, start: set[str] | None, nodes: Iterable[ast.AST | None], *, certain: bool = False
    ) -> set[str] | None:
        """Follow one branch and return what is bound at its end."""
        self._scope.bound = None if start is None else set(start)
        self._perhaps(nodes, certain=certain)
        return self._scope.bound

    def _branches(self, *branches: Iterable[ast.AST | None]) -> None:
        """Follow branches of which one runs."""
        start = self._scope.bound
        self._scope.bound = _join(self._branch(start, nodes) for nodes in branches)

    @contextlib.contextmanager
    def _hiding(self, names: Iterable[str]) -> Iterator[None]:
        before, self._hidden = self._hidden, self._hidden.union(names)
        yield
        self._hidden = before

    # -- names ---------------------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node.id, node.lineno)
        elif isinstance(node.ctx, ast.Store):
            self._bind(node.id)
        else:
            self._delete(node)

    def _read(self, name: str, line: int) -> None:
        scope, module = self._scope, self._module
        if name in self._hidden or scope.bound is None:
            return
        if not self._in_function:
            if name not in scope.bound and name not in (module.bound or ()):
                self.free.setdefault(name, line)
            self._mention(self._bodies.get(name, {}))
        if self._is_certain and not any(name in names for names in (scope.maybe, module.maybe, self._known)):
            self.undefined.setdefault(name, self._code.place(line))

    def _mention(self, body: Mapping[str, int]) -> None:
        """Record what a body reads if it runs here, and what functions that it calls read in turn."""
        pending, visited = list(body.items()), set[str]()
        while pending and self._module.bound is not None and not self._in_function:
            name, line = pending.pop()
            if name not in visited:
                visited.add(name)
                if name not in self._module.bound:
                    self.free.setdefault(name, line)
                pending.extend(self._bodies.get(name, {}).items())

    def _bind(self, name: str) -> None:
        self._scope.maybe.add(name)
        if self._scope.bound is not None:
            self._scope.bound.add(name)
        self._scope.functions.pop(name, None)
        self._numbers.pop(name, None)

    def _delete(self, node: ast.Name) -> None:
        bound = self._scope.bound
        if bound is not None and node.id not in self._hidden:
            if self._scope is self._module and node.id not in bound:
                self.deleted.setdefault(node.id, node.lineno)
            bound.discard(node.id)

    def visit_alias(self, node: ast.alias) -> None:
        self._bind(node.asname or node.name.partition(".")[0])

    # -- assignments ---------------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        """Follow the value first; a number is remembered."""
        self._all([node.value, *node.targets])
        if self._scope is self._module and self._is_certain and isinstance(node.value, ast.Constant):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}.difference(self._assigned)
            self._numbers.update(dict.fromkeys(names, node.value.value) if isinstance(node.value.value, int) else {})

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Follow the annotation where it is evaluated, and the target where it gets a value."""
        self._perhaps([node.annotation], certain=self._code.evaluates_annotations and not self._in_function)
        self._all([node.value, node.value and node.target])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id, node.target.lineno)
        self._all([node.value, node.target])

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._all([node.value, node.target])

    def visit_TypeAlias(self, node: Any) -> None:
        self._bind(node.name.id)
        with self._hiding(_type_parameters(node)):
            self._perhaps([node.value])

    # -- definitions ---------------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._all([*node.decorator_list, *node.args.defaults, *node.args.kw_defaults])
        annotations = [part.annotation for part in ast.walk(node.args) if isinstance(part, ast.arg)]
        generic = _type_parameters(node)
        with self._hiding(generic):
            self._perhaps([*annotations, node.returns], certain=self._code.evaluates_annotations and not generic)
        self._define(node)
        if not node.decorator_list and self._is_certain and node.name not in self._assigned:
            for compiled in self._code.inner(node)[:1]:
                self._scope.functions[node.name] = dataclasses.replace(self._code, node=node, compiled=compiled)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._all([*node.args.defaults, *node.args.kw_defaults])
        self._mention(self._reads_of(node))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Follow the head and the body, which certainly runs where no metaclass can bring names."""
        self._all(node.decorator_list)
        generic = _type_parameters(node)
        with self._hiding(generic):
            self._perhaps([*node.bases, *node.keywords], certain=not generic)
            outer, self._scope = self._scope, _Scope(is_class=True)
            self._perhaps(node.body, certain=not (node.bases or node.keywords or generic))
            self._scope = outer
        self._define(node)

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        body = self._reads_of(node)
        if node.decorator_list:  # a decorator may call it at once
            self._mention(body)
        self._bind(node.name)
        self._bodies[node.name] = {**body, **self._bodies.get(node.name, {})}

    def _reads_of(self, node: _Function | ast.ClassDef) -> dict[str, int]:
        """Return what functions read when they are called: this one, or those inside a class."""
        parts = self._code.inner(node)
        if isinstance(node, ast.ClassDef):
            parts = [part for outer in parts for part in outer.co_consts if isinstance(part, CodeType)]
        return {name: line for part in parts for name, line in reads_of(part).items()}

    # -- calls ---------------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        code = self._function(node)
        if code is not None and self._is_certain:
            self._enter(code)
        if _dotted(node.func) in _EXITS or (code is not None and any(map(_ends_process, ast.walk(code.node)))):
            self._jumps.add("exit")

    def _function(self, call: ast.Call) -> CompiledSource | None:
        """Return the function that is called, where its source is known."""
        if not isinstance(call.func, ast.Name):
            return None
        name, scope, module = call.func.id, self._scope, self._module
        code = scope.functions.get(name) or module.functions.get(name)
        is_bound = name in self._hidden or name in scope.maybe or name in module.maybe
        return code if code is not None or is_bound else self._called(name)

    def _enter(self, code: CompiledSource) -> None:
        """Follow the body of a function once, as it is called for the first time."""
        node, compiled = code.node, code.compiled
        if id(node) in self._entered or not isinstance(node, _Function) or _runs_later(node):
            return
        self._entered.add(id(node))
        before = self._scope, self._code, self._hidden, self._jumps, self._in_function
        self._scope, self._code, self._jumps, self._in_function = _Scope(), code, set(), True
        self._hidden = frozenset((*compiled.co_varnames, *compiled.co_cellvars, *compiled.co_freevars))
        self._all(node.body if isinstance(node.body, list) else [node.body])
        exits = self._jumps & {"exit"}
        self._scope, self._code, self._hidden, self._jumps, self._in_function = before
        self._jumps |= exits

    # -- ways through the code -----------------------------------------------------------------------------------------

    def visit_Return(self, node: ast.Return) -> None:
        self.generic_visit(node)
        self._leave("return")

    def visit_Raise(self, node: ast.Raise) -> None:
        self.generic_visit(node)
        is_exit = self._is_certain or (node.exc is not None and "SystemExit" in ast.dump(node.exc))
        self._leave(*["exit"] * is_exit)

    def visit_Break(self, node: ast.Break | ast.Continue) -> None:
        self._leave("loop")

    visit_Continue = visit_Break  # noqa: N815

    def _leave(self, *jumps: str) -> None:
        self._jumps.update(jumps)
        self._scope.bound = None

    def visit_If(self, node: ast.If) -> None:
        """Follow both branches; the one that is always taken, if there is one, runs for certain."""
        self.visit(node.test)
        truth = _truth(node.test)
        if truth is None:
            self._branches(node.body, node.orelse)
            return
        taken, other = (node.body, node.orelse) if truth else (node.orelse, node.body)
        start, jumps = self._scope.bound, set(self._jumps)
        self._branch(start, other)
        self._scope.bound, self._jumps = start, jumps
        self._all(taken)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        self._branches([node.body], [node.orelse])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._branches(node.values[1:], [])

    def visit_Compare(self, node: ast.Compare) -> None:
        self._all([node.left, node.comparators[0]])
        self._branches(node.comparators[1:], [])

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        self._branches([node.msg], [])

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._loop([node.target, *node.body], certain=isinstance(node, ast.For) and self._is_filled(node.iter))
        self._branches(node.orelse, [])

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        is_endless = bool(_truth(node.test))
        self._loop(node.body, certain=is_endless)
        self._branches(node.orelse, [])
        if is_endless and not any(isinstance(part, ast.Break) for part in ast.walk(node)):
            self._jumps.add("exit")

    def _loop(self, nodes: Iterable[ast.AST], *, certain: bool) -> None:
        start, jumps = self._scope.bound and set(self._scope.bound), set(self._jumps)
        self._perhaps(nodes, certain=certain)
        self._jumps -= {"loop"} - jumps
        if self._scope.bound is None:
            self._scope.bound = start

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        self._all(node.items)
        calls = [item.context_expr for item in node.items]
        transparent = all(isinstance(call, ast.Call) and _TRANSPARENT.fullmatch(_last(call.func)) for call in calls)
        self._perhaps(node.body, certain=transparent and isinstance(node, ast.With))

    visit_AsyncWith = visit_With  # noqa: N815

    def visit_Try(self, node: Any) -> None:
        """Follow the body, which certainly ends the run with its NameError where nothing can catch that."""
        start, jumps = self._scope.bound, set(self._jumps)
        passes = not _can_leave(node.finalbody) and all(map(_lets_pass, node.handlers))
        ends = [self._branch(start, [*node.body, *node.orelse], certain=passes)]
        deleted = {
            part.id for part in _within(node.body) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Del)
        }
        interrupted = None if start is None else start - deleted
        ends += [self._branch(interrupted, [handler]) for handler in node.handlers]
        end, left, self._jumps = _join(ends), self._jumps, jumps
        after = self._branch(interrupted if end is None else end, node.finalbody, certain=True)
        self._scope.bound = None if end is None else after
        self._jumps |= left

    visit_TryStar = visit_Try  # noqa: N815

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._all([node.type])
        if node.name:
            self._bind(node.name)
        self._all(node.body)
        if node.name and self._scope.bound is not None:
            self._scope.bound.discard(node.name)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        last = node.cases[-1]
        covers_all = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None
        cases = [[case.pattern, case.guard, *case.body] for case in node.cases]
        self._branches(*cases, *[[]] * (not covers_all))

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar | ast.MatchMapping) -> None:
        self.generic_visit(node)
        if name := node.rest if isinstance(node, ast.MatchMapping) else node.name:
            self._bind(name)

    visit_MatchStar = visit_MatchMapping = visit_MatchAs  # noqa: N815

    def visit_ListComp(self, node: _Comprehension) -> None:
        """Follow what is iterated over; the rest may not run, and does not see the names of a class body."""
        first, *more = node.generators
        self.visit(first.iter)
        outer = self._scope
        self._scope = self._module if outer.is_class else outer
        targets = [part.id for g in node.generators for part in ast.walk(g.target) if isinstance(part, ast.Name)]
        with self._hiding(targets):
            self._perhaps([*first.ifs, *(part for g in more for part in (g.iter, *g.ifs))])
            self._perhaps([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self._scope = outer

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp  # noqa: N815

    def _is_filled(self, node: ast.expr) -> bool:
        """Return whether the source shows that what is iterated over has at least one item."""
        match node:
            case ast.List() | ast.Tuple() | ast.Set():
                return bool(node.elts) and not any(isinstance(item, ast.Starred) for item in node.elts)
            case ast.Constant():
                return isinstance(node.value, str | bytes) and bool(node.value)
            case ast.Call(func=ast.Name(id="range"), args=[stop]):
                return self._number(stop) > 0
            case ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(first)), stop]):
                return self._number(stop) > first
            case ast.Call(func=ast.Name(id="enumerate" | "tqdm" | "trange" | "list" | "reversed"), args=[first, *_]):
                return self._is_filled(first)
        return False

    def _number(self, node: ast.expr) -> float:
        """Return the value of a constant or a name, as far as it is known, else 0."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if not isinstance(node, ast.Name) or node.id in self._hidden:
            return 0
        is_own = self._scope is not self._module and node.id in self._scope.maybe
        return 0 if is_own else self._numbers.get(node.id, 0)


def _join(ends: Iterable[set[str] | None]) -> set[str] | None:
    """Return what is bound whichever branch ran; None stands for one that leaves."""
    going_on = [end for end in ends if end is not None]
    return set.intersection(*going_on) if going_on else None


def _type_parameters(node: Any) -> list[str]:
    """Return the names of ``def f[T](...)``, ``class C[T]`` and ``type A[T]`` (Python 3.12)."""
    return [parameter.name for parameter in getattr(node, "type_params", ())]


def _ends_process(node: ast.AST) -> bool:
    calls_exit = isinstance(node, ast.Call) and _dotted(node.func) in _EXITS
    return calls_exit or (isinstance(node, ast.Name) and node.id == "SystemExit")


def _runs_later(node: _Function) -> bool:
    """Return whether calling the function only makes a coroutine or a generator."""
    if isinstance(node, ast.AsyncFunctionDef):
        return True
    body = node.body if isinstance(node.body, list) else [node.body]
    return any(isinstance(part, ast.Yield | ast.YieldFrom) for part in _within(body))


def _lets_pass(handler: ast.ExceptHandler) -> bool:
    """Return whether a NameError leaves the ``try``: the handler only catches an interrupt, or raises it again."""
    if handler.type is not None and _dotted(handler.type) == "KeyboardInterrupt":
        return True
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None and not _can_leave(handler.body)


def _can_leave(nodes: Iterable[ast.AST]) -> bool:
    return any(
        isinstance(part, ast.Return | ast.Break | ast.Continue)
        or (isinstance(part, ast.Call) and _dotted(part.func) in _EXITS)
        for part in _within(nodes)
    )


def _truth(test: ast.expr) -> bool | None:
    """Return what a test always is, None where it depends."""
    match test:
        case ast.Constant():
            return bool(test.value)
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return True
        case ast.UnaryOp(op=ast.Not()):
            inner = _truth(test.operand)
            return None if inner is None else not inner
        case ast.Name() | ast.Attribute() if _last(test) == "TYPE_CHECKING":
            return False
    return None


def _within(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield what runs with ``nodes``: not the bodies of functions and classes inside them."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _SCOPES):
            pending.extend(ast.iter_child_nodes(node))


def _defines_unseen(node: ast.AST) -> bool:
    """Return whether code can define names that its text does not show."""
    parts = list(ast.walk(node))
    called_with = {id(part.func) for part in parts if isinstance(part, ast.Call) and (part.args or part.keywords)}
    for part in parts:
        if isinstance(part, ast.Name) and part.id in _DEFINES_UNSEEN:
            return True
        if isinstance(part, ast.Name) and part.id in _DEFINES_UNSEEN_BARE and id(part) not in called_with:
            return True
        if isinstance(part, ast.Attribute) and _dotted(part) in ("sys.modules", "sys._getframe"):
            return True
        if isinstance(part, ast.alias) and part.name in ("*", "__main__", "builtins"):
            return True
    return False


def _lines_that_may_fail(code: ast.AST) -> set[int]:
    """Return the lines where an undefined name does no harm: NameError is caught there, or they never run."""
    skipped: list[ast.stmt] = []
    for part in ast.walk(code):
        if isinstance(part, ast.Try) and any(map(_catches_name_error, part.handlers)):
            skipped += part.body
        if isinstance(part, ast.If) and (truth := _truth(part.test)) is not None:
            skipped += part.orelse if truth else part.body
    return {line for node in skipped for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def _catches_name_error(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_dotted(kind) in ("NameError", "Exception", "BaseException") for kind in types)


def _dotted(node: ast.AST) -> str:
    """Return the name of a variable or attribute in full, "" for other expressions."""
    name = dotted_name(node, {})
    return "" if name.startswith("?") else name


def _last(node: ast.AST) -> str:
    return _dotted(node).rpartition(".")[2]
