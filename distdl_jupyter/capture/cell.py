"""Captures a notebook cell: its code, the names that it uses from the notebook, and the modules beside the notebook."""

from __future__ import annotations

import ast
import re
import textwrap
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from distdl_jupyter.capture import listing, modules
from distdl_jupyter.capture.captured_code import CapturedCode, build_payload, explain_packing, pickle_values
from distdl_jupyter.capture.free_names import CompiledSource, find_free_names, find_undefined
from distdl_jupyter.capture.notebook import CodeLocation, get_shell
from distdl_jupyter.capture.pickler import raise_errors, wrap_modules
from distdl_jupyter.capture.references import order_values
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.source import CodeText, format_cell_label, list_imports, parse
from distdl_jupyter.core.spec import CodeSource

#: Names that IPython adds or replaces. They are not captured, because ranks run plain Python.
_IPYTHON_NAMES = ("open", "exit", "quit", "get_ipython")
#: A magic, a shell command or a help request, with or without an assignment.
_IPYTHON_SYNTAX = re.compile(r"^[%!?]|= *[!%]|\?$")
#: Python's errors about await, "async for" and asynchronous comprehensions outside a function.
_TOP_LEVEL_AWAIT = re.compile("'?(await|async)")


@explain_packing()
def capture_cell(
    code: str,
    namespace: Mapping[str, Any],
    *,
    cell_id: str = "",
    execution_count: int | None = None,
    notebook: str = "",
    first_line: int = 2,
    command: str = "",
) -> CapturedCode:
    """Capture ``code``, the text of a cell below its magic line, with what it uses from ``namespace``.

    ``first_line`` is the line number in the cell of line 1 of ``code``, ``notebook`` the path of its file ("" if
    unknown), ``command`` the magic line. Raises InvalidSpec if the code cannot run on ranks or a value cannot be
    pickled (naming the part that fails), SyntaxError if it is not valid Python.
    """
    start = time.perf_counter()
    location = CodeLocation(path=notebook, cell_id=cell_id, execution_count=execution_count)
    count_text = "" if execution_count is None else f" {execution_count}"
    filename = f"<cell{count_text} of {location.name}>" if location.name else f"<cell{count_text}>"
    code = check_plain_python(code, first_line=first_line, filename=filename)
    names, tree = find_free_names(code), parse(code)
    shell = get_shell()
    values = {
        name: value
        for name, value in order_values(names, namespace).items()
        if name not in _IPYTHON_NAMES or shell is None or shell.user_ns_hidden.get(name) is not value
    }
    imports = [*(value.__name__ for value in values.values() if isinstance(value, ModuleType)), *list_imports(tree)]
    with pickle_values(wrap_modules(values, tree).items()) as (report, file):
        raise_errors(report, values, unit="cell")
        sent_modules = modules.find_modules([*report.modules, *imports], modules.find_roots(location))
    text = CodeText(code, format_cell_label(execution_count, location.name), execution_count, first_line)
    functions = [function for function in report.functions.values() if function.__module__ == "__main__"]
    main = CompiledSource.from_text(code, first_line=first_line)
    return CapturedCode(
        kind="cell",
        name=f"{Path(location.name).stem[:100] or 'cell'}{'' if execution_count is None else f' [{execution_count}]'}",
        source=CodeSource(
            code=code,
            filename=filename,
            notebook=notebook,
            cell_id=cell_id,
            execution_count=execution_count,
            first_line=first_line,
            command=command,
        ),
        payload_json=build_payload(
            "cell",
            code=code,
            filename=filename,
            names=list(values),
            sources={**listing.collect_sources(report, location), filename: text.to_json()},
            path=modules.build_search_path(location),
        ),
        payload=file,
        seconds=time.perf_counter() - start,
        undefined=find_undefined(main, namespace, "the cell or the notebook", functions, location),
        **listing.describe_fields(values, report, sent_modules, location, texts=[text], imports=imports),
    )


# the cell as plain Python -----------------------------------------------------------------------------


def check_plain_python(code: str, *, first_line: int = 1, filename: str = "<cell>", allow_await: bool = False) -> str:
    """Return the cell's code as plain Python with the same line numbers.

    Raises InvalidSpec for magics, shell commands, ``get_ipython()`` and (unless ``allow_await``) a top-level ``await``,
    and SyntaxError for invalid Python. Errors give the line in the cell, where ``code`` starts at ``first_line``.
    """
    try:
        try:
            tree = parse(code)
        except IndentationError:  # IPython accepts a cell whose lines are all indented
            code = textwrap.dedent(code)
            tree = parse(code)
        with warnings.catch_warnings(action="ignore"):
            compile(code, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if allow_await else 0, dont_inherit=True)
    except SyntaxError as error:
        raise _to_error(error, code, filename, first_line) from None
    _refuse_get_ipython(tree, first_line)
    return code


def _to_error(error: SyntaxError, code: str, filename: str, first_line: int) -> Exception:
    """Return the error for a cell that is not plain Python: InvalidSpec if IPython can run it, else SyntaxError."""
    number = error.lineno or 1
    text = "".join(code.splitlines()[number - 1 : number]).strip()
    line = number + first_line - 1
    if _TOP_LEVEL_AWAIT.match(error.msg):
        return InvalidSpec(
            f"Line {line} of the cell uses await outside a function, but the ranks run plain Python.",
            code="await-in-cell",
            field="cell",
            hint="Put it into `async def main()` and call asyncio.run(main()).",
        )
    if (syntax := _IPYTHON_SYNTAX.search(text)) is None:
        end = None if error.end_lineno is None else error.end_lineno + first_line - 1
        return SyntaxError(error.msg, (filename, line, error.offset, error.text, end, error.end_offset))
    prefix = f"Line {line} of the cell, `{text}`,"
    if "!" in syntax[0]:
        return InvalidSpec(
            f"{prefix} is a shell command, but the ranks run plain Python.",
            code="shell-command-in-cell",
            field="cell",
            hint="Move it to another cell, or use subprocess.run.",
        )
    return InvalidSpec(
        f"{prefix} is an IPython {'help request' if '?' in syntax[0] else 'magic'}, but the ranks run plain Python.",
        code="magic-in-cell",
        field="cell",
        hint="Move it to another cell.",
    )


def _refuse_get_ipython(tree: ast.Module, first_line: int) -> None:
    # A try block is the usual notebook detection, which works on ranks because the name is undefined there.
    guarded_ids = {id(part) for block in ast.walk(tree) if isinstance(block, ast.Try) for part in ast.walk(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "get_ipython" and id(node) not in guarded_ids:
            raise InvalidSpec(
                f"Line {node.lineno + first_line - 1} of the cell uses get_ipython(), which does not exist on ranks.",
                code="get-ipython-in-cell",
                field="cell",
                hint="Move that line to another cell.",
            )
