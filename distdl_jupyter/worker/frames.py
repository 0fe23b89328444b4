"""Describes stack frames as in the notebook: whose code a frame runs, its line, and the values that it uses.

``View`` is one frame with the syntax tree of its failing statement. Attributes are read only from dictionaries, so that
reporting an error does not run properties or ``__getattr__`` of the user's classes.

Code captured from a notebook refers to files that do not exist in a rank. The text of these cells is added to
``linecache``, where Python looks up the lines for tracebacks and warnings.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import sys
import sysconfig
import threading
import traceback
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple


class Cell(NamedTuple):
    """A cell's label, its execution count, and the offset to add to line numbers in its code objects."""

    label: str
    number: int | None
    shift: int


class CellSources:
    """All cells of a job by file name."""

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}

    def add_all(self, sources: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the cells in the "sources" of a payload."""
        for filename, entry in sources.items():
            shift = int(entry.get("first_line", 1)) - 1
            self._cells[filename] = Cell(str(entry.get("label", filename)), entry.get("cell"), shift)
            add_to_linecache(filename, str(entry.get("text", "")))

    def add_shifted(self, filename: str, text: str) -> int:
        """Add a cell that this rank is about to compile, and return the number of lines by which to shift its code.

        With this shift, line numbers in tracebacks and warnings are those of the notebook. A cell that ``add_all`` has
        not added is labeled with its file name.
        """
        cell = self._cells.get(filename, Cell(filename, None, 0))
        self._cells[filename] = cell._replace(shift=0)
        add_to_linecache(filename, "\n" * cell.shift + text)
        return cell.shift

    def get(self, filename: str) -> Cell | None:
        """Return the cell whose code objects have this file name, or None for a real file."""
        return self._cells.get(filename)


def add_to_linecache(filename: str, text: str) -> None:
    """Add a file that does not exist to ``linecache``."""
    # str.splitlines would also split at form feeds, which do not end a line in Python. linecache.checkcache() does not
    # remove an entry without a modification time.
    lines = [f"{line}\n" for line in text.removesuffix("\n").split("\n")]
    linecache.cache[filename] = (len(text), None, lines, filename)


#: Recursion limit for analyzing code. Python compiles about 3,000 levels of nested code.
_MIN_RECURSION_LIMIT = 20_000

_lock = threading.Lock()
#: Number of active ``deep_recursion`` blocks, and the original limit, which the last of them restores.
_active_count = _original_limit = 0


@contextlib.contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise the recursion limit of all threads, so that any code that Python compiles can be analyzed."""
    global _active_count, _original_limit
    with _lock:
        if not _active_count:
            _original_limit = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_original_limit, _MIN_RECURSION_LIMIT))
        _active_count += 1
    try:
        yield
    finally:
        with _lock:
            _active_count -= 1
            if not _active_count:
                sys.setrecursionlimit(_original_limit)


#: The folder of the worker's own modules.
WORKER_FOLDER = f"{Path(__file__).parent}/"
#: Number of lines shown before and after the failing one, and maximum number of characters of a line.
_CONTEXT_LINES, _MAX_LINE_CHARS = 2, 300
#: Number of frames that are kept at the start and the end of a very long traceback.
_FIRST_FRAMES, _LAST_FRAMES = 20, 60


class ErrorFrame(NamedTuple):
    """One frame of a traceback. ``line`` is the line in its code object; ``cell`` is None for a real file."""

    file: str
    line: int
    function: str
    kind: str
    cell: Cell | None
    variables: dict[str, Any]
    globals: dict[str, Any]

    @property
    def notebook_line(self) -> int:
        """The line number in the notebook."""
        return self.line + (self.cell.shift if self.cell else 0)


class FrameDescriber:
    """Classifies and labels the frames of tracebacks."""

    def __init__(self, sources: CellSources, code_folder: Path | None) -> None:
        self.sources = sources
        self.code_folder = f"{code_folder}/" if code_folder else ""
        paths = sysconfig.get_paths()
        self._library = tuple({f"{paths[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})

    def classify(self, file: str) -> str:
        """Return whose code a file contains: cell, worker, user or library."""
        if self.sources.get(file) is not None:
            return "cell"
        if file.startswith(WORKER_FOLDER):
            return "worker"
        if self.code_folder and file.startswith(self.code_folder):
            return "user"
        is_library = file.startswith(("<", *self._library)) or "site-packages" in file or "dist-packages" in file
        return "library" if is_library else "user"

    def is_user_code(self, file: str) -> bool:
        """Return whether a file is a cell or contains other code of the user."""
        return self.classify(file) in ("cell", "user")

    def get_label(self, file: str) -> str:
        """Return a file's display name: the label of a cell, or the path relative to the folder it is imported from."""
        if (cell := self.sources.get(file)) is not None:
            return cell.label
        folders = [self.code_folder, *sorted(self._library, key=len, reverse=True), f"{Path.cwd()}/"]
        root = next((root for root in folders if root and file.startswith(root)), "")
        return file.removeprefix(root) if root else Path(file).name

    def list_frames(self, trace: TracebackType | None) -> list[ErrorFrame]:
        """Return the frames of a traceback, outermost first. Frames in the middle of a very long one are omitted."""
        frames: list[ErrorFrame] = []
        while trace is not None:
            code, file = trace.tb_frame.f_code, trace.tb_frame.f_code.co_filename
            kind = self.classify(file)
            # Frames of Python between the worker and a script (``runpy``) count as the worker's.
            kind = "worker" if kind == "library" and all(f.kind == "worker" for f in frames) else kind
            line, cell = trace.tb_lineno or code.co_firstlineno, self.sources.get(file)
            names = trace.tb_frame.f_locals, trace.tb_frame.f_globals
            frames.append(ErrorFrame(file, line, code.co_qualname, kind, cell, *names))
            trace = trace.tb_next
        return frames[:_FIRST_FRAMES] + frames[max(_FIRST_FRAMES, len(frames) - _LAST_FRAMES) :]

    def find_line(self) -> tuple[str, int]:
        """Return the label and line of the innermost frame of the user's code, or ("", 0) if there is none."""
        stack = traceback.walk_stack(sys._getframe(1))  # noqa: SLF001  the documented way to walk the stack
        return self.locate_first((frame.f_code.co_filename, line) for frame, line in stack)

    def locate_first(self, positions: Iterable[tuple[str, int]]) -> tuple[str, int]:
        """Return the label and line of the first file and line in the user's code, or ("", 0) if there is none."""
        return next((self.locate(file, line) for file, line in positions if self.is_user_code(file)), ("", 0))

    def locate(self, file: str, line: int) -> tuple[str, int]:
        """Return the label of a file and the line as numbered in the notebook."""
        cell = self.sources.get(file)
        return self.get_label(file) if file else "", line + (cell.shift if cell else 0)

    def read_lines(self, frame: ErrorFrame) -> list[list[Any]]:
        """Return the lines around the failing one as [number, text], numbered as in the notebook."""
        lines = linecache.getlines(frame.file, frame.globals)
        first, last = max(1, frame.line - _CONTEXT_LINES), min(len(lines), frame.line + _CONTEXT_LINES)
        shift = frame.notebook_line - frame.line
        return [[n + shift, lines[n - 1].rstrip("\n")[:_MAX_LINE_CHARS]] for n in range(first, last + 1)]


#: The value of an expression that cannot be evaluated without running code.
MISSING = object()
#: The dictionaries in which torch modules store submodules, parameters and buffers.
_MODULE_DICTS = ("_modules", "_parameters", "_buffers")
#: Types of values that are omitted, because they do not explain an error.
_OMITTED_TYPES = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


class View:
    """One frame at the line that failed, with the innermost statement there (None if the source is unknown)."""

    def __init__(self, frame: ErrorFrame) -> None:
        self._frame = frame
        self._statement: ast.stmt | None = None
        #: The variables of the ``for`` loops around the statement in its function.
        self._loop_variables: list[ast.expr] = []
        inner: ast.AST | None = None
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            inner = ast.parse("".join(linecache.getlines(frame.file, frame.globals)))
        while inner is not None:
            inner = _find_statement(inner, frame.line)
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._loop_variables = []
            if isinstance(self._statement, ast.For | ast.AsyncFor) and inner is not None:
                self._loop_variables += [n for n in ast.walk(self._statement.target) if isinstance(n, ast.Name)]
            self._statement = inner or self._statement

    def iterate_nodes(self) -> Iterator[ast.AST]:
        """Yield every node of the failing statement, except nested statements."""
        for part in ast.iter_child_nodes(self._statement) if self._statement is not None else ():
            if not isinstance(part, ast.stmt | ast.excepthandler | ast.match_case):
                yield from ast.walk(part)

    def evaluate(self, node: ast.AST) -> Any:
        """Return the value of a constant, a name or a plain attribute of a name, or MISSING for another expression."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._frame.variables.get(node.id, self._frame.globals.get(node.id, MISSING))
        if isinstance(node, ast.Attribute):
            return _read_attribute(self.evaluate(node.value), node.attr)
        return MISSING

    def list_values(self) -> list[tuple[str, Any]]:
        """Return (text, value) for the loop variables, the names that the statement reads, and those it reassigns.

        Modules, functions and classes are omitted. Of a dotted name, the longest prefix with a plain value is used,
        such as ``x`` of ``x.view``, or ``self.fc``.
        """
        nodes = [node for node in self.iterate_nodes() if isinstance(node, ast.Name | ast.Attribute)]
        inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        outermost = [node for node in nodes if id(node) not in inner]
        outermost.sort(key=lambda node: (isinstance(node.ctx, ast.Store), node.lineno, node.col_offset))
        values: dict[str, Any] = {}
        for name_node in [*self._loop_variables, *outermost]:
            node: ast.expr = name_node
            value = self.evaluate(node)
            while isinstance(node, ast.Attribute) and (value is MISSING or isinstance(value, _OMITTED_TYPES)):
                node = node.value
                value = self.evaluate(node)
            if value is not MISSING and not isinstance(value, _OMITTED_TYPES):
                values.setdefault(ast.unparse(node), value)
        return list(values.items())


def _find_statement(node: ast.AST, line: int) -> ast.stmt | None:
    """Return the statement directly in a node to which a line belongs (with its decorators), or None."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            lines = [child.lineno, *(decorator.lineno for decorator in getattr(child, "decorator_list", ()))]
            if min(lines) <= line <= (child.end_lineno or 0):
                return child
        elif isinstance(child, ast.excepthandler | ast.match_case) and (inner := _find_statement(child, line)):
            return inner
    return None


def _read_attribute(owner: Any, name: str) -> Any:
    if owner is MISSING:
        return MISSING
    attributes: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # the object has no dictionary, or a custom metaclass
        attributes = object.__getattribute__(owner, "__dict__")
    members: Any
    for members in (attributes, *map(attributes.get, _MODULE_DICTS)):
        if type(members).__name__ in ("dict", "OrderedDict", "mappingproxy") and name in members:
            return members[name]
    for base in type(owner).__mro__:
        member = base.__dict__.get(name, MISSING)
        if member is not MISSING:
            # Only plain class attributes are read: a property or another descriptor would run code.
            return MISSING if hasattr(type(member), "__get__") else member
    return MISSING
