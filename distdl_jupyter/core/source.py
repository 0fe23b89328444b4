"""Analyzes source text: its calls, their full names, and whether only one rank makes them.

Full names come from the imports in the code and from the captured objects. Nothing is imported or run.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distdl_jupyter.core.errors import InvalidSpec

_RANK_NAME = re.compile(r"rank|main_process|is_master|is_chief|is_root|is_main|is_primary", re.IGNORECASE)
#: Names of calls in a condition that do not depend on the rank: builtins and common methods.
_COMMON_CALLS = frozenset((*dir(builtins), *dir(str), *dir(dict), *dir(list), *dir(Path), "item", "mean", "sum", "norm",
                           "isnan", "isfinite", "is_available", "numel", "time", "getenv"))  # fmt: skip
#: Statements after which the rest of a block is not executed.
_EXIT_STATEMENTS = ast.Return | ast.Continue | ast.Break | ast.Raise
#: Fields of syntax nodes that contain statements, in the order of ``ast``.
_STATEMENT_FIELDS = ("body", "handlers", "orelse", "finalbody", "cases")
#: Full names of helpers outside torch that connect ranks or average gradients.
_HELPER_NAME = re.compile(r"distributed|(init|setup|launch)\w*(dist|ddp|parallel)", re.IGNORECASE)
#: Prefixes of names whose effect on the ranks is known, and of calls whose name is unknown.
_KNOWN_LIBRARIES = ("torch.", "horovod.", "tensorflow.", "?")
#: Maximum characters that are read from modules that are sent with the code.
_MAX_CHARACTERS = 400_000
#: The modules that names are assumed to refer to if the code does not import them.
_ALIASES = {"hvd": "horovod", "dist": "torch.distributed", "torch": "torch", "np": "numpy", "plt": "matplotlib.pyplot"}


@dataclass(frozen=True, slots=True)
class CodeText:
    """The source from which a code object was compiled. ``cell`` is its execution count, or None for a file.

    ``first_line`` is the displayed line number of line 1 of ``text``; ``is_module`` modules are sent with the code.
    """

    text: str
    label: str
    cell: int | None = None
    first_line: int = 1
    is_module: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the entry for the payload's ``sources``."""
        return {"text": self.text, "label": self.label, "cell": self.cell, "first_line": self.first_line}


def format_cell_label(number: int | None, notebook: str) -> str:
    """Return a cell's display name, such as ``Cell [7] in quickstart.ipynb``."""
    label = f"Cell [{number}]" if number is not None else "Cell"
    return f"{label} in {notebook}" if notebook else label


@dataclass(frozen=True, slots=True)
class Call:
    """One call in a displayed ``line`` of ``function``; ``name`` is the full name if known (``horovod.torch.init``).

    ``is_on_one_rank`` is set inside a condition on the rank, or one that calls an unknown function.
    """

    name: str
    node: ast.Call
    label: str
    line: int
    is_on_one_rank: bool = False
    function: str = ""

    @property
    def short_name(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def location(self) -> str:
        """The location, such as "line 3 of In [7]"."""
        return f"line {self.line} of {self.label}"

    @property
    def beginning(self) -> str:
        """The location at the beginning of a sentence."""
        return f"L{self.location[1:]}"


@dataclass(slots=True)
class CodeAnalysis:
    """All source of a job that could be parsed. ``identifiers`` are all names and attributes that occur in it.

    ``assigned`` has the last expression that is assigned to each name, ``rank_names`` the variables that contain the
    rank, and ``training_labels`` the labels of the training code itself, without modules that are sent with it.
    """

    texts: tuple[CodeText, ...] = ()
    calls: list[Call] = field(default_factory=list)
    identifiers: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)
    assigned: dict[str, ast.expr] = field(default_factory=dict)
    rank_names: set[str] = field(default_factory=set)
    training_labels: set[str] = field(default_factory=set)

    def find_call(self, *short_names: str) -> Call | None:
        """Return the first call of one of these functions, or None."""
        return next((call for call in self.calls if call.short_name in short_names), None)

    def find_helper(self) -> Call | None:
        """Return the first call of another library or an unread function that may set up distributed training."""
        functions = {call.function for call in self.calls}
        calls = (call for call in self.calls if _HELPER_NAME.search(call.name) and call.name not in functions)
        return next((call for call in calls if not call.name.startswith(_KNOWN_LIBRARIES)), None)

    def uses(self, *names: str) -> bool:
        """Return whether one of these names or attributes occurs anywhere."""
        return not self.identifiers.isdisjoint(names)

    def needs(self, *modules: str) -> bool:
        """Return whether the code needs one of these top-level modules."""
        return not self.imports.isdisjoint(modules)


def _select_modules(
    texts: Iterable[CodeText], aliases: Mapping[str, str], imports: Iterable[str]
) -> Iterator[tuple[CodeText, ast.Module]]:
    """Yield the texts to read with their trees: the code, and the modules that it imports directly or indirectly."""
    texts, names = list(texts), [*aliases.values(), *imports]
    for source in texts:
        if not source.is_module and (tree := try_parse(source.text)) is not None:
            names += list_imports(tree)
            yield source, tree
    unread = {get_module_name(source.label): source for source in texts if source.is_module}
    budget = _MAX_CHARACTERS
    while names:
        parts = names.pop().split(".")
        for module in (parts[:count] for count in range(1, len(parts) + 1)):
            match = unread.pop(".".join(module), None)
            if match is None or len(match.text) > budget or (tree := try_parse(match.text)) is None:
                continue
            budget -= len(match.text)
            names += list_imports(tree, module if match.label.endswith("__init__.py") else module[:-1])
            yield match, tree


def get_module_name(label: str) -> str:
    """Return the name of the module in a file: ``shards.loader`` for ``shards/loader.py``."""
    return label.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def list_imports(tree: ast.Module, package: Sequence[str] = ()) -> list[str]:
    """Return the full names that code imports anywhere; relative imports are those of a module of ``package``."""
    names: list[str] = []
    # Expressions contain no imports, and most nodes are expressions: ``ast.walk`` would take several times longer.
    pending = deque[ast.AST]([tree])
    while pending:
        node = pending.popleft()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
            parents = package[: len(package) - node.level + 1] if node.level else []
            names += [".".join([*parents, *filter(None, [node.module]), alias.name]) for alias in node.names]
        for field_name in _STATEMENT_FIELDS:
            pending.extend(getattr(node, field_name, ()))
    return names


def analyze(texts: Sequence[CodeText], aliases: Mapping[str, str], imports: Collection[str]) -> CodeAnalysis:
    """Analyze source texts; texts that cannot be parsed are ignored.

    ``aliases`` are the full names of captured names, ``imports`` the top-level modules that the code needs. Of the
    modules that are sent with the code, only those that it imports are read, because a large project has hundreds.
    """
    code = CodeAnalysis(tuple(texts), imports={*imports})
    for source, tree in _select_modules(texts, aliases, imports):
        if not source.is_module:
            code.training_labels.add(source.label)
        tree_aliases, assigned = _collect_names(tree, code.identifiers)
        code.imports.update(name.partition(".")[0] for name in tree_aliases.values())
        code.assigned.update(assigned)
        code.rank_names.update(name for name, value in assigned.items() if depends_on_rank(value))
        scope = Call("", ast.Call(ast.Name(""), [], []), source.label, source.first_line)
        code.calls += _iter_calls(tree, scope, {**_ALIASES, **aliases, **tree_aliases}, code.rank_names)
    code.imports.update(name.partition(".")[0] for name in aliases.values())
    # If a function is called under a condition on the rank, only one rank makes the calls in it.
    guarded = {call.short_name for call in code.calls if call.is_on_one_rank} - {""}
    code.calls = [replace(call, is_on_one_rank=call.is_on_one_rank or call.function in guarded) for call in code.calls]
    return code


def _iter_calls(node: ast.AST, scope: Call, aliases: Mapping[str, str], ranks: Collection[str]) -> Iterator[Call]:
    """Yield the calls in a node and its children, each made from its ``scope``: location, function and guard."""
    if isinstance(node, ast.Call):
        yield replace(scope, name=get_dotted_name(node.func, aliases), node=node, line=scope.line + node.lineno - 1)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        scope = replace(scope, function=node.name)
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and _is_guard(node.test, ranks):
        scope = replace(scope, is_on_one_rank=True)
    for _, value in ast.iter_fields(node):
        inner = scope
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _iter_calls(child, inner, aliases, ranks)
            # After ``if rank != 0: return`` only one rank executes the rest of the block.
            if isinstance(child, ast.If) and isinstance(child.body[-1], _EXIT_STATEMENTS):
                inner = replace(inner, is_on_one_rank=inner.is_on_one_rank or _is_guard(child.test, ranks))


def make_nesting_error() -> InvalidSpec:
    """Return the error for code that is nested too deeply."""
    message = "The code is nested too deeply for Python to compile."
    hint = "Split the longest expression, or the longest chain of elif, into several statements."
    return InvalidSpec(message, code="code-nested-too-deeply", field="code", hint=hint)


def parse(text: str) -> ast.Module:
    """Return the syntax tree of source text, without warnings, which ranks show. Raises SyntaxError, InvalidSpec."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(text)
    except (RecursionError, MemoryError):
        raise make_nesting_error() from None


def try_parse(text: str) -> ast.Module | None:
    """Return the syntax tree of source text, or None if it cannot be parsed."""
    try:
        return parse(text)
    except (SyntaxError, ValueError, InvalidSpec):
        return None


def _collect_names(tree: ast.AST, identifiers: set[str]) -> tuple[dict[str, str], dict[str, ast.expr]]:
    """Return the full names that imports bind, and the expressions assigned to names; add to ``identifiers``."""
    bindings: dict[str, str] = {}
    assigned: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                identifiers.add(name)
            case ast.alias():
                identifiers.add(node.name.rpartition(".")[2])
            case ast.Import():
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    bindings[alias.asname or top] = alias.name if alias.asname else top
            case ast.ImportFrom(module=str(), level=0):
                bindings.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
            case ast.Assign(targets=[*_, ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = zip(targets, values, strict=False)
                assigned.update({target.id: value for target, value in pairs if isinstance(target, ast.Name)})
            case ast.Assign(targets=targets):
                assigned.update({target.id: node.value for target in targets if isinstance(target, ast.Name)})
    return bindings, assigned


def get_dotted_name(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """Return the full name of a function, or "" if it is not a plain name: ``hvd.init`` is ``horovod.torch.init``."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        prefix = get_dotted_name(node.value, aliases)
        return f"{prefix}.{node.attr}" if prefix else f"?.{node.attr}"
    return ""


def _is_guard(test: ast.expr, ranks: Collection[str]) -> bool:
    """Return whether a condition depends on the rank, or calls an unknown function, which may depend on it."""
    calls = (get_dotted_name(node.func, {}) for node in ast.walk(test) if isinstance(node, ast.Call))
    unknown = any(name.rpartition(".")[2] not in _COMMON_CALLS for name in calls)
    return unknown or depends_on_rank(test, ranks)


def depends_on_rank(node: ast.AST, names: Collection[str] = ()) -> bool:
    """Return whether the names or strings in an expression indicate the rank; ``names`` are known to contain it."""
    for part in ast.walk(node):
        name = part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else ""
        name = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else name
        if _RANK_NAME.search(name) or name in names:
            return True
    return False
