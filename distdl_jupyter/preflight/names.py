"""Checks of what is sent: undefined names, values that are large, on a GPU or secret, attributes set on modules."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import NamedTuple

from distdl_jupyter.capture.captured_code import CapturedCode
from distdl_jupyter.capture.references import instructions
from distdl_jupyter.core import humanize
from distdl_jupyter.core.findings import LARGE, Check, Finding
from distdl_jupyter.core.source import module_name, parsed
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.worker.secret_patterns import looks_secret

#: Methods that change a list, a dict or a set.
_CHANGES = ("append", "extend", "insert", "sort", "add", "update", "setdefault", "pop", "popitem", "remove", "clear")


def names(draft: CapturedCode, spec: JobSpec) -> Check:
    """Everything that the code uses is there."""
    findings = (*_undefined(draft, spec), *_deleted(draft))
    return Check("Names", f"{humanize.plural(len(draft.captured), 'name')} captured, none missing", findings)


def _undefined(draft: CapturedCode, spec: JobSpec) -> Iterator[Finding]:
    option = "--allow-undefined" if draft.kind == "cell" else "allow_undefined=True"
    for name in draft.undefined:
        refused = name.certain and not spec.allow_undefined
        similar = f" Did you mean {' or '.join(name.similar)}?" if name.similar else ""
        yield Finding(
            "error" if refused else "warning",
            "undefined-name",
            f"{name.name} is not defined in {name.where} ({name.place}).{similar}",
            f"Define it before using it{f', or start anyway with {option}' if refused else ''}.",
        )


def _deleted(draft: CapturedCode) -> Iterator[Finding]:
    for name, line in draft.deleted.items():
        yield Finding(
            "warning",
            "deleted-name",
            f"Line {line} deletes {name}, which does not exist on the ranks: only variables that the cell uses are "
            "sent.",
            "Remove the del statement.",
        )


def captured_values(draft: CapturedCode) -> Check:
    """Captured values are small, on the CPU and not secret."""
    total = sum(variable.size for variable in draft.captured)
    findings = (*_large(draft), *_on_gpu(draft), *_secret(draft), *_left_out(draft), *_changed_attributes(draft))
    return Check("Captured values", f"{humanize.size(total)} in total", findings)


def _large(draft: CapturedCode) -> Iterator[Finding]:
    for variable in draft.captured:
        if variable.size >= LARGE:
            yield Finding(
                "warning",
                "large-value",
                f"{variable.name} ({variable.detail}) is {humanize.size(variable.size)}: every rank reads and stores "
                "its own copy.",
                f"Load it inside the {draft.kind}, each rank its own part, or send it once to each node with data=.",
            )


def _on_gpu(draft: CapturedCode) -> Iterator[Finding]:
    for name in draft.on_gpu:
        yield Finding(
            "warning",
            "gpu-value",
            f"{name} is on this kernel's GPU: each rank gets a copy on its own GPU, or in memory if it has no GPU.",
            f"Keep it on the CPU (.cpu()) and move it to the GPU inside the {draft.kind}.",
        )


def _secret(draft: CapturedCode) -> Iterator[Finding]:
    for variable in draft.captured:
        if (
            variable.kind == "value"
            and looks_secret(variable.name)
            and variable.detail.partition(",")[0] in ("str", "bytes")
        ):
            yield Finding(
                "warning",
                "secret-value",
                f"{variable.name} looks like a secret and would be stored with the job's captured values.",
                "Pass it as an environment variable and read it with os.environ.",
            )
    if draft.secret_arguments:
        yield Finding(
            "warning",
            "secret-argument",
            "A script argument looks like a secret and would be stored with the job.",
            "Pass it as an environment variable and read it with os.environ.",
        )


def _left_out(draft: CapturedCode) -> Iterator[Finding]:
    for module in draft.modules:
        if module.left_out:
            listed = humanize.listing([file.name for file in module.left_out[:3]])
            more = f" and {len(module.left_out) - 3} more" if len(module.left_out) > 3 else ""
            yield Finding(
                "info",
                "left-out-file",
                f"{module.label} is sent without its large files {listed}{more}.",
                "Use absolute paths to read them.",
            )


def _changed_attributes(draft: CapturedCode) -> Iterator[Finding]:
    """Name the attributes of modules that were set in the notebook: ranks import the file."""
    if draft.kind == "script":  # its own process imports the files too
        return
    set_by_code = {name for piece in draft.texts for name in _assignments(piece.text).attributes}
    for piece in draft.texts:
        module = _loaded(piece.label) if piece.beside else None
        if module is None:
            continue
        values = {name: value for name, value in _assignments(piece.text).literals.items() if name not in set_by_code}
        changed = [f"{module.__name__}.{name}" for name, value in values.items() if _differs(module, name, value)]
        if changed:
            yield Finding(
                "warning",
                "module-attribute-changed",
                f"{humanize.listing(changed)} {'differs' if len(changed) == 1 else 'differ'} from {piece.label}: the "
                "ranks import the file and do not see what the notebook has set.",
                f"Pass the value as an argument, or set it inside the {draft.kind}.",
            )


def _loaded(path: str) -> ModuleType | None:
    """Return the module that this kernel has imported from a file, whose path is below a folder of modules."""
    module = sys.modules.get(module_name(path))
    file = getattr(module, "__file__", None)
    return module if isinstance(file, str) and f"/{file}".endswith(f"/{path}") else None


class _Assignments(NamedTuple):
    """What some source assigns: names of attributes, of anything, and literals of the module that stay as they are."""

    attributes: frozenset[str]
    literals: Mapping[str, object]


def _differs(module: ModuleType, name: str, value: object) -> bool:
    try:
        return name in vars(module) and bool(vars(module)[name] != value)
    except Exception:  # noqa: BLE001 - arrays and objects of the user compare as they like
        return True


@functools.lru_cache(maxsize=1000)
def _assignments(text: str) -> _Assignments:
    """Return what some source assigns; nothing where it cannot be parsed."""
    tree = parsed(text) or ast.Module([], [])
    nodes = ast.walk(tree)
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return _Assignments(frozenset(attributes), _literals(tree))


def _literals(tree: ast.Module) -> Mapping[str, object]:
    """Return the literals that a module assigns to names which nothing else in it sets or changes."""
    names = _bindings(tree)
    changed = {name for node in ast.walk(tree) for name in _names_changed(node)}
    literals: dict[str, object] = {}
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if names[name] == 1 and name not in changed:
                with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                    literal = ast.literal_eval(value)
                    if literal not in ([], {}, set()):  # these are filled later
                        literals[name] = literal
    return literals


def _bindings(tree: ast.Module) -> Counter[str]:
    """Return how often a module binds or deletes each name; nothing where it imports names unseen."""
    if any(isinstance(node, ast.alias) and node.name == "*" for node in ast.walk(tree)):
        return Counter()
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(SyntaxError, ValueError):
        compiled = compile(tree, "<module>", "exec", dont_inherit=True)
        steps = [step for step in dis.get_instructions(compiled) if step.opname in ("STORE_NAME", "DELETE_NAME")]
        return Counter(step.argval for step in (*steps, *instructions(compiled, ("STORE_GLOBAL",))))
    return Counter()


def _names_changed(node: ast.AST) -> Iterable[str]:
    """Return the names that a node sets from inside a function, or whose lists, dicts or sets it changes."""
    match node:
        case ast.Global():
            return node.names
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            return (name,)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in _CHANGES:
            return (name,)
    return ()
