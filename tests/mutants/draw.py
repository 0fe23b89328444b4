"""Draw the mutants of ``python.toml`` with the operators of cosmic-ray (``pip install cosmic-ray``).

The tests need no cosmic-ray.

``python -m tests.mutants.draw >tests/mutants/python.toml`` gives the same list for the same code. Left out is what no
test can or need tell: annotations, docstrings, types, what is logged, numbers that only say how long or how much.
"""

from __future__ import annotations

import ast
import difflib
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

ROOT = Path(__file__).parents[2]
SEED = 20261122
#: How many mutants of which files of ``distdl_jupyter``.
AREAS = {
    "core": (24, "core/*.py"), "supervisor": (20, "supervisor/*.py"), "form": (20, "form/*.py"),
    "views": (16, "views/*.py"), "server": (18, "server/*.py"), "local": (16, "clusters/*.py"),
    "ssh": (17, "clusters/ssh/*.py"), "slurm": (15, "clusters/slurm/*.py"), "azureml": (14, "clusters/azureml/*.py"),
}  # fmt: skip
#: How often an operator is drawn beside the others, by its name; those that only lead to a TypeError are left out.
WEIGHTS = {
    "AddNot|Replace(And|Or|True|False)With.*": 4,
    "ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is|[LG]tE?_[LG]tE?)": 4,
    "Replace(Break|Continue)With.*": 3,
    "ReplaceUnaryOperator_(Delete_Not|USub_UAdd)": 2,
    "ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|FloorDiv_Mul|Mod_Mul)": 2,
    "NumberReplacer|ExceptionReplacer|ZeroIterationForLoop": 1,
}
#: No more mutants of one file.
A_FILE = 3


def weight(operator: str) -> int:
    return next((weight for pattern, weight in WEIGHTS.items() if re.fullmatch(pattern, operator)), 0)


def untold(source: str) -> set[int]:
    """Return the lines in which a mutant would say nothing about the tests."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        nodes: list[ast.AST | None] = []
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                args = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                nodes = [node.returns, *(argument.annotation for argument in args), *node.decorator_list]
            case ast.ClassDef():
                nodes = [*node.decorator_list, *node.bases]
            case ast.AnnAssign():
                nodes = [node.annotation]
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                nodes = [node]
            case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("__") or name[:1].isupper():
                nodes = [node]
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if name in {"log", "_log", "logger", "_logger"}:
                nodes = [node]
        for found in filter(None, nodes):
            lines.update(range(found.lineno, found.end_lineno + 1))  # type: ignore[attr-defined]
    return lines


def mutants(path: Path) -> Iterator[tuple[int, str, int]]:
    """Yield the line, the operator and its place in the file of every mutant that may be drawn."""
    source = path.read_text()
    skipped, nodes = untold(source), list(ast_nodes(get_ast(source)))
    for name in OperatorProvider():
        if not weight(name):
            continue
        operator, count = OperatorProvider()[name](), 0
        for node in nodes:
            for (line, _), _ in operator.mutation_positions(node):
                small = name != "NumberReplacer" or node.value in {"0", "1", "2"}  # type: ignore[attr-defined]
                if line not in skipped and small:
                    yield line, name, count
                count += 1


def snippets(source: str, mutated: str) -> tuple[str, str]:
    """Return the changed lines and what they become, with so many lines above that they stand once in the file."""
    old, new = source.splitlines(keepends=True), mutated.splitlines(keepends=True)
    changes = [c for c in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if c[0] != "equal"]
    begin, end = changes[0][1], changes[-1][2]
    behind = len(old) - end
    above = 0
    while source.count("".join(old[begin - above : end])) > 1:
        above += 1
    return "".join(old[begin - above : end]), "".join(new[begin - above : len(new) - behind])


def drawn(area: str) -> Iterator[str]:
    """Yield the drawn mutants of an area, as they stand in the list."""
    number, pattern = AREAS[area]
    chance = random.Random(f"{SEED} {area}")
    files = sorted((ROOT / "distdl_jupyter").glob(pattern))
    choices = [(path, *mutant) for path in files for mutant in mutants(path)]
    weights = [weight(choice[2]) / sum(other[1:3] == choice[1:3] for other in choices) for choice in choices]
    taken: list[tuple[Path, int]] = []
    while len(taken) < number:
        path, line, name, count = chance.choices(choices, weights)[0]
        if (path, line) in taken or sum(other == path for other, _ in taken) == A_FILE:
            continue
        source = path.read_text()
        mutated = mutate_code(source, OperatorProvider()[name](), count)
        try:
            compile(mutated, path, "exec")
        except SyntaxError:
            continue
        taken.append((path, line))
        before, after = snippets(source, mutated)
        yield (
            f'[{area}-{len(taken):02}]\nfile = "{path.relative_to(ROOT)}"\noperator = "{name}"\n'
            f"before = '''\n{before}'''\nafter = '''\n{after}'''\n"
        )


if __name__ == "__main__":
    sys.stdout.write("\n".join(text for area in AREAS for text in drawn(area)))
