"""Collects the messages of the package from its source code: code, message, remedy and file.

The messages are those of raised errors, findings of checks, advice, differences and notices.
"""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import distdl_jupyter
from distdl_jupyter.core.errors import DistDLError

PACKAGE = Path(distdl_jupyter.__file__).parent
#: The positions of code, message and remedy (None: no remedy) among the arguments of calls that are not errors.
ARGUMENTS: dict[str, tuple[int, int, int | None]] = {
    "Finding": (1, 2, 3),
    "Found": (3, 1, 2),
    "Advice": (0, 3, None),
    "RunNotice": (2, 1, None),
    "_make_error": (0, 1, 2),
    "note": (2, 1, None),
    "NodeCheck": (5, 3, 4),
    "problem": (0, 2, 3),
    "make_check": (4, 1, 3),
}
#: Error classes whose message is not the first argument: message and remedy.
_MESSAGES = {"HostFailed": (1, 2), "ReachError": (2, 3)}


class Entry(NamedTuple):
    """One message: ``…`` stands for values. ``explicit``: the code is written there, not taken from the class."""

    code: str
    message: str
    remedy: str
    path: str
    line: int
    explicit: bool


def error_classes() -> list[type[DistDLError]]:
    """Return all classes of errors of the package."""
    for module in ("environment.build", "ranks.answer", "clusters.agents.agent", "clusters.slurm.commands"):
        importlib.import_module(f"distdl_jupyter.{module}")
    pending: list[type[DistDLError]] = [DistDLError]
    for kind in pending:
        pending.extend(kind.__subclasses__())
    return pending


def class_codes() -> dict[str, str]:
    """Return the code of each class of errors, by its name."""
    return {kind.__name__: kind.code for kind in error_classes()}


def entries() -> list[Entry]:
    """Return all messages, in the order of the files."""
    classes = class_codes()
    return [
        entry
        for path in sorted(PACKAGE.rglob("*.py"))
        for entry in _of_module(ast.parse(path.read_text()), path.relative_to(PACKAGE).as_posix(), classes)
    ]


def _of_module(tree: ast.Module, path: str, classes: dict[str, str]) -> Iterator[Entry]:
    texts: dict[str, list[ast.Assign]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            texts[node.targets[0].id].append(node)

    def written(node: ast.AST | None) -> str:
        if not isinstance(node, ast.Name):
            return text_of(node)
        before = [assignment for assignment in texts[node.id] if assignment.lineno < node.lineno]
        return text_of(max(before, key=lambda assignment: assignment.lineno).value) if before else ""

    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).removeprefix("errors.")
            if name in classes and (node.args or node.keywords):
                yield from _of_error(node, name, path, classes[name], written)
            else:
                yield from _of_finding(node, name, path, written)


def _of_error(
    node: ast.Call, name: str, path: str, default: str, written: Callable[[ast.AST | None], str]
) -> Iterator[Entry]:
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    message, remedy = _MESSAGES.get(name, (0, None))
    if "code" in keywords and not isinstance(keywords["code"], ast.Constant):
        return  # copied from another error
    code = str(keywords["code"].value) if isinstance(keywords.get("code"), ast.Constant) else ""
    if name == "ReachError":
        kind = _argument(node, 1)
        if not isinstance(kind, ast.Constant):
            return  # one of the causes that ``clusters.ssh.cluster`` explains
        code = f"unreachable-{kind.value}"
    hint = keywords.get("hint") or _argument(node, remedy)
    yield Entry(
        code or default, written(_argument(node, message)), written(hint), path, node.lineno, explicit=bool(code)
    )


def _of_finding(node: ast.Call, name: str, path: str, written: Callable[[ast.AST | None], str]) -> Iterator[Entry]:
    kind = name.rpartition(".")[2]
    if kind not in ARGUMENTS:
        return
    at, message, remedy = ARGUMENTS[kind]
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    code = keywords.get("code") or _argument(node, at)
    if isinstance(code, ast.Constant) and isinstance(code.value, str) and code.value:
        hint = keywords.get("remedy") or _argument(node, remedy)
        text, fix = written(_argument(node, message)), written(hint)
        yield Entry(code.value, text, fix, path, node.lineno, explicit=True)


def _argument(node: ast.Call, at: int | None) -> ast.AST | None:
    return node.args[at] if at is not None and at < len(node.args) else None


def text_of(node: ast.AST | None) -> str:
    """Return a string literal of the source with its values as ``…``; "" for any other expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.IfExp):
        return text_of(node.body)
    return ""
