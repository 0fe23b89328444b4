"""Each row of README's table of what works has a test in the quick selection that shows it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows():
    """Return what the first column of the table names."""
    table = README.partition("| what | tested with | never run |\n")[2].partition("\n\n")[0]
    first = [line.split("|")[1].strip() for line in table.splitlines()[1:]]
    return {name.strip("`") for text in first for name in re.split(", | and ", text)}


def marked():
    """Return what the tests are marked with, each with a file."""
    found = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "mark.readme(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.readme":
                found |= {argument.value: path for argument in node.args}
    return found


def test_each_row_of_the_table_has_a_test():
    assert len(rows()) > 15
    assert rows() - marked().keys() == set()


def test_each_mark_names_what_readme_names():
    assert [name for name in marked() if name.lower() not in README.lower()] == []
