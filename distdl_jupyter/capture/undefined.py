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
import sys
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, ClassVar, NamedTuple

from distdl_jupyter.capture.flow import read_later
from distdl_jupyter.capture.free_names import parse
from distdl_jupyter.capture.notebook import CodeLocation, code_text
from distdl_jupyter.capture.references import globals_of
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.preflight.model import UndefinedName

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
    possible: Mapping[str, int] | None = None,
    numbers: Mapping[str, float] = MappingProxyType({}),
) -> tuple[UndefinedName, ...]:
    """Return the names that neither ``namespace`` nor the code defines.

    ``main`` runs as a module, or is the function that is called. ``called`` returns the source of a function of the
    namespace, ``others`` are all functions that may be called, ``possible`` the names that ``main`` may read with their
    lines, and ``numbers`` values of the namespace.
    """
    every = [main, *others]
    if any(_defines_unseen(code.node) for code in every):
        return ()
    known = {*namespace, *dir(builtins), *_ALWAYS_THERE} - {*_OF_NOTEBOOKS} | {*namespace}
    shared = {name for code in every for name in _declared_global(code.node)}
    walk = _Walk(main, known, called, shared, numbers)
    walk.start()
    found = {name: UndefinedName(name, place, where, certain=True) for name, place in walk.undefined.items()}
    assigned = shared | _bound_in(main.node.body if isinstance(main.node, ast.Module) else [])
    for code in every:
        reads = possible if code is main and possible is not None else read_later(code.node)  # type: ignore[arg-type]
        evident = _evident(code).intersection(globals_of(code.compiled))
        for name, line in reads.items():
            if name not in found and name in evident and name not in assigned and name not in known:
                found[name] = UndefinedName(name, _place(code, line), where, certain=False)
    stored = {part.id for code in every for part in ast.walk(code.node)
              if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}  # fmt: skip
    names = sorted(name for name in {*known, *assigned, *stored} if not name.startswith("_"))
    return tuple(
        dataclasses.replace(one, similar=tuple(difflib.get_close_matches(one.name, names, 2, 0.7)))
        for one in found.values()
    )


def _place(code: Code, line: int) -> str:
    return f"line {line + code.shift}{f' of {code.label}' if code.label else ''}"


class _Scope:
    """The names of one module, function or class body; ``hidden`` are those of functions around it and its own."""

    def __init__(
        self, hidden: frozenset[str] = frozenset(), *, is_class: bool = False, is_module: bool = False
    ) -> None:
        self.hidden = hidden
        self.is_class, self.is_module = is_class, is_module
        self.names: set[str] = set()
        self.functions: dict[str, ast.AST] = {}


class _Walk:
    """Follows what every run does. Each statement returns the ways by which it may leave the code around it."""

    def __init__(
        self,
        main: Code,
        known: Container[str],
        called: Callable[[str], Code | None],
        assigned: Iterable[str],
        numbers: Mapping[str, float],
    ) -> None:
        self.undefined: dict[str, str] = {}
        self._known, self._called = known, called
        self._module = _Scope(is_module=True)
        self._module.names.update(assigned)
        self._scope, self._code = self._module, main
        self._loads: dict[CodeType, frozenset[str]] = {}
        self._entered: set[int] = set()
        #: Values of names of the module, as far as they are known.
        self._numbers = {name: value for name, value in numbers.items() if name not in self._module.names}
        self._changed_anywhere = frozenset(self._module.names)

    def start(self) -> None:
        """Follow a module, or a function that is called."""
        main = self._code
        if isinstance(main.node, ast.Module):
            self._block(main.node.body)
        else:
            self._enter(main, frozenset())

    # -- names ---------------------------------------------------------------------------------------------------------

    def _read(self, node: ast.Name) -> None:
        name, scope = node.id, self._scope
        if name in scope.hidden or name in scope.names or name in self._module.names or name in self._known:
            return
        compiled = self._code.compiled
        if compiled not in self._loads:
            self._loads[compiled] = frozenset(globals_of(compiled))
        if name in self._loads[compiled]:
            self.undefined.setdefault(name, _place(self._code, node.lineno))

    def _bind(self, names: Iterable[str], function: ast.AST | None = None) -> None:
        for name in names:
            self._scope.names.add(name)
            self._scope.functions.pop(name, None)
            self._numbers.pop(name, None)
            if function is not None:
                self._scope.functions[name] = function

    def _perhaps(self, nodes: Iterable[ast.AST]) -> _Ways:
        """Take note of what may run: it can bind names and leave."""
        nodes = list(nodes)
        self._bind(_bound_in(nodes))
        return _Ways().union(*(self._leaves(node) for node in nodes))

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

    def _exits(self, call: ast.Call) -> bool:
        """Say whether a call can end the process: by itself, or in a function of the code that it calls."""
        if _dotted(call.func) in _EXITS:
            return True
        code = self._function(call)
        return code is not None and any(
            (isinstance(node, ast.Call) and _dotted(node.func) in _EXITS)
            or (isinstance(node, ast.Name) and node.id == "SystemExit")
            for node in ast.walk(code.node)
        )

    def _function(self, call: ast.Call) -> Code | None:
        """Return the function that is called, where its source is known."""
        if not isinstance(call.func, ast.Name):
            return None
        name, scope = call.func.id, self._scope
        for functions in (scope.functions, self._module.functions):
            if name in functions:
                return self._code._replace(node=functions[name])
        if name in scope.hidden or name in scope.names or name in self._module.names:
            return None
        return self._called(name)

    def _enter(self, code: Code, around: frozenset[str]) -> _Ways:
        """Follow the body of a function once, as it is called for the first time."""
        node = code.node
        if id(node) in self._entered or not isinstance(node, _Function) or _runs_later(node):
            return _NONE
        self._entered.add(id(node))
        body = node.body if isinstance(node.body, list) else [node.body]
        before = self._scope, self._code
        own = (_parameters(node.args) | _bound_in(body)) - _declared_global(node)
        self._scope, self._code = _Scope(around | own), code
        ways = self._block(body) if isinstance(node.body, list) else self._expression(node.body)
        self._scope, self._code = before
        return ways & _EXIT

    # -- statements ----------------------------------------------------------------------------------------------------

    def _block(self, body: Iterable[ast.AST]) -> _Ways:
        """Follow statements up to the first that may leave."""
        statements = list(body)
        for position, statement in enumerate(statements):
            ways = self._statement(statement)
            if ways:
                return ways | self._perhaps(statements[position + 1 :])
        return _NONE

    def _statement(self, node: ast.AST) -> _Ways:
        handler = self._handlers.get(type(node))
        return handler(self, node) if handler is not None else self._perhaps([node])

    def _return(self, node: ast.Return) -> _Ways:
        return self._expressions([node.value]) | _RETURN

    def _raise(self, node: ast.Raise) -> _Ways:
        return self._expressions([node.exc, node.cause]) | _EXIT

    def _jump(self, _node: ast.Break | ast.Continue) -> _Ways:
        return _LOOP

    def _import(self, node: ast.Import | ast.ImportFrom) -> _Ways:
        self._bind(_bound_in([node]))
        return _NONE

    def _match(self, node: ast.Match) -> _Ways:
        return self._expressions([node.subject]) | self._perhaps(node.cases)

    def _assign(self, node: ast.Assign) -> _Ways:
        ways = self._expressions([node.value, *node.targets])
        if self._scope.is_module and isinstance(node.value, ast.Constant) and isinstance(node.value.value, int):
            names = {one.id for one in node.targets if isinstance(one, ast.Name)} - self._changed_anywhere
            self._numbers.update(dict.fromkeys(names, node.value.value))
        return ways

    def _ann_assign(self, node: ast.AnnAssign) -> _Ways:
        evaluated = self._code.evaluates_annotations and not self._scope.hidden
        return self._expressions(
            [node.annotation if evaluated else None, node.value, node.target if node.value is not None else None]
        )

    def _assert(self, node: ast.Assert) -> _Ways:
        return self._expressions([node.test]) | self._perhaps([node.msg] if node.msg is not None else [])

    def _expr(self, node: ast.Expr) -> _Ways:
        return self._expression(node.value)

    def _nothing(self, _node: ast.AST) -> _Ways:
        return _NONE

    def _aug_assign(self, node: ast.AugAssign) -> _Ways:
        if isinstance(node.target, ast.Name):
            self._read(node.target)
        return self._expressions([node.value, node.target])

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> _Ways:
        args = node.args
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        heads = [*node.decorator_list, *args.defaults, *args.kw_defaults]
        if self._code.evaluates_annotations and not getattr(node, "type_params", ()):
            heads += [*(arg.annotation for arg in every if arg is not None), node.returns]
        ways = self._expressions(heads)
        self._bind([node.name], None if node.decorator_list else node)
        return ways

    def _class(self, node: ast.ClassDef) -> _Ways:
        if getattr(node, "type_params", ()):
            return self._perhaps([node])
        ways = self._expressions([*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)])
        if not node.bases and not node.keywords:  # a metaclass may bring names
            outer = self._scope
            self._scope = _Scope(outer.hidden | outer.names, is_class=True)
            ways |= self._block(node.body)
            self._scope = outer
        self._bind([node.name])
        return ways

    def _if(self, node: ast.If) -> _Ways:
        ways = self._expressions([node.test])
        if ways:
            return ways | self._perhaps([node])
        truth = _truth(node.test)
        if truth is None:
            return self._perhaps([*node.body, *node.orelse])
        taken, other = (node.body, node.orelse) if truth else (node.orelse, node.body)
        self._bind(_bound_in(other))
        return self._block(taken)

    def _for(self, node: ast.For) -> _Ways:
        ways = self._expressions([node.iter])
        if ways or not self._is_filled(node.iter):
            return ways | self._perhaps([node])
        ways = self._expressions([node.target]) | self._block(node.body)
        return (ways - _LOOP) | self._perhaps(node.orelse)

    def _while(self, node: ast.While) -> _Ways:
        ways = self._expressions([node.test])
        if ways or not _truth(node.test):
            return ways | self._perhaps([node])
        ways = self._block(node.body)
        ends = "loop" in ways and any(isinstance(part, ast.Break) for part in ast.walk(node))
        return (ways - _LOOP) | (_NONE if ends else _EXIT)

    def _with(self, node: ast.With) -> _Ways:
        ways = _NONE
        for item in node.items:
            ways |= self._expressions([item.context_expr, item.optional_vars])
        calls = [item.context_expr for item in node.items]
        transparent = all(
            isinstance(call, ast.Call) and _dotted(call.func).rpartition(".")[2] in _TRANSPARENT for call in calls
        )
        return ways | (self._block(node.body) if transparent and not ways else self._perhaps(node.body))

    def _try(self, node: ast.Try) -> _Ways:
        jumps = _Ways().union(*map(self._leaves, node.finalbody))
        if jumps or not all(_lets_pass(handler) for handler in node.handlers):
            ways = self._perhaps([*node.body, *node.handlers, *node.orelse])
            return ways | self._block(node.finalbody)
        ways = self._block(node.body)
        ways |= self._perhaps(node.handlers) | (self._perhaps if ways else self._block)(node.orelse)
        return ways | self._block(node.finalbody)

    _handlers: ClassVar[dict[type[ast.AST], Callable[[Any, Any], _Ways]]] = {
        ast.AnnAssign: _ann_assign,
        ast.Assert: _assert,
        ast.Assign: _assign,
        ast.AsyncFunctionDef: _define,
        ast.AugAssign: _aug_assign,
        ast.Break: _jump,
        ast.ClassDef: _class,
        ast.Continue: _jump,
        ast.Delete: _nothing,
        ast.Expr: _expr,
        ast.For: _for,
        ast.FunctionDef: _define,
        ast.Global: _nothing,
        ast.If: _if,
        ast.Import: _import,
        ast.ImportFrom: _import,
        ast.Match: _match,
        ast.Nonlocal: _nothing,
        ast.Pass: _nothing,
        ast.Raise: _raise,
        ast.Return: _return,
        ast.Try: _try,
        ast.While: _while,
        ast.With: _with,
    }

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

    # -- expressions ---------------------------------------------------------------------------------------------------

    def _expressions(self, nodes: Iterable[ast.AST | None]) -> _Ways:
        ways = _NONE
        for node in nodes:
            if node is not None:
                ways |= self._perhaps([node]) if ways else self._expression(node)
        return ways

    def _expression(self, node: ast.AST) -> _Ways:
        match node:
            case ast.Name(ctx=ast.Load()):
                self._read(node)
                return _NONE
            case ast.Name():
                self._bind([node.id])
                return _NONE
            case ast.NamedExpr():
                return self._expressions([node.value, node.target])
            case ast.Lambda():
                return self._expressions([*node.args.defaults, *node.args.kw_defaults])
            case ast.BoolOp():
                return self._expressions(node.values[:1]) | self._perhaps(node.values[1:])
            case ast.IfExp():
                return self._expressions([node.test]) | self._perhaps([node.body, node.orelse])
            case ast.Compare():
                return self._expressions([node.left, node.comparators[0]]) | self._perhaps(node.comparators[1:])
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                return self._expressions([node.generators[0].iter]) | self._perhaps([node])
            case ast.Call():
                return self._call(node)
        return self._expressions(ast.iter_child_nodes(node))

    def _call(self, node: ast.Call) -> _Ways:
        ways = self._expressions([node.func, *node.args, *(keyword.value for keyword in node.keywords)])
        if ways:
            return ways
        if _dotted(node.func) in _EXITS:
            return _EXIT
        code = self._function(node)
        if code is None:
            return _NONE
        nested = isinstance(node.func, ast.Name) and node.func.id in self._scope.functions
        around = self._scope.hidden if nested and not self._scope.is_module else frozenset[str]()
        return self._enter(code, around) | (_EXIT if self._exits(node) else _NONE)


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
        case ast.Name() | ast.Attribute() if _dotted(test).rpartition(".")[2] == "TYPE_CHECKING":
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


def _bound_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that ``nodes`` bind in the scope in which they run."""
    found: set[str] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
                continue
            case ast.Lambda():
                continue
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                walrus = (part.target for part in ast.walk(node) if isinstance(part, ast.NamedExpr))
                found.update(target.id for target in walrus)
                continue
            case ast.Name(ctx=ast.Store() | ast.Del()):
                found.add(node.id)
            case ast.alias():
                found.add(node.asname or node.name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
            case ast.MatchMapping(rest=str(name)):
                found.add(name)
        pending.extend(ast.iter_child_nodes(node))
    return found


def _parameters(args: ast.arguments) -> set[str]:
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return {arg.arg for arg in every if arg is not None}


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


def _evident(code: Code) -> set[str]:
    """Return the names that are read other than in annotations that nobody evaluates or where NameError is caught."""
    found: set[str] = set()
    pending = [code.node]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            found.add(part.id)
        elif isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
            found.add(part.target.id)
        skipped: list[ast.AST | None] = []
        if isinstance(part, ast.Try) and any(_catches_name_error(handler) for handler in part.handlers):
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


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""
