"""Names that nothing defines, and which of them raise NameError in every run.

The second are found on the way that every run takes: through statements that always run, and into functions that these
call. Whatever runs only perhaps (a branch, a loop over what may be empty, a method, a ``try``) can bind names and end
the way, and what it reads is only possibly undefined.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dataclasses
import difflib
import functools
import sys
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MappingProxyType
from typing import NamedTuple

from distdl_jupyter.capture.free_names import parse
from distdl_jupyter.capture.notebook import CodeLocation, code_text
from distdl_jupyter.capture.references import globals_of
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.preflight.model import UndefinedName
from distdl_jupyter.preflight.reading import names_bound

#: Names that every rank has besides the builtins: ``display``, which it shows as text, what modules and class bodies
#: have, and the usual name of gettext's function.
_ALWAYS_THERE = frozenset((
    "__name__", "__file__", "__doc__", "__builtins__", "__spec__", "__package__", "__loader__", "__annotations__",
    "__cached__", "__class__", "__module__", "__qualname__", "display", "_", "WindowsError",
))  # fmt: skip
#: Builtins of a notebook that no rank has.
_OF_NOTEBOOKS = ("get_ipython", "__IPYTHON__")
#: Functions that can define names unseen; the second ones only where they are called without arguments.
_DEFINES_UNSEEN, _DEFINES_UNSEEN_BARE = ("exec", "eval", "globals", "builtins", "__builtins__"), ("locals", "vars")
_EXITS = ("exit", "quit", "sys.exit", "os._exit", "os.abort", "os.execv", "os.execvp", "os.execve")
#: Context managers that let every exception pass, by the last part of their name.
_TRANSPARENT = frozenset((
    "open", "no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "autocast", "no_sync", "device", "stream",
    "record_function", "profile", "tqdm", "Pool", "ThreadPoolExecutor", "ProcessPoolExecutor", "SummaryWriter",
    "TemporaryDirectory", "NamedTemporaryFile", "catch_warnings",
))  # fmt: skip
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)
_Ways = frozenset[str]
_NONE, _EXIT, _RETURN, _LOOP = _Ways(), _Ways({"exit"}), _Ways({"return"}), _Ways({"loop"})


class Code(NamedTuple):
    """A function or a whole module, as source and compiled; ``shift`` is added to its line numbers."""

    node: ast.AST
    compiled: CodeType
    label: str = ""
    shift: int = 0

    @property
    def evaluates_annotations(self) -> bool:
        """Whether annotations are evaluated where they are written."""
        return sys.version_info < (3, 14) and not self.compiled.co_flags & __future__.annotations.compiler_flag


def module(tree: ast.Module, text: str, label: str = "", first_line: int = 1) -> Code:
    """Return the code of a cell or a script."""
    compiled = compile(text, label, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return Code(tree, compiled, label, first_line - 1)


def of_function(function: FunctionType, place: CodeLocation) -> Code | None:
    """Return the code of a function, None where its source is not at hand."""
    compiled = function.__code__
    text = code_text(compiled.co_filename, place)
    try:
        tree = parse(text.text if text is not None else "")
    except (SyntaxError, ValueError, InvalidSpec):
        return None
    functions = (node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS))
    heads = [(node, _begins(node), getattr(node, "name", "<lambda>")) for node in functions]
    nodes = [node for node, *head in heads if head == [compiled.co_firstlineno, compiled.co_name]]
    return Code(nodes[0], compiled, text.label, text.first_line - 1) if text is not None and len(nodes) == 1 else None


def _begins(node: _Function) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def find(
    main: Code,
    namespace: Collection[str],
    where: str,
    *,
    called: Callable[[str], Code | None] = lambda _: None,
    others: Iterable[Code] = (),
    numbers: Mapping[str, float] = MappingProxyType({}),
) -> tuple[UndefinedName, ...]:
    """Return the names that neither ``namespace`` nor the code defines.

    ``main`` runs as a module, or is the function that is called. ``called`` returns the source of a function of the
    namespace, ``others`` are all functions that may be called, and ``numbers`` values of the namespace.
    """
    every = [main, *others]
    if any(_defines_unseen(code.node) for code in every):
        return ()
    known = {*namespace, *dir(builtins), *_ALWAYS_THERE} - {*_OF_NOTEBOOKS} | {*namespace}
    shared = {name for code in every for name in _declared_global(code.node)}
    walk = _Walk(main, known, called, shared, numbers)
    walk.start()
    bound = {name for code in every for node in _bodies(code.node) for name in names_bound(node.body)}
    found = {name: UndefinedName(name, place, where, certain=True) for name, place in walk.undefined.items()}
    for code in every:
        for name, line in _evident(code).items():
            if name not in known | shared | bound and name in _reads(code.compiled):
                found.setdefault(name, UndefinedName(name, _place(code, line), where, certain=False))
    stored = {part.id for code in every for part in ast.walk(code.node)
              if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}  # fmt: skip
    names = sorted(name for name in {*known, *shared, *stored} if not name.startswith("_"))
    return tuple(
        dataclasses.replace(one, similar=tuple(difflib.get_close_matches(one.name, names, 2, 0.7)))
        for one in found.values()
    )


def _place(code: Code, line: int) -> str:
    return f"line {line + code.shift}{f' of {code.label}' if code.label else ''}"


@dataclass
class _Scope:
    """The names of one module, function or class body; ``hidden`` are those of functions around it and its own."""

    hidden: frozenset[str] = frozenset()
    is_module: bool = False
    names: set[str] = field(default_factory=set)
    functions: dict[str, ast.AST] = field(default_factory=dict)


class _Walk(ast.NodeVisitor):
    """Follows what every run does. Each visit returns the ways by which a node may leave the code around it."""

    def __init__(
        self,
        main: Code,
        known: Container[str],
        called: Callable[[str], Code | None],
        assigned: Collection[str],
        numbers: Mapping[str, float],
    ) -> None:
        self.undefined: dict[str, str] = {}
        self._known, self._called, self._assigned = known, called, assigned
        self._scope = self._module = _Scope(is_module=True, names={*assigned})
        self._code = main
        self._entered: set[int] = set()
        #: Values of names of the module, as far as they are known.
        self._numbers = {name: value for name, value in numbers.items() if name not in assigned}

    def start(self) -> None:
        """Follow a module, or a function that is called."""
        node = self._code.node
        if isinstance(node, ast.Module):
            self._all(node.body)
        else:
            self._enter(self._code, frozenset())

    def visit(self, node: ast.AST) -> _Ways:
        return super().visit(node) or _NONE

    def generic_visit(self, node: ast.AST) -> _Ways:
        """Follow the parts of a node in the order in which they are written."""
        return self._all(ast.iter_child_nodes(node))

    def _all(self, nodes: Iterable[ast.AST | None]) -> _Ways:
        ways = _NONE
        for node in nodes:
            if node is not None:
                ways |= self._perhaps([node]) if ways else self.visit(node)
        return ways

    # -- names ---------------------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read(node)
        else:
            self._bind([node.id])

    def visit_alias(self, node: ast.alias) -> None:
        self._bind(names_bound([node]))

    def _read(self, node: ast.Name) -> None:
        scopes = (self._scope.hidden, self._scope.names, self._module.names, self._known)
        if not any(node.id in names for names in scopes) and node.id in _reads(self._code.compiled):
            self.undefined.setdefault(node.id, _place(self._code, node.lineno))

    def _bind(self, names: Iterable[str], function: ast.AST | None = None) -> None:
        for name in names:
            self._scope.names.add(name)
            self._scope.functions.pop(name, None)
            self._numbers.pop(name, None)
            if function is not None:
                self._scope.functions[name] = function

    # -- what runs only perhaps ----------------------------------------------------------------------------------------

    def _perhaps(self, nodes: Iterable[ast.AST]) -> _Ways:
        """Take note of what may run: it can bind names and leave."""
        nodes = list(nodes)
        self._bind(names_bound(nodes))
        return _Ways().union(*map(self._leaves, nodes))

    def _leaves(self, node: ast.AST) -> _Ways:
        if isinstance(node, _SCOPES):
            return _NONE
        inside = _Ways().union(*map(self._leaves, ast.iter_child_nodes(node)))
        match node:
            case ast.Return():
                return inside | _RETURN
            case ast.Break() | ast.Continue():
                return _LOOP
            case ast.For() | ast.AsyncFor() | ast.While():
                return inside - _LOOP
            case ast.Raise() if node.exc is not None and "SystemExit" in ast.dump(node.exc):
                return _EXIT
            case ast.Call() if self._exits(node):
                return inside | _EXIT
        return inside

    def _uncertain(self, node: ast.AST) -> _Ways:
        return self._perhaps([node])

    visit_AsyncFor = visit_AsyncWith = visit_TryStar = visit_TypeAlias = visit_match_case = _uncertain  # noqa: N815

    # -- calls ---------------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> _Ways:
        ways = self.generic_visit(node)
        if ways or _dotted(node.func) in _EXITS:
            return ways or _EXIT
        code = self._function(node)
        if code is None:
            return _NONE
        nested = isinstance(node.func, ast.Name) and node.func.id in self._scope.functions
        around = self._scope.hidden if nested and not self._scope.is_module else frozenset[str]()
        return self._enter(code, around) | (_EXIT if self._exits(node) else _NONE)

    def _exits(self, call: ast.Call) -> bool:
        """Return whether a call can end the process: by itself, or in a function of the code that it calls."""
        code = self._function(call)
        return _dotted(call.func) in _EXITS or (code is not None and any(map(_ends_process, ast.walk(code.node))))

    def _function(self, call: ast.Call) -> Code | None:
        """Return the function that is called, where its source is known."""
        if not isinstance(call.func, ast.Name):
            return None
        name, scope = call.func.id, self._scope
        for functions in (scope.functions, self._module.functions):
            if name in functions:
                return self._code._replace(node=functions[name])
        bound = name in scope.hidden or name in scope.names or name in self._module.names
        return None if bound else self._called(name)

    def _enter(self, code: Code, around: frozenset[str]) -> _Ways:
        """Follow the body of a function once, as it is called for the first time."""
        node = code.node
        if id(node) in self._entered or not isinstance(node, _Function) or _runs_later(node):
            return _NONE
        self._entered.add(id(node))
        body = node.body if isinstance(node.body, list) else [node.body]
        before = self._scope, self._code
        parameters = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
        own = (parameters | {*names_bound(body)}) - _declared_global(node)
        self._scope, self._code = _Scope(around | own), code
        ways = self._all(body)
        self._scope, self._code = before
        return ways & _EXIT

    # -- statements ----------------------------------------------------------------------------------------------------

    def visit_Return(self, node: ast.Return) -> _Ways:
        return self.generic_visit(node) | _RETURN

    def visit_Raise(self, node: ast.Raise) -> _Ways:
        return self.generic_visit(node) | _EXIT

    def visit_Break(self, node: ast.Break | ast.Continue) -> _Ways:
        return _LOOP

    visit_Continue = visit_Break  # noqa: N815

    def visit_Assign(self, node: ast.Assign) -> _Ways:
        """Follow the value first; a number is remembered."""
        ways = self._all([node.value, *node.targets])
        if self._scope.is_module and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}.difference(self._assigned)
            self._numbers.update(dict.fromkeys(names, node.value.value))
        return ways

    def visit_AnnAssign(self, node: ast.AnnAssign) -> _Ways:
        """Follow the annotation where it is evaluated, and the target where it gets a value."""
        evaluated = self._code.evaluates_annotations and not self._scope.hidden
        return self._all([node.annotation if evaluated else None, node.value, node.value and node.target])

    def visit_AugAssign(self, node: ast.AugAssign) -> _Ways:
        if isinstance(node.target, ast.Name):
            self._read(node.target)
        return self._all([node.value, node.target])

    def visit_NamedExpr(self, node: ast.NamedExpr) -> _Ways:
        return self._all([node.value, node.target])

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> _Ways:
        evaluated = self._code.evaluates_annotations and not getattr(node, "type_params", ())
        annotations = [part.annotation for part in ast.walk(node.args) if isinstance(part, ast.arg)]
        ways = self._all([*node.decorator_list, *node.args.defaults, *node.args.kw_defaults])
        ways |= self._all([*annotations, node.returns]) if evaluated else _NONE
        self._bind([node.name], None if node.decorator_list else node)
        return ways

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> _Ways:
        return self._all([*node.args.defaults, *node.args.kw_defaults])

    def visit_ClassDef(self, node: ast.ClassDef) -> _Ways:
        """Follow the head, and the body where no metaclass can bring names."""
        if getattr(node, "type_params", ()):
            return self._perhaps([node])
        ways = self._all([*node.decorator_list, *node.bases, *node.keywords])
        if not node.bases and not node.keywords:
            outer = self._scope
            self._scope = _Scope(outer.hidden | outer.names)
            ways |= self._all(node.body)
            self._scope = outer
        self._bind([node.name])
        return ways

    def visit_If(self, node: ast.If) -> _Ways:
        """Follow the branch that is always taken, if there is one."""
        ways, truth = self.visit(node.test), _truth(node.test)
        if ways or truth is None:
            return ways | self._perhaps([*node.body, *node.orelse])
        taken, other = (node.body, node.orelse) if truth else (node.orelse, node.body)
        self._bind(names_bound(other))
        return self._all(taken)

    def visit_For(self, node: ast.For) -> _Ways:
        ways = self.visit(node.iter)
        if ways or not self._is_filled(node.iter):
            return ways | self._perhaps([node])
        ways = self._all([node.target, *node.body])
        return (ways - _LOOP) | self._perhaps(node.orelse)

    def visit_While(self, node: ast.While) -> _Ways:
        ways = self.visit(node.test)
        if ways or not _truth(node.test):
            return ways | self._perhaps([node])
        ways = self._all(node.body)
        ends = "loop" in ways and any(isinstance(part, ast.Break) for part in ast.walk(node))
        return (ways - _LOOP) | (_NONE if ends else _EXIT)

    def visit_With(self, node: ast.With) -> _Ways:
        ways = self._all(node.items)
        calls = [item.context_expr for item in node.items]
        transparent = all(isinstance(call, ast.Call) and _last(call.func) in _TRANSPARENT for call in calls)
        return ways | (self._all(node.body) if transparent and not ways else self._perhaps(node.body))

    def visit_Try(self, node: ast.Try) -> _Ways:
        """Follow the body where no handler can take a NameError."""
        jumps = _Ways().union(*map(self._leaves, node.finalbody))
        if jumps or not all(_lets_pass(handler) for handler in node.handlers):
            return self._perhaps([*node.body, *node.handlers, *node.orelse]) | self._all(node.finalbody)
        ways = self._all(node.body)
        ways |= self._perhaps(node.handlers) | (self._perhaps if ways else self._all)(node.orelse)
        return ways | self._all(node.finalbody)

    # -- expressions of which a part runs only perhaps -----------------------------------------------------------------

    def _beginning(self, node: ast.AST) -> _Ways:
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        certain = 2 if isinstance(node, ast.Compare) else 1
        return self._all(parts[:certain]) | self._perhaps(parts[certain:])

    visit_Assert = visit_BoolOp = visit_IfExp = visit_Compare = _beginning  # noqa: N815

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> _Ways:
        return self.visit(node.generators[0].iter) | self._perhaps([node])

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp  # noqa: N815

    # -- loops that run at least once ----------------------------------------------------------------------------------

    def _is_filled(self, node: ast.expr) -> bool:
        """Say whether what is iterated over has at least one item, as far as the text says."""
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
        hidden = isinstance(node, ast.Name) and node.id in self._scope.hidden
        return self._numbers.get(node.id, 0) if isinstance(node, ast.Name) and not hidden else 0


@functools.cache
def _reads(compiled: CodeType) -> frozenset[str]:
    return frozenset(globals_of(compiled))


def _ends_process(node: ast.AST) -> bool:
    calls_exit = isinstance(node, ast.Call) and _dotted(node.func) in _EXITS
    return calls_exit or (isinstance(node, ast.Name) and node.id == "SystemExit")


def _runs_later(node: _Function) -> bool:
    """Say whether calling the function only makes a coroutine or a generator."""
    if isinstance(node, ast.AsyncFunctionDef):
        return True
    body = node.body if isinstance(node.body, list) else [node.body]
    return any(isinstance(part, ast.Yield | ast.YieldFrom) for part in _within(body))


def _lets_pass(handler: ast.ExceptHandler) -> bool:
    """Say whether a NameError leaves the ``try``: the handler only takes an interrupt, or raises it again."""
    if handler.type is not None and _dotted(handler.type) == "KeyboardInterrupt":
        return True
    again = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
    return again and not any(
        isinstance(part, ast.Return | ast.Break | ast.Continue)
        or (isinstance(part, ast.Call) and _dotted(part.func) in _EXITS)
        for part in _within(handler.body)
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


def _declared_global(node: ast.AST) -> set[str]:
    return {name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names}


def _defines_unseen(node: ast.AST) -> bool:
    """Say whether code can define names that its text does not show."""
    called_with: set[int] = {
        id(part.func) for part in ast.walk(node) if isinstance(part, ast.Call) and (part.args or part.keywords)
    }
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in _DEFINES_UNSEEN:
            return True
        if isinstance(part, ast.Name) and part.id in _DEFINES_UNSEEN_BARE and id(part) not in called_with:
            return True
        if isinstance(part, ast.Attribute) and _dotted(part) in ("sys.modules", "sys._getframe"):
            return True
        if isinstance(part, ast.alias) and part.name in ("*", "__main__", "builtins"):
            return True
    return False


def _bodies(code: ast.AST) -> Iterator[ast.Module | ast.ClassDef]:
    """Yield a module and all class bodies: what functions bind is their own."""
    return (node for node in ast.walk(code) if isinstance(node, ast.Module | ast.ClassDef))


def _evident(code: Code) -> dict[str, int]:
    """Return the names that are read, each with a line; not in unevaluated annotations or where NameError is caught."""
    found: dict[str, int] = {}
    pending = [code.node]
    while pending:
        part = pending.pop()
        name = part.target if isinstance(part, ast.AugAssign) else part
        if isinstance(name, ast.Name) and (name is not part or isinstance(name.ctx, ast.Load)):
            found[name.id] = min(name.lineno, found.get(name.id, name.lineno))
        skipped: list[ast.AST | None] = []
        if isinstance(part, ast.Try) and any(map(_catches_name_error, part.handlers)):
            skipped += part.body
        if isinstance(part, ast.If) and _truth(part.test) is not None:
            skipped += part.orelse if _truth(part.test) else part.body
        if not code.evaluates_annotations:
            skipped += [getattr(part, "annotation", None), getattr(part, "returns", None)]
        pending.extend(child for child in ast.iter_child_nodes(part) if not any(child is one for one in skipped))
    return found


def _catches_name_error(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(_dotted(one) in ("NameError", "Exception", "BaseException") for one in types)


def _last(node: ast.AST) -> str:
    return _dotted(node).rpartition(".")[2]


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""
