"""Notebooks of the repository, run as a user runs them: cell by cell, in a kernel of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def read(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def cell_with(notebook: Any, text: str) -> Any:
    """Return the one cell of code that has a text."""
    (found,) = [cell for cell in notebook.cells if cell.cell_type == "code" and text in cell.source]
    return found


def executed(name: str, changes: Mapping[str, str] | None = None, folder: Path = NOTEBOOKS) -> Any:
    """Run a notebook in a folder and return it; ``changes`` are texts of its cells that stand there once."""
    notebook = read(name)
    for old, new in (changes or {}).items():
        cell = cell_with(notebook, old)
        assert cell.source.count(old) == 1
        cell.source = cell.source.replace(old, new)
    NotebookClient(notebook, timeout=800, kernel_name="python3").execute(cwd=str(folder))
    return notebook


def told(notebook: Any, text: str) -> str:
    """Return what the cell with a text printed and what its values are, as text."""
    outputs = cell_with(notebook, text).outputs
    return "\n".join(output.get("text") or output["data"]["text/plain"] for output in outputs if "ename" not in output)


def shown(notebook: Any, text: str) -> str:
    """Return the values of the cell with a text, as text."""
    outputs = cell_with(notebook, text).outputs
    return "\n".join(output.data["text/plain"] for output in outputs if "data" in output)
