"""Finds the free and undefined names of code by static analysis, without running it.

* A name is free if some path through the code reads or deletes it before binding it. Branches bind a name only if each
  of them does; loop bodies are assumed to run. Reads in a function count where the function is first mentioned,
  because it may be called there.
* An undefined name is certain if it is read by a statement that always runs, or by a function that such a statement
  calls. Other code (a branch, a conditional expression, a ``try`` with handlers, a method) only possibly reads it.

The names that a statement reads and binds are taken from its compiled code, so Python's scoping rules apply.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import difflib
import dis
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from distdl_jupyter.capture.notebook import CodeLocation, read_code_text
from distdl_jupyter.capture.references import ANNOTATIONS_NAME, READ_OPS, WRITE_OPS, find_reads, iter_instructions
from distdl_jupyter.core.errors import UndefinedName
from distdl_jupyter.core.source import get_dotted_name, parse, try_parse
from distdl_jupyter.worker.frames import deep_recursion

#: Names that Python sets in every module and class body.
_PYTHON_NAMES = {
    *("__name__", "__file__", "__doc__", "__builtins__", "__spec__", "__package__", "__loader__", "__annotations__"),
    *("__cached__", "__class__", "__module__", "__qualname__", ANNOTATIONS_NAME, "__conditional_annotations__"),
}
#: Notebook names that ranks also have (``_`` is also the usual name of gettext's function).
_RANK_NAMES = {"display", "_"}
#: Notebook names that ranks lack.
_NOTEBOOK_NAMES = {"get_ipython", "__IPYTHON__"}
#: Code that reads or imports one of these can define names that its source does not show.
_DYNAMIC_NAMES = {"exec", "eval", "globals", "locals", "builtins", "__builtins__"}
_DYNAMIC_IMPORTS = {"*", "__main__", "builtins"}
_EXIT_CALLS = ("exit", "quit", "sys.exit", "os._exit", "os.abort", "os.execv", "os.execvp", "os.execve")
_NAME_ERROR_PATTERN = re.compile(r"\b(NameError|Exception|BaseException)\b")
_DEFERRED_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITION = _FUNCTION | ast.ClassDef
_JUMP = ast.Raise | ast.Break | ast.Continue
_LOOP = ast.For | ast.AsyncFor | ast.While
#: Parts of a statement that are not always evaluated when it runs.
_CONDITIONAL = (
    *(ast.stmt, ast.excepthandler, ast.match_case, ast.BoolOp, ast.IfExp, ast.Lambda),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)
_PASS = ast.parse("pass").body


@dataclass(frozen=True)
class CompiledSource:
    """The source and compiled code of a function or module; ``line_offset`` is added to its line numbers."""

    node: Any
    compiled: CodeType
    label: str = ""
    line_offset: int = 0

    @classmethod
    @deep_recursion()
    def from_text(cls, text: str, label: str = "", first_line: int = 1) -> CompiledSource:
        """Build from the text of a cell or a script."""
        tree = parse(text)
        return cls(tree, _compile(tree), label, first_line - 1)

    @classmethod
    def from_function(cls, function: FunctionType, location: CodeLocation) -> CompiledSource | None:
        """Build from a function, or return None if its source is not available."""
        compiled = function.__code__
        text = read_code_text(compiled.co_filename, location)
        tree = try_parse(text.text) if text is not None else None
        if text is None or tree is None:
            return None
        nodes = [
            node
            for node in ast.walk(tree)
            if isinstance(node, _FUNCTION | ast.Lambda)
            and getattr(node, "name", "<lambda>") == compiled.co_name
            and min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) == compiled.co_firstlineno
        ]
        return cls(nodes[0], compiled, text.label, text.first_line - 1) if len(nodes) == 1 else None

    @property
    def body(self) -> list[Any]:
        """The statements of the code, or the expression of a lambda as a statement."""
        return self.node.body if isinstance(self.node.body, list) else [ast.Expr(self.node.body)]

    def describe_line(self, line: int) -> str:
        """Return a line for display: ``line 2 of Cell [3]``."""
        return f"line {line + self.line_offset}{f' of {self.label}' if self.label else ''}"


def _compile(tree: ast.Module) -> CodeType:
    with warnings.catch_warnings(action="ignore"):
        code: CodeType = compile(tree, "<code>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


# free names -------------------------------------------------------------------------------------------


@deep_recursion()
def find_free_names(code: str) -> list[str]:
    """Return the free names of ``code``, in the order of their first use.

    Raises SyntaxError if it is not plain Python.
    """
    return list(_BindingVisitor(parse(code)).free)


class _BindingVisitor:
    """Walks the statements of a module and tracks the names that are bound on every path to them."""

    def __init__(self, tree: ast.Module) -> None:
        self.free: dict[str, None] = {}
        #: Names that the body of each function and class reads when it is called.
        self._body_reads: dict[str, set[str]] = {}
        end = self._visit_all(tree.body, set())
        for name in list(self._body_reads):
            self._record_read(name, end)

    def _visit_all(self, statements: Iterable[Any], bound: set[str]) -> set[str]:
        """Return the names bound after the statements."""
        for statement in statements:
            bound = self._visit(statement, bound)
        return bound

    def _visit(self, node: Any, bound: set[str]) -> set[str]:
        match node:
            case ast.Break() | ast.Continue():
                return bound
            case ast.If():
                return self._join([node.body, node.orelse], [self._scan(_remove_body(node), bound)] * 2)
            case ast.For() | ast.AsyncFor() | ast.While():
                after = self._visit_all(node.body, self._scan(_remove_body(node), bound))
                self._visit_all(node.orelse, after)
                return after
            case ast.With() | ast.AsyncWith():
                return self._visit_all(node.body, self._scan(_remove_body(node), bound))
            case ast.Try() | ast.TryStar():
                handler_starts = [
                    self._scan(ast.Expr(h.type or ast.Constant(None)), bound) | {h.name or ""} for h in node.handlers
                ]
                blocks = [[*node.body, *node.orelse], *(handler.body for handler in node.handlers)]
                return self._visit_all(node.finalbody, self._join(blocks, [bound, *handler_starts]))
            case ast.Match():
                heads = [ast.Match(node.subject, [_remove_body(case)]) for case in node.cases]
                self._join([case.body for case in node.cases], [self._scan(head, bound) for head in heads])
                return bound
        return self._scan(node, bound)

    def _join(self, blocks: Sequence[Sequence[ast.stmt]], starts: Iterable[set[str]]) -> set[str]:
        """Return the names bound by all blocks of a branch after which the next statement can run."""
        ends = [self._visit_all(block, bound) for block, bound in zip(blocks, starts, strict=True)]
        reached = [end for end, block in zip(ends, blocks, strict=True) if not (block and isinstance(block[-1], _JUMP))]
        return set.intersection(*(reached or ends))

    def _scan(self, node: ast.stmt, bound: set[str]) -> set[str]:
        """Record the names that a statement reads, and return those bound after it."""
        code = _compile(ast.fix_missing_locations(ast.Module([node], [])))
        evaluated = {*_iter_evaluated_parts(node)}
        assignments = [part for part in ast.walk(node) if isinstance(part, ast.NamedExpr) and part not in evaluated]
        maybe_bound, bound_after = {part.target.id for part in assignments}, set(bound)
        for step in dis.get_instructions(code):
            if step.opname in (*READ_OPS, "DELETE_NAME"):
                self._record_read(step.argval, bound_after)
            if step.opname == "STORE_NAME":
                bound_after.update({step.argval} - maybe_bound)
            elif step.opname == "DELETE_NAME":
                bound_after.discard(step.argval)
        direct, deferred = _find_inner_reads(code)
        for name in sorted(direct | (deferred if getattr(node, "decorator_list", ()) else set())):  # decorator calls it
            self._record_read(name, bound)
        if isinstance(node, _DEFINITION):
            self._body_reads.setdefault(node.name, set()).update(deferred)
        return bound_after

    def _record_read(self, name: str, bound: Collection[str]) -> None:
        """Record that a name is read, and the names that are read directly or indirectly if it is called."""
        pending, visited = [name], set(_PYTHON_NAMES)
        while pending:
            name = pending.pop()
            if name not in visited:
                visited.add(name)
                if name not in bound:
                    self.free[name] = None
                pending.extend(sorted(self._body_reads.get(name, ())))


def _remove_body(node: Any) -> Any:
    """Return a copy of a compound statement or case with an empty body."""
    head = copy.copy(node)
    head.body = _PASS
    if hasattr(node, "orelse"):
        head.orelse = []
    return head


def _find_inner_reads(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names read in lambdas, comprehensions, annotations and class bodies now, and in functions later."""
    direct, deferred = set[str](), set[str]()
    for part in code.co_consts:
        if not isinstance(part, CodeType):
            continue
        is_direct = part.co_name == ANNOTATIONS_NAME or part.co_name.startswith("<")
        if part.co_flags & inspect.CO_OPTIMIZED or is_direct:
            (direct if is_direct else deferred).update(find_reads(part, with_annotations=True))
            continue
        steps = list(dis.get_instructions(part))
        reads = {step.argval for step in steps if step.opname in READ_OPS}
        inner_direct, inner_deferred = _find_inner_reads(part)
        direct |= reads | inner_direct
        # A class body that reads one of its own names may call its methods during definition.
        reads_own_name = not reads.isdisjoint(step.argval for step in steps if step.opname == "STORE_NAME")
        (direct if reads_own_name else deferred).update(inner_deferred)
    return direct, deferred


# undefined names --------------------------------------------------------------------------------------


@deep_recursion()
def find_undefined(
    main: CompiledSource,
    namespace: Mapping[str, Any],
    where: str,
    functions: Iterable[FunctionType],
    location: CodeLocation,
) -> tuple[UndefinedName, ...]:
    """Return the names that are defined neither in ``namespace`` nor in the code, the certain ones first.

    ``main`` is the module that runs or the function that is called; ``functions`` are those that may be called.
    """
    by_id = {id(function): CompiledSource.from_function(function, location) for function in functions}
    sources = [main, *(source for source in by_id.values() if source is not None)]
    for source in sources:
        imports = (part.name for part in ast.walk(source.node) if isinstance(part, ast.alias))
        if not _DYNAMIC_NAMES.isdisjoint(find_reads(source.compiled)) or not _DYNAMIC_IMPORTS.isdisjoint(imports):
            return ()
    stores = Counter(step.argval for s in sources for step in iter_instructions(s.compiled, (*WRITE_OPS, "STORE_NAME")))
    bound = {*dir(builtins), *_PYTHON_NAMES, *_RANK_NAMES} - _NOTEBOOK_NAMES | {*namespace, *stores}
    callees = {name: by_id.get(id(value)) for name, value in namespace.items() if name not in stores}
    codes = {part.co_name: part for part in main.compiled.co_consts if isinstance(part, CodeType)}
    for node in main.body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list and stores[node.name] == 1:
            callees[node.name] = dataclasses.replace(main, node=node, compiled=codes.get(node.name, main.compiled))
    certain: dict[str, str] = {}
    definitions = [*(node for node in main.body if isinstance(node, _DEFINITION)), *(s.node for s in sources[1:])]
    if not any(_ends_process(part) for node in definitions for part in ast.walk(node)):
        _add_certain_reads(main.body, main, callees, certain)
    undefined: dict[str, str] = {}
    for source in sources:
        for name, line in find_reads(source.compiled, _find_guarded_lines(source.node)).items():
            if name not in bound:
                undefined.setdefault(name, certain.get(name) or source.describe_line(line))
    names = sorted(name for name in bound if not name.startswith("_"))
    return tuple(
        UndefinedName(name, position, where, name in certain, tuple(difflib.get_close_matches(name, names, 2, 0.7)))
        for name, position in sorted(undefined.items(), key=lambda item: item[0] not in certain)
    )


def _add_certain_reads(
    statements: Iterable[Any], source: CompiledSource, callees: dict[str, CompiledSource | None], reads: dict[str, str]
) -> None:
    """Add the names that are read whenever the statements run, with their lines, up to a statement that may exit.

    Each function that the statements call is followed once, and removed from ``callees``.
    """
    code = source.compiled
    variables: set[str] = set()
    if code.co_flags & inspect.CO_OPTIMIZED:  # since Python 3.12, a module lists those of its comprehensions
        variables = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    for node in statements:
        if isinstance(node, _FUNCTION | ast.AnnAssign | ast.Assert):
            continue
        for part in _iter_evaluated_parts(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id not in variables:
                reads.setdefault(part.id, source.describe_line(part.lineno))
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id not in variables:
                callee = callees.pop(part.func.id, None)
                if callee is not None and not callee.compiled.co_flags & _DEFERRED_FLAGS:
                    _add_certain_reads(callee.body, callee, callees, reads)
        is_main = isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        if is_main or isinstance(node, _LOOP | ast.With | ast.AsyncWith):
            _add_certain_reads(node.body, source, callees, reads)
        exits = ast.Return if isinstance(node, _LOOP) else ast.Return | _JUMP
        if not isinstance(node, ast.ClassDef) and any(
            isinstance(part, exits) or _ends_process(part) for part in ast.walk(node)
        ):
            return


def _iter_evaluated_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions of a statement that are evaluated whenever it runs."""
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, _CONDITIONAL) and not (isinstance(part, ast.Compare) and len(part.ops) > 1):
            yield from _iter_evaluated_parts(part)
            yield part


def _ends_process(node: ast.AST) -> bool:
    calls_exit = isinstance(node, ast.Call) and get_dotted_name(node.func, {}) in _EXIT_CALLS
    return calls_exit or (isinstance(node, ast.Name) and node.id == "SystemExit")


def _find_guarded_lines(code: ast.AST) -> set[int]:
    """Return the lines where an undefined name is harmless because NameError is caught there."""
    guarded: list[ast.stmt] = []
    for part in ast.walk(code):
        if isinstance(part, ast.Try) and any(
            handler.type is None or _NAME_ERROR_PATTERN.search(ast.unparse(handler.type)) for handler in part.handlers
        ):
            guarded += part.body
    return {line for node in guarded for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
