"""Captures a notebook cell: its code, the names that it uses from the notebook, the modules beside it."""

from __future__ import annotations

import ast
import re
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from distdl_jupyter.capture import listing, modules
from distdl_jupyter.capture.captured_code import CapturedCode, explain_packing, payload_fields, pickled
from distdl_jupyter.capture.free_names import CompiledSource, find_undefined, free_names
from distdl_jupyter.capture.notebook import CodeLocation, cell_label, shell
from distdl_jupyter.capture.pickler import refuse, with_submodules
from distdl_jupyter.capture.references import in_order, is_of_notebook
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.source import CodeText, imported, parse
from distdl_jupyter.core.spec import CodeSource

#: Names that IPython overrides; a rank has Python's own.
_IPYTHONS = ("open", "exit", "quit", "get_ipython")
_IPYTHON_SYNTAX = re.compile(r"^[%!?]|= *[!%]|\?$")
_ASYNC = (ast.Await, ast.AsyncFor, ast.AsyncWith)
_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@explain_packing
def capture_cell(
    code: str,
    namespace: Mapping[str, Any],
    *,
    cell_id: str = "",
    execution_count: int | None = None,
    notebook: str = "",
    first_line: int = 2,
    command: str = "",
    announce: bool = True,
) -> CapturedCode:
    """Capture ``code``, the text of a cell below its magic line, with what it uses from ``namespace``.

    ``first_line`` is the line number in the cell of line 1 of ``code``, ``notebook`` the path of its file ("" if
    unknown), ``command`` the magic line; ``announce`` prints which values are large before they are pickled. Raises
    InvalidSpec if the code cannot run on ranks or a value cannot be pickled (naming the part that fails), SyntaxError
    if it is not valid Python.
    """
    begin = time.perf_counter()
    location = CodeLocation(path=notebook, cell_id=cell_id, execution_count=execution_count)
    filename = _filename(location)
    code = plain_python(code, first_line=first_line, filename=filename)
    free, tree = free_names(code), parse(code)
    ip = shell()
    values = {
        name: value
        for name, value in in_order(free, namespace).items()
        if name not in _IPYTHONS or ip is None or ip.user_ns_hidden.get(name) is not value
    }
    if announce:
        listing.announce_large(values, "cell")
    notes, file = pickled(with_submodules(values, tree).items())
    refuse(notes, values, unit="cell")
    named = [value.__name__ for value in values.values() if isinstance(value, ModuleType)]
    try:
        shipped = modules.local_modules([*notes.modules, *named, *imported(tree)], modules.roots(location))
    except BaseException:
        file.close()
        raise
    cell_text = CodeText(code, cell_label(execution_count, location.name), execution_count, first_line)
    sources = {**listing.sources_of(notes, location), filename: cell_text}
    written = [function for function in notes.functions.values() if is_of_notebook(function)]
    functions = {id(function): CompiledSource.from_function(function, location) for function in written}
    return CapturedCode(
        kind="cell",
        name=_job_name(location),
        source=CodeSource(
            code=code,
            filename=filename,
            notebook=notebook,
            cell_id=cell_id,
            execution_count=execution_count,
            first_line=first_line,
            command=command,
        ),
        captured=listing.captured_list(values.items(), notes.sizes, shipped),
        modules=tuple(shipped),
        payload_json=payload_fields(
            "cell",
            code=code,
            filename=filename,
            names=list(values),
            sources={name: text.to_json() for name, text in sources.items()},
            path=modules.search_path(location),
        ),
        payload=file,
        seconds=time.perf_counter() - begin,
        texts=(cell_text, *listing.texts_of(notes, location), *listing.module_texts(shipped)),
        aliases=listing.aliases_of(values.items()),
        imports=listing.imports_of(notes, named, imported(tree)),
        on_gpu=tuple(notes.on_gpu),
        undefined=find_undefined(
            CompiledSource.from_text(code, first_line=first_line), namespace, "the cell or the notebook", functions
        ),
        numbers=listing.numbers_of(values.items()),
    )


def _filename(location: CodeLocation) -> str:
    number = "" if location.execution_count is None else f" {location.execution_count}"
    return f"<cell{number} of {location.name}>" if location.name else f"<cell{number}>"


def _job_name(location: CodeLocation) -> str:
    notebook = Path(location.name).stem[:100]
    number = "" if location.execution_count is None else f" [{location.execution_count}]"
    return f"{notebook}{number}" if notebook else f"cell{number}"


# the cell as plain Python -----------------------------------------------------------------------------
# IPython's own rules identify magics (``%``), shell commands (``!``) and help requests (``?``).


def plain_python(code: str, *, first_line: int = 1, filename: str = "<cell>", awaits: bool = False) -> str:
    """Return the cell's code as plain Python with the same line numbers.

    Raises InvalidSpec for magics, shell commands, ``get_ipython()`` and a top-level ``await`` (unless ``awaits``), with
    the line number in the cell (``first_line`` is that of line 1 of ``code``), and SyntaxError for invalid Python.
    """
    try:
        tree = parse(code)
    except SyntaxError as error:
        code = _transformed(code, first_line, filename, error)
        tree = parse(code)
    if not awaits:
        _refuse_await(tree, first_line)
    _refuse_get_ipython(tree, first_line)
    _compile(code, filename, first_line)
    return code


def _transformed(code: str, first_line: int, filename: str, error: SyntaxError) -> str:
    """Return the code without prompts and common indentation. Raises InvalidSpec for IPython syntax."""
    from IPython.core.inputtransformer2 import TransformerManager

    # IPython removes empty lines at the top, which would shift all line numbers.
    body = code.lstrip("\n")
    manager: Any = TransformerManager
    with warnings.catch_warnings(action="ignore"):
        transformed: str = "\n" * (len(code) - len(body)) + manager().transform_cell(body)
    try:
        tree = parse(transformed)
    except SyntaxError as still:
        raise _shifted(still, filename, first_line) from None
    call = next((node for node in ast.walk(tree) if isinstance(node, ast.Call) and _calls_ipython(node)), None)
    if call is not None:
        raise _refusal(code, call, first_line)
    if transformed.count("\n") - code.count("\n") not in (0, 1):
        raise _shifted(error, filename, first_line)
    return transformed


def _calls_ipython(call: ast.Call) -> bool:
    """Return whether a call is ``get_ipython().something(...)``, to which IPython transforms its own syntax."""
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython"))):
            return True
    return False


def _refusal(code: str, call: ast.Call, first_line: int) -> InvalidSpec:
    number, line = _line_of(code, call.lineno)
    where = f"Line {number + first_line - 1} of the cell, `{line}`,"
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr in ("system", "getoutput"):
        return InvalidSpec(
            f"{where} is a shell command, but the ranks run plain Python.",
            code="shell-command-in-cell",
            field="cell",
            hint="Move it to another cell, or use subprocess.run.",
        )
    is_help = call.func.attr == "run_line_magic" and "?" in line
    return InvalidSpec(
        f"{where} is an IPython {'help request' if is_help else 'magic'}, but the ranks run plain Python.",
        code="magic-in-cell",
        field="cell",
        hint="Move it to another cell.",
    )


def _line_of(code: str, lineno: int) -> tuple[int, str]:
    """Return the number and text of the line of IPython syntax at or before ``lineno`` of the transformed code."""
    lines = [line.strip() for line in code.splitlines()]
    marked = [number for number, line in enumerate(lines, 1) if _IPYTHON_SYNTAX.search(line)]
    number = min(marked, key=lambda n: abs(n - lineno), default=min(lineno, len(lines)))
    return number, lines[number - 1]


def _refuse_await(tree: ast.Module, first_line: int) -> None:
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, _ASYNC) or (isinstance(node, ast.comprehension) and node.is_async):
            line = getattr(node.target if isinstance(node, ast.comprehension) else node, "lineno", 1)
            raise InvalidSpec(
                f"Line {line + first_line - 1} of the cell uses await outside a function, but the ranks run plain "
                "Python.",
                code="await-in-cell",
                field="cell",
                hint="Put it into `async def main()` and call asyncio.run(main()).",
            )
        if not isinstance(node, _OWN_SCOPE):
            pending.extend(ast.iter_child_nodes(node))


def _refuse_get_ipython(tree: ast.Module, first_line: int) -> None:
    # In a try block it is the usual notebook detection, for which a rank raises NameError.
    guarded = {id(n) for t in ast.walk(tree) if isinstance(t, ast.Try) for n in ast.walk(t)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "get_ipython" and id(node) not in guarded:
            raise InvalidSpec(
                f"Line {node.lineno + first_line - 1} of the cell uses get_ipython(), which does not exist on ranks.",
                code="get-ipython-in-cell",
                field="cell",
                hint="Move that line to another cell.",
            )


def _compile(code: str, filename: str, first_line: int) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(code, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        raise _shifted(error, filename, first_line) from None


def _shifted(error: SyntaxError, filename: str, first_line: int) -> SyntaxError:
    """Return the error with the line number in the cell."""
    line = (error.lineno or 1) + first_line - 1
    end = None if error.end_lineno is None else error.end_lineno + first_line - 1
    return SyntaxError(error.msg, (filename, line, error.offset, error.text, end, error.end_offset))
