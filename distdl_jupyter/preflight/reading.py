"""Source text as facts: which calls stand where, under which full names, and which only one rank makes.

Full names come from the code's own imports and from what captured names refer to. Nothing is imported or run.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from distdl_jupyter.preflight.model import CapturedCode, Text

_RANK = re.compile(r"rank|main_process|is_master|is_chief|is_root|is_main|is_primary", re.IGNORECASE)
#: Names of calls in a test that tell nothing of the rank: builtins and common methods.
_NOT_OF_RANK = frozenset((*dir(builtins), *dir(str), *dir(dict), *dir(list), *dir(Path), "item", "mean", "sum", "norm",
                          "isnan", "isfinite", "is_available", "numel", "time", "getenv"))  # fmt: skip
#: Calls of helpers outside torch that let ranks meet or average gradients, by full name.
_HELPER = re.compile(r"distributed|(init|setup|launch)\w*(dist|ddp|parallel)", re.IGNORECASE)
#: Characters of modules beside the code that are read.
_MOST_BESIDE = 400_000
#: What a name is taken for when nothing in the code says where it comes from.
_USUAL = {"hvd": "horovod", "dist": "torch.distributed", "torch": "torch", "np": "numpy", "plt": "matplotlib.pyplot"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call: ``name`` is dotted and full where known (``horovod.torch.init``), ``last`` its last word.

    ``one_rank`` says that a test of the rank stands around it, or one that calls something unknown; ``line`` is the
    line that people see.
    """

    name: str
    node: ast.Call
    label: str
    line: int
    one_rank: bool
    function: str

    @property
    def last(self) -> str:
        """Last word of the name."""
        return self.name.rpartition(".")[2]

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"line {self.line} of {self.label}"

    @property
    def beginning(self) -> str:
        """The place as the beginning of a sentence."""
        return f"L{self.place[1:]}"


@dataclass(slots=True)
class Code:
    """All source of a job that could be read. ``words`` are all names and attributes that occur in it."""

    calls: list[Call] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    #: Names that are set once or more, with the last expression.
    assigned: dict[str, ast.expr] = field(default_factory=dict)
    #: Names of variables that hold the rank.
    ranks: set[str] = field(default_factory=set)
    read: int = 0
    #: Labels of the training code itself, without modules that travel beside it.
    own: set[str] = field(default_factory=set)

    def called(self, *last: str) -> Call | None:
        """Return the first call whose last word is one of these."""
        return next((call for call in self.calls if call.last in last), None)

    def helper(self) -> Call | None:
        """Return the first call of another library or an unread function that may set up distributed training."""
        own = {call.function for call in self.calls}
        return next((call for call in self.calls if _HELPER.search(call.name) and call.name not in own
                     and not call.name.startswith(("torch.", "horovod.", "tensorflow.", "?"))), None)  # fmt: skip

    def uses(self, *words: str) -> bool:
        """Say whether one of these names or attributes occurs anywhere."""
        return not self.words.isdisjoint(words)

    def needs(self, *modules: str) -> bool:
        """Say whether one of these top-level modules is needed."""
        return not self.imports.isdisjoint(modules)


#: The draft that was read last, with its facts: a form asks again after each change, of the same draft. Neither is kept
#: longer than somebody else keeps the draft, which holds the user's values.
_latest: tuple[weakref.ref[CapturedCode], Code] | None = None


def read(draft: CapturedCode) -> Code:
    """Return the facts of the source texts of a draft; those that cannot be parsed are passed over.

    Of the modules that travel beside the code those are read that it imports, ``_MOST_BESIDE`` characters at most: all
    of a project's hundreds of modules would keep a form and a submit waiting for seconds, and say much that is not
    about this code.
    """
    global _latest
    if _latest is None or _latest[0]() is not draft:
        _latest = weakref.ref(draft, _forget), _read(draft)
    return _latest[1]


def _forget(gone: weakref.ref[CapturedCode]) -> None:
    global _latest
    if _latest is not None and _latest[0] is gone:
        _latest = None


def _chosen(draft: CapturedCode) -> Iterator[tuple[Text, ast.Module]]:
    """Yield the pieces that are read, parsed: the code itself, the modules that it imports, and what those import."""
    names = [*draft.aliases.values(), *draft.imports]
    for piece in draft.texts:
        if not piece.beside and (tree := parsed(piece.text)) is not None:
            names += _imported(tree, [])
            yield piece, tree
    beside = {module_name(piece.label): piece for piece in draft.texts if piece.beside}
    left = _MOST_BESIDE
    while names:
        parts = names.pop().split(".")
        for module in (parts[:count] for count in range(1, len(parts) + 1)):
            found = beside.pop(".".join(module), None)
            if found is None or len(found.text) > left or (tree := parsed(found.text)) is None:
                continue
            left -= len(found.text)
            names += _imported(tree, module if found.label.endswith("__init__.py") else module[:-1])
            yield found, tree


def module_name(label: str) -> str:
    """Return the name of the module in a file: ``shards.loader`` for ``shards/loader.py``."""
    return label.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.Module, package: list[str]) -> list[str]:
    """Return the full names that a module of ``package`` imports, those within the package too."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            found += [".".join([*above, *filter(None, [node.module]), one.name]) for one in node.names]
    return found


def _read(draft: CapturedCode) -> Code:
    code = Code(imports=set(draft.imports))
    for piece, tree in _chosen(draft):
        code.read += 1
        if not piece.beside:
            code.own.add(piece.label)
        aliases = {**_USUAL, **draft.aliases, **_aliases(tree)}
        code.imports.update(name.partition(".")[0] for name in _aliases(tree).values())
        code.words.update(_words(tree))
        code.assigned.update(_assigned(tree))
        code.ranks.update(_ranks(_assigned(tree)))
        code.calls.extend(_calls(tree, aliases, code.ranks, piece.label, piece.first_line - 1))
    code.imports.update(name.partition(".")[0] for name in draft.aliases.values())
    guarded = {call.last for call in code.calls if call.one_rank}
    code.calls = [c if not c.function or c.function not in guarded else _only_one(c) for c in code.calls]
    return code


def _only_one(call: Call) -> Call:
    # A function that is called under a test of the rank runs on one rank with everything in it.
    return Call(call.name, call.node, call.label, call.line, one_rank=True, function=call.function)


def parsed(text: str) -> ast.Module | None:
    """Return the syntax tree of some source, None where it cannot be parsed."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def statements(text: str) -> list[ast.stmt]:
    """Return the statements at the top of some source, none where it cannot be parsed."""
    tree = parsed(text)
    return tree.body if tree is not None else []


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Return what the imports of the code bind: {"hvd": "horovod.torch", "DDP": "torch.nn.parallel.Dist..."}."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                found[one.asname or one.name.partition(".")[0]] = one.name if one.asname else one.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.update({one.asname or one.name: f"{node.module}.{one.name}" for one in node.names})
    return found


def _words(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg


def _assigned(tree: ast.AST) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found.update(_pairs(target, node.value))
    return found


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, part)


def dotted(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """Return the full name of what is called, "" when it is no plain name: ``hvd.init`` is ``horovod.torch.init``."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = dotted(node.value, aliases)
        return f"{before}.{node.attr}" if before else f"?.{node.attr}"
    return ""


def _ranks(assigned: Mapping[str, ast.expr]) -> Iterator[str]:
    """Yield the names that hold the rank, or a test of it: ``r = int(os.environ["RANK"])``, ``main = rank == 0``."""
    for name, value in assigned.items():
        inner = (
            value.args[0] if isinstance(value, ast.Call) and dotted(value.func, {}) == "int" and value.args else value
        )
        # Other calls only take the rank, as a sampler does.
        told = inner.func if isinstance(inner, ast.Call) and not _reads_variable(inner) else inner
        if isinstance(inner, ast.Call | ast.Subscript | ast.Compare) and speaks_of_rank(told):
            yield name


def _reads_variable(call: ast.Call) -> bool:
    return dotted(call.func, {}).rpartition(".")[2] in ("get", "getenv")


def _calls(
    tree: ast.Module, aliases: Mapping[str, str], ranks: Collection[str], label: str, shift: int
) -> Iterator[Call]:
    walk = _Walk(aliases, ranks, label, shift)
    walk.body(tree.body, one_rank=False, function="")
    return iter(walk.calls)


class _Walk:
    """Finds calls while keeping in mind whether a test of the rank holds at this point."""

    def __init__(self, aliases: Mapping[str, str], ranks: Collection[str], label: str, shift: int) -> None:
        self.calls: list[Call] = []
        self._aliases, self._ranks, self._label, self._shift = aliases, ranks, label, shift

    def body(self, statements: Iterable[ast.stmt], *, one_rank: bool, function: str) -> None:
        """Walk a block; behind ``if rank != 0: return`` only one rank goes on."""
        for statement in statements:
            self.node(statement, one_rank=one_rank, function=function)
            if (
                isinstance(statement, ast.If)
                and (speaks_of_rank(statement.test, self._ranks) or _calls_unknown(statement.test))
                and _leaves(statement.body)
            ):
                one_rank = True

    def node(self, node: ast.AST, *, one_rank: bool, function: str) -> None:
        """Walk one node with all that is inside it."""
        if isinstance(node, ast.Call):
            name = dotted(node.func, self._aliases)
            self.calls.append(Call(name, node, self._label, node.lineno + self._shift, one_rank, function))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            one_rank = one_rank or speaks_of_rank(node.test, self._ranks) or _calls_unknown(node.test)
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self.body(value, one_rank=one_rank, function=function)
            else:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self.node(child, one_rank=one_rank, function=function)


def speaks_of_rank(node: ast.AST, names: Collection[str] = ()) -> bool:
    """Say whether an expression depends on the rank, by the words in it; ``names`` are known to hold it."""
    for part in ast.walk(node):
        word = part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else ""
        word = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else word
        if _RANK.search(word) or word in names:
            return True
    return False


def _calls_unknown(test: ast.expr) -> bool:
    """Say whether a test calls a function of which nothing is known, so that it may ask for the rank."""
    calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
    return any(dotted(call.func, {}).rpartition(".")[2] not in _NOT_OF_RANK for call in calls)


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)


def names_bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each name as often as ``nodes`` bind or delete it in the scope in which they run.

    ``*`` stands for all names of a module.
    """
    pending = list(nodes)
    while pending:
        node = pending.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
                continue
            case ast.Lambda():
                continue
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                yield from (part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr))
                continue
            case ast.Name(ctx=ast.Store() | ast.Del()):
                yield node.id
            case ast.alias():
                yield node.asname or node.name.partition(".")[0]
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
        pending.extend(ast.iter_child_nodes(node))
