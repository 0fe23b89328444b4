"""Finds the notebook, the running cell, and the cell in which a function was defined.

The module inspects a running IPython but never imports it. In a plain interpreter, all results are empty.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distdl_jupyter.core.source import CodeText, format_cell_label

_CELL_LABEL = re.compile(r"In\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """The running notebook and cell. ``raw`` is the cell's full text, ``path`` the notebook's file."""

    path: str = ""
    cell_id: str = ""
    execution_count: int | None = None
    raw: str = ""

    @property
    def name(self) -> str:
        """File name of the notebook, or "" if it is unknown."""
        return Path(self.path).name if self.path else ""

    @property
    def folder(self) -> Path | None:
        """Folder of the notebook, or None if it does not exist on this machine."""
        parent = Path(self.path).parent if self.path else None
        return parent if parent is not None and parent.is_absolute() and parent.is_dir() else None


def get_shell() -> Any | None:
    """Return the running IPython shell, or None outside IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None


def current_location() -> CodeLocation:
    """Return the location of the running cell; unknown parts are empty."""
    shell = get_shell()
    if shell is None:
        return CodeLocation()
    inputs = getattr(getattr(shell, "history_manager", None), "input_hist_raw", None) or [""]
    raw, number = (inputs[-1], len(inputs) - 1) if len(inputs) > 1 else ("", None)
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    metadata = (parent.get("metadata") if isinstance(parent, dict) else None) or {}
    cell_id = metadata.get("cellId")
    return CodeLocation(_find_notebook_path(shell), cell_id if isinstance(cell_id, str) else "", number, raw)


def _find_notebook_path(ip: Any) -> str:
    # VS Code sets the first name; ipykernel sets the second from the environment of the Jupyter server.
    names = [ip.user_ns.get(name) for name in ("__vsc_ipynb_file__", "__session__")]
    for path in (*names, os.environ.get("JPY_SESSION_NAME")):
        if isinstance(path, str) and path.endswith(".ipynb"):
            # Collaborative sessions have names such as "RTC:json:notebook:<path>".
            return path.rpartition(":")[2] if path.startswith("RTC:") else path
    return ""


def find_cell_number(filename: str) -> int | None:
    """Return the execution count of the cell with this file name, or None for other files."""
    compiler = getattr(get_shell(), "compile", None)
    format_name = getattr(compiler, "format_code_name", None)
    label = format_name(filename) if format_name is not None else None
    match = _CELL_LABEL.fullmatch(label[1]) if label else None
    return int(match[1]) if match else None


def read_code_text(filename: str, location: CodeLocation) -> CodeText | None:
    """Return the source for a code object's file name, or None if it is unknown."""
    text = "".join(linecache.getlines(filename))
    if not text:
        return None
    number = find_cell_number(filename)
    if number is None:
        return CodeText(text, Path(filename).name)
    return CodeText(text, format_cell_label(number, location.name), number, 1 + _count_removed_lines(text, number))


def _count_removed_lines(text: str, number: int) -> int:
    """Return how many leading empty lines IPython removed from a cell before compiling it."""
    inputs = getattr(getattr(get_shell(), "history_manager", None), "input_hist_raw", [])
    raw = inputs[number] if number < len(inputs) else ""
    first = text.partition("\n")[0]
    for count, line in enumerate(raw.splitlines()):
        if line.strip():
            return count if line.strip() == first.strip() else 0
    return 0
