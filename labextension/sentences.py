"""What the Python package says to people, for the catalogues: prints ``[[text, [file, ...]], ...]`` as JSON.

The package's code holds plain English sentences; a page shows them in its language (``src/ui/said.ts``), so nothing in
Python knows of languages. What is put into an f-string or by ``format`` is ``%1``, ``%2``, ... in the text.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parent.parent / "distdl_jupyter"
#: Written for a terminal, for other programs, or for who develops plug-ins.
ELSEWHERE = {"__main__.py", "cli", "magic", "testing", "compat", "monitoring", "ranks"}
#: Arguments that are shown as they are, be they one word.
SHOWN = {"label", "title", "help", "headline", "action", "remedy", "hint", "reason"}
_CODE = re.compile(
    r"[\\<>|^\n\x1b]|\(\?|^\W*$|--\w+=|^%1(?: %\d)*$| eq '|color-mix|max-age|stroke|\bcase \""
    r"|has no attribute|get_ipython' is|customdata|meta\[|^uname |^import |hread 0x|^\{|^%1[%\d\W]*\b\w?$"
)
#: What ``str.format`` replaces.
_FIELD = re.compile(r"\{[a-z_]*(?:![rs])?\}")
_WORD = re.compile(r"(?<![\w%/.`'-])[a-z]{2,}(?![\w/(=`-])")


def texts(tree: ast.AST) -> Iterator[str]:
    """Return the texts in a module that people read."""
    skipped: set[int] = set()
    shown: set[int] = set()
    strings: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            strings.append(node)
            skipped |= {id(part) for part in getattr(node, "values", ())}  # of an f-string
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            skipped |= {id(one.value) for one in node.body if isinstance(one, ast.Expr)}  # descriptions
        elif isinstance(node, ast.Compare | ast.Assert):
            skipped |= {id(one) for one in ast.walk(node)}
        elif isinstance(node, ast.Dict):
            skipped |= {id(key) for key in node.keys}
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in ("re", "log", "logger"):
                skipped |= {id(one) for one in node.args}
            shown |= {id(one.value) for one in node.keywords if one.arg in SHOWN}
    for node in strings:
        text = written(node)
        if text and id(node) not in skipped and (id(node) in shown or sentence(text)):
            yield text


def written(node: ast.AST) -> str:
    """Return a string of the source with its placeholders numbered; "" for what is none."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    numbers = itertools.count(1)
    text = ""
    for part in parts:
        if isinstance(part, ast.FormattedValue):
            text += f"%{next(numbers)}"
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            text += _FIELD.sub(lambda _: f"%{next(numbers)}", part.value.replace("%", "%%"))
        else:
            return ""
    return text


def sentence(text: str) -> bool:
    """Say whether a text reads like a sentence or a part of one: several words, and nothing that only programs read."""
    words = len(text.split())
    return words > 1 and not _CODE.search(text) and len(_WORD.findall(text)) >= min(words - 1, 2)


def main() -> None:
    """Print all texts, in the order of the files."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        if inside.parts[0] in ELSEWHERE:
            continue
        for text in texts(ast.parse(path.read_text())):
            found.setdefault(text.strip(), []).append(f"../distdl_jupyter/{inside.as_posix()}")
    json.dump([[text, sorted(set(files))] for text, files in found.items() if text], sys.stdout)


if __name__ == "__main__":
    main()
