"""Static analysis of free and undefined names of code; nothing is run.

* A name is free if some path through the code reads or deletes it before binding it. Branches bind a name only if each
  of them does; the body of a loop counts as run. Reads in a function count where the function is first mentioned,
  because it may be called there.
* An undefined name is certain if it is read by a statement that always runs, or by a function that such a statement
  calls. Other statements (a branch, a ``try`` that catches the error, a method) only possibly read it.

The names that a statement reads and binds are taken from its compiled code, so Python's scoping rules apply.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import difflib
import dis
import functools
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from distdl_jupyter.capture.notebook import CodeLocation, code_text
from distdl_jupyter.capture.references import READS, WRITES, code_objects, instructions, reads_of
from distdl_jupyter.core.findings import UndefinedName
from distdl_jupyter.core.source import dotted_name, parse, parsed
from distdl_jupyter.worker.sources import deep_recursion

#: Names that every rank has besides the builtins: those of modules and class bodies, ``display`` (shown as text), and
#: the usual name of gettext's function.
_MODULE_NAMES = ("name", "file", "doc", "builtins", "spec", "package", "loader", "annotations", "cached")
_CLASS_NAMES = ("class", "module", "qualname")
_ALWAYS_DEFINED = {*(f"__{name}__" for name in (*_MODULE_NAMES, *_CLASS_NAMES)), "display", "_", "WindowsError"}
#: Builtins of a notebook that ranks lack.
_OF_NOTEBOOKS = {"get_ipython", "__IPYTHON__"}
_EXITS = ("exit", "quit", "sys.exit", "os._exit", "os.abort", "os.execv", "os.execvp", "os.execve")
#: Context managers that suppress errors, by the last part of their names.
_CATCHES_ERRORS = re.compile("suppress|ignore|raises", re.IGNORECASE)
_RUNS_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_LEAVES = ast.Return | ast.Break | ast.Continue
_PASS = ast.parse("pass").body


@dataclass(frozen=True)
class CompiledSource:
    """The source and compiled code of a function or module; ``shift`` is added to its line numbers."""

    node: Any
    compiled: CodeType
    label: str = ""
    shift: int = 0

    @classmethod
    @deep_recursion()
    def from_text(cls, text: str, label: str = "", first_line: int = 1) -> CompiledSource:
        """Return the code of a cell or a script."""
        tree = parse(text)
        return cls(tree, _compile(tree), label, first_line - 1)

    @classmethod
    def from_function(cls, function: FunctionType, location: CodeLocation) -> CompiledSource | None:
        """Return the code of a function, None if its source is not available."""
        compiled = function.__code__
        text = code_text(compiled.co_filename, location)
        tree = parsed(text.text) if text is not None else None
        if text is None or tree is None:
            return None
        nodes = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            and getattr(node, "name", "<lambda>") == compiled.co_name
            and min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) == compiled.co_firstlineno
        ]
        return cls(nodes[0], compiled, text.label, text.first_line - 1) if len(nodes) == 1 else None

    @property
    def body(self) -> list[Any]:
        """The statements of the code, or the expression of a lambda."""
        return self.node.body if isinstance(self.node.body, list) else [self.node.body]

    @property
    def variables(self) -> frozenset[str]:
        """The local variables of a function."""
        if isinstance(self.node, ast.Module):
            return frozenset()
        return frozenset((*self.compiled.co_varnames, *self.compiled.co_cellvars, *self.compiled.co_freevars))

    @functools.cached_property
    def functions(self) -> dict[str, CompiledSource]:
        """The functions defined in this code, except decorated ones and names that are set more than once."""
        steps = dis.get_instructions(self.compiled)
        writes = Counter(step.argval for step in steps if step.opname.startswith("STORE_"))
        codes = {part.co_name: part for part in self.compiled.co_consts if isinstance(part, CodeType)}
        return {
            node.name: dataclasses.replace(self, node=node, compiled=codes[node.name])
            for node in self.body
            if isinstance(node, ast.FunctionDef)
            if not node.decorator_list and writes[node.name] == 1 and node.name in codes
        }

    def describe_line(self, line: int) -> str:
        """Return a line for display: ``line 2 of Cell [3]``."""
        return f"line {line + self.shift}{f' of {self.label}' if self.label else ''}"


def _compile(tree: ast.Module) -> CodeType:
    with warnings.catch_warnings(action="ignore"):
        code: CodeType = compile(tree, "<code>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


@deep_recursion()
def free_names(code: str) -> list[str]:
    """Return the free names of ``code``, in the order of their first use.

    Raises SyntaxError if it is not plain Python.
    """
    return list(_BindingWalk(parse(code)).free)


@deep_recursion()
def find_undefined(
    main: CompiledSource, namespace: Mapping[str, Any], where: str, functions: Mapping[int, CompiledSource | None]
) -> tuple[UndefinedName, ...]:
    """Return the names that are defined neither in ``namespace`` nor in the code.

    ``main`` is the module that runs or the function that is called; ``functions`` are those that may be called, by id.
    """
    codes = [main, *(code for code in functions.values() if code is not None)]
    if any(_defines_unseen(part) for code in codes for part in ast.walk(code.node)):
        return ()
    assigned = {step.argval for code in codes for step in instructions(code.compiled, WRITES)}
    known = {*dir(builtins), *_ALWAYS_DEFINED} - _OF_NOTEBOOKS | {*namespace} | assigned
    bound = known | {step.argval for code in codes for step in instructions(code.compiled, ("STORE_NAME",))}
    early = _BindingWalk(main.node).early if isinstance(main.node, ast.Module) else set[str]()
    walk = _CertainWalk(
        main, {name: functions.get(id(value)) for name, value in namespace.items() if name not in assigned}
    )
    walk.follow(main.body, main)
    undefined = {
        name: UndefinedName(name, line, where, certain=True)
        for name, line in walk.reads.items()
        if name not in known and (name in early or name not in bound)
    }
    for code in codes:
        for name, line in reads_of(code.compiled, _lines_that_may_fail(code.node)).items():
            if name not in bound:
                undefined.setdefault(name, UndefinedName(name, code.describe_line(line), where, certain=False))
    variables = {name for code in codes for part in code_objects(code.compiled) for name in part.co_varnames}
    names = sorted(name for name in bound | variables if not name.startswith("_"))
    return tuple(
        dataclasses.replace(name, similar=tuple(difflib.get_close_matches(name.name, names, 2, 0.7)))
        for name in undefined.values()
    )


# bound and read names of a module ----------------------------------------------------------------------


class _BindingWalk:
    """Walks the statements of a module with the names that are bound on every path to them."""

    def __init__(self, tree: ast.Module) -> None:
        self.free: dict[str, None] = {}
        #: Names read outside branches and loops before they can be bound.
        self.early: set[str] = set()
        #: Names that the body of each function and class reads when it is called.
        self._bodies: dict[str, set[str]] = {}
        self._maybe_bound: set[str] = set()
        #: Number of branches and loops around the current statement.
        self._depth = 0
        end = self._follow(tree.body, set())
        for name in list(self._bodies):
            self._mention(name, end or set())

    def _follow(self, statements: Iterable[Any], bound: set[str]) -> set[str] | None:
        """Return the names bound after the statements, None if that point is unreachable."""
        for statement in statements:
            after = self._statement(statement, bound)
            if after is None:
                return None
            bound = after
        return bound

    def _statement(self, node: Any, bound: set[str]) -> set[str] | None:
        match node:
            case ast.Break() | ast.Continue():
                return None
            case ast.Raise():
                self._read(node, bound)
                return None
            case ast.If() if (truth := _truth(node.test)) is not None:
                return self._follow(node.body if truth else node.orelse, bound)
            case ast.If():
                bound = self._read(_head(node), bound)
                return _join([self._branch(node.body, bound), self._branch(node.orelse, bound)])
            case ast.For() | ast.AsyncFor() | ast.While():
                bound = self._read(_head(node), bound)
                after = self._branch(node.body, bound)
                bound = bound if after is None else after
                return _join([bound, self._branch(node.orelse, bound)])
            case ast.With() | ast.AsyncWith():
                return self._follow(node.body, self._read(_head(node), bound))
            case ast.Try() | ast.TryStar():
                return self._try(node, bound)
            case ast.Match():
                self._read(ast.Expr(node.subject), bound)
                last = node.cases[-1]
                covers_all = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and not last.guard
                heads = [ast.Match(ast.Constant(None), [_head(case)]) for case in node.cases]
                ends = [self._branch(c.body, bound, head) for c, head in zip(node.cases, heads, strict=True)]
                return _join([*ends, *[bound] * (not covers_all)])
        return self._read(node, bound)

    def _branch(self, statements: Iterable[Any], bound: set[str], head: ast.stmt | None = None) -> set[str] | None:
        """Walk statements that may not run, after their header has bound its names."""
        self._depth += 1
        end = self._follow(statements, bound if head is None else self._read(head, bound))
        self._depth -= 1
        return end

    def _try(self, node: ast.Try | ast.TryStar, bound: set[str]) -> set[str] | None:
        ends = [self._branch([*node.body, *node.orelse], bound)]
        for handler in node.handlers:
            name = {handler.name} if handler.name else set()
            self._maybe_bound |= name
            ends.append(self._branch(handler.body, bound | name, ast.Expr(handler.type) if handler.type else None))
        end = _join(ends)
        after = self._follow(node.finalbody, bound if end is None else end)
        return None if end is None else after

    def _read(self, node: ast.stmt, bound: set[str]) -> set[str]:
        """Record the names that a statement reads, and return those bound after it."""
        code = _compile(ast.fix_missing_locations(ast.Module([node], [])))
        names = [part for part in _always(node) if isinstance(part, ast.Name)]
        loads = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        walrus = {part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr)}
        perhaps = walrus.difference(name.id for name in names)
        after = set(bound)
        for step in dis.get_instructions(code):
            name = step.argval
            if step.opname in READS and name != "__annotations__":
                self._mention(name, after)
                if name not in after and name in loads and name not in self._maybe_bound and not self._depth:
                    self.early.add(name)
            elif step.opname == "STORE_NAME":
                self._maybe_bound.add(name)
                after.update({name} - perhaps)
            elif step.opname == "DELETE_NAME":
                self._mention(name, after)
                after.discard(name)
        now, later = _inner_reads(code)
        for name in sorted(now | (later if getattr(node, "decorator_list", ()) else set())):  # it may be called at once
            self._mention(name, bound)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._bodies.setdefault(node.name, set()).update(later)
        return after

    def _mention(self, name: str, bound: Collection[str]) -> None:
        """Record that a name is read, with the names read if it is called, transitively."""
        pending, visited = [name], set[str]()
        while pending:
            name = pending.pop()
            if name not in visited:
                visited.add(name)
                if name not in bound:
                    self.free[name] = None
                pending.extend(sorted(self._bodies.get(name, ())))


def _head(node: Any) -> Any:
    """Return a copy of a compound statement, handler or case with an empty body."""
    head = copy.copy(node)
    head.body = _PASS
    if isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While):
        head.orelse = []
    return head


def _inner_reads(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names read in lambdas, comprehensions and class bodies now, and those read in functions later."""
    now, later = set[str](), set[str]()
    for part in code.co_consts:
        if isinstance(part, CodeType) and part.co_name.startswith("<"):
            now.update(reads_of(part).keys() - _ALWAYS_DEFINED)
        elif isinstance(part, CodeType) and part.co_flags & inspect.CO_OPTIMIZED:
            later.update(reads_of(part))
        elif isinstance(part, CodeType):
            steps = list(dis.get_instructions(part))
            reads = {step.argval for step in steps if step.opname in READS} - _ALWAYS_DEFINED
            inner_now, inner_later = _inner_reads(part)
            now |= reads | inner_now
            # A class body that reads one of its own names may call its methods during definition.
            is_own = not reads.isdisjoint(step.argval for step in steps if step.opname == "STORE_NAME")
            (now if is_own else later).update(inner_later)
    return now, later


def _join(ends: Iterable[set[str] | None]) -> set[str] | None:
    """Return the names bound on every branch, None if no branch reaches the end."""
    reached = [end for end in ends if end is not None]
    return set.intersection(*reached) if reached else None


# statements that always run ---------------------------------------------------------------------------


class _CertainWalk:
    """Walks the statements that always run, and the functions that they call."""

    def __init__(self, main: CompiledSource, functions: Mapping[str, CompiledSource | None]) -> None:
        #: Names of the module that are always read, with their lines.
        self.reads: dict[str, str] = {}
        self._functions = functions
        if isinstance(main.node, ast.Module):
            steps = dis.get_instructions(main.compiled)
            bound = {step.argval: None for step in steps if step.opname in ("STORE_NAME", "STORE_GLOBAL")}
            self._functions = {**functions, **bound, **main.functions}
        self._entered: set[int] = set()
        #: Whether the process may have exited before this point.
        self._exited = False

    def follow(self, statements: Iterable[Any], code: CompiledSource) -> bool:
        """Return whether the code after the statements always runs, too."""
        return all(self._statement(statement, code) for statement in statements)

    def _statement(self, node: Any, code: CompiledSource) -> bool:
        for part in _always(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id not in code.variables:
                self.reads.setdefault(part.id, code.describe_line(part.lineno))
            function = self._function(part, code)
            if function is not None and id(function.node) not in self._entered:
                self._entered.add(id(function.node))
                self.follow(function.body, function)
            self._exited = self._exited or _ends_process(part)
            if self._exited:
                return False
        match node:
            case ast.If() if (truth := _truth(node.test)) is not None:
                return self.follow(node.body if truth else node.orelse, code)
            case ast.For() | ast.AsyncFor() | ast.While():
                self.follow(node.body, code)
                return not self._may_leave(node, code, ast.Return)
            case ast.With() | ast.AsyncWith() if not any(map(_catches_errors, node.items)):
                return self.follow(node.body, code)
            case ast.Try() | ast.TryStar() if all(map(_lets_pass, node.handlers)):
                return self.follow(node.body, code) and self.follow(node.finalbody, code)
        return not isinstance(node, ast.Raise) and not self._may_leave(node, code, _LEAVES)

    def _function(self, node: ast.AST, code: CompiledSource) -> CompiledSource | None:
        """Return the function that a node calls, if its source is known."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            return None
        functions = code.functions if node.func.id in code.variables else self._functions
        function = functions.get(node.func.id)
        return None if function is None or function.compiled.co_flags & _RUNS_LATER else function

    def _may_leave(self, node: ast.AST, code: CompiledSource, kinds: Any) -> bool:
        """Return whether a branch of a statement may leave the surrounding code or end the process."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
        parts = list(ast.walk(node))
        functions = [function for part in parts if (function := self._function(part, code)) is not None]
        inner = (part for function in functions for part in ast.walk(function.node))
        self._exited = self._exited or any(map(_ends_process, (*parts, *inner)))
        return self._exited or any(isinstance(part, kinds) for part in parts)


#: Fields that are always evaluated, for nodes where not all are; for compound statements, the header.
_EVALUATED: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((ast.If, ast.IfExp, ast.While, ast.Assert), ("test",)),
    **dict.fromkeys((ast.For, ast.AsyncFor), ("iter", "target")),
    **dict.fromkeys((ast.With, ast.AsyncWith), ("items",)),
    **dict.fromkeys((ast.Try, ast.TryStar), ()),
    **dict.fromkeys((ast.FunctionDef, ast.AsyncFunctionDef), ("decorator_list", "args")),
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), ("generators",)),
    ast.ClassDef: ("decorator_list", "bases", "keywords"),
    ast.Lambda: ("args",),
    ast.arguments: ("defaults", "kw_defaults"),
    ast.comprehension: ("iter",),
    ast.Match: ("subject",),
    ast.AnnAssign: ("value", "target"),
}
#: Nodes with lists of which only the first item is always evaluated.
_SHORT_CIRCUIT = (ast.BoolOp, ast.Compare, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _always(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are always evaluated when a statement or expression is."""
    # Type parameters (Python 3.12) are local, and their bounds are evaluated lazily.
    for name in () if getattr(node, "type_params", ()) else _EVALUATED.get(type(node), node._fields):
        value = getattr(node, name)
        values = value if isinstance(value, list) else [value]
        for part in values[:1] if isinstance(node, _SHORT_CIRCUIT) else values:
            if isinstance(part, ast.AST):
                yield from _always(part)
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
    yield node


def _ends_process(node: ast.AST) -> bool:
    calls_exit = isinstance(node, ast.Call) and dotted_name(node.func, {}) in _EXITS
    return calls_exit or (isinstance(node, ast.Name) and node.id == "SystemExit")


def _catches_errors(item: ast.withitem) -> bool:
    call = item.context_expr
    name = dotted_name(call.func, {}) if isinstance(call, ast.Call) else ""
    return _CATCHES_ERRORS.search(name.rpartition(".")[2]) is not None


def _lets_pass(handler: ast.ExceptHandler) -> bool:
    """Return whether a NameError propagates out of the ``try``: the handler does not catch it, or raises it again."""
    if handler.type is not None and dotted_name(handler.type, {}) == "KeyboardInterrupt":
        return True
    last = handler.body[-1]
    leaves = any(isinstance(part, _LEAVES) for part in ast.walk(handler))
    return isinstance(last, ast.Raise) and last.exc is None and not leaves


def _truth(test: ast.expr) -> bool | None:
    """Return the constant value of a test, None if it depends on the run."""
    match test:
        case ast.Constant():
            return bool(test.value)
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return True
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return False
        case ast.UnaryOp(op=ast.Not(), operand=operand) if (truth := _truth(operand)) is not None:
            return not truth
    return None


def _defines_unseen(node: ast.AST) -> bool:
    """Return whether a node can define names that are not visible in its source."""
    match node:
        case ast.Name(id="exec" | "eval" | "globals" | "builtins" | "__builtins__"):
            return True
        case ast.Call(func=ast.Name(id="locals" | "vars"), args=[], keywords=[]):
            return True
        case ast.Attribute(value=ast.Name(id="sys"), attr="modules" | "_getframe"):
            return True
        case ast.alias(name="*" | "__main__" | "builtins"):
            return True
    return False


def _lines_that_may_fail(code: ast.AST) -> set[int]:
    """Return the lines where an undefined name is harmless: NameError is caught there, or they never run."""
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
    return any(dotted_name(kind, {}) in ("NameError", "Exception", "BaseException") for kind in types)
