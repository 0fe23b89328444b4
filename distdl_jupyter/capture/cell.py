"""A notebook cell as a job: its code, the names that it takes from the notebook, the modules beside it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from distdl_jupyter.capture import listing, modules, undefined
from distdl_jupyter.capture.captured_code import (
    CapturedCode,
    closed_on_error,
    explain_packing,
    keep,
    payload_fields,
    pickled,
)
from distdl_jupyter.capture.cell_code import plain_python
from distdl_jupyter.capture.free_names import Uses, imported, parse, uses
from distdl_jupyter.capture.notebook import CodeLocation, CodeText, cell_label, shell
from distdl_jupyter.capture.pickler import PickleReport
from distdl_jupyter.capture.references import in_order, is_of_notebook
from distdl_jupyter.capture.submodules import with_submodules
from distdl_jupyter.core.spec import Source
from distdl_jupyter.preflight.model import UndefinedName
from distdl_jupyter.worker.recursion import deep_recursion

#: Names that IPython puts in place of Python's own; a rank has Python's.
_IPYTHONS = ("open", "exit", "quit", "get_ipython")


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

    ``first_line`` is the cell's number of line 1 of ``code``, ``notebook`` the path of its file ("" when unknown),
    ``command`` the magic line; ``announce`` prints which values are large before they are packed. Raises InvalidSpec
    when the code cannot run on ranks or a name cannot be pickled (it names the place inside the value), SyntaxError
    when it is no Python.
    """
    begin = time.perf_counter()
    place = CodeLocation(path=notebook, cell_id=cell_id, execution_count=execution_count)
    filename = _filename(place)
    code = plain_python(code, first_line=first_line, filename=filename)
    with deep_recursion():
        used, tree = uses(code), parse(code)
    values = _values(used, namespace)
    if announce:
        listing.announce_large(values, "cell")
    notes, file = pickled(with_submodules(values, tree).items())
    listing.refuse(notes, values, unit="cell")
    named = [value.__name__ for value in values.values() if isinstance(value, ModuleType)]
    with closed_on_error(file):
        shipped = modules.local_modules([*notes.modules, *named, *imported(tree)], modules.roots(place))
    own = CodeText(code, cell_label(execution_count, place.name), execution_count, first_line)
    sources = {**listing.sources_of(notes, place), filename: own}
    return keep(
        CapturedCode(
            kind="cell",
            name=_job_name(place),
            source=Source(
                code=code, filename=filename, notebook=notebook, cell_id=cell_id,
                execution_count=execution_count, first_line=first_line, command=command,
            ),
            captured=listing.captured_list(values.items(), notes.sizes, shipped),
            modules=tuple(shipped),
            payload_json=payload_fields(
                "cell",
                code=code,
                filename=filename,
                names=list(values),
                sources={name: text.to_json() for name, text in sources.items()},
                path=modules.search_path(place),
            ),
            payload=file,
            seconds=time.perf_counter() - begin,
            texts=(own, *listing.texts_of(notes, place), *listing.module_texts(shipped)),
            aliases=listing.aliases_of(values.items()),
            imports=listing.imports_of(notes, named, imported(tree)),
            on_gpu=tuple(notes.on_gpu),
            undefined=_undefined(own, namespace, notes, place),
            deleted={name: line + first_line - 1 for name, line in used.deleted.items()},
            numbers=listing.numbers_of(values.items()),
        )
    )  # fmt: skip


def _filename(place: CodeLocation) -> str:
    number = "" if place.execution_count is None else f" {place.execution_count}"
    return f"<cell{number} of {place.name}>" if place.name else f"<cell{number}>"


def _job_name(place: CodeLocation) -> str:
    notebook = Path(place.name).stem[:100]
    number = "" if place.execution_count is None else f" [{place.execution_count}]"
    return f"{notebook}{number}" if notebook else f"cell{number}"


def _values(used: Uses, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that travel by name, each behind those that it needs."""
    ordered = in_order([name for name in used.free if name in namespace], namespace)
    return {name: namespace[name] for name in ordered if not _is_ipythons(name, namespace[name])}


def _is_ipythons(name: str, value: object) -> bool:
    ip = shell()
    return name in _IPYTHONS and ip is not None and ip.user_ns_hidden.get(name) is value


def _undefined(
    own: CodeText, namespace: Mapping[str, Any], notes: PickleReport, place: CodeLocation
) -> tuple[UndefinedName, ...]:
    functions = {id(one): undefined.of_function(one, place) for one in notes.functions.values() if is_of_notebook(one)}
    with deep_recursion():
        return undefined.find(
            undefined.module(parse(own.text), own.text, first_line=own.first_line),
            namespace,
            "the cell or the notebook",
            called=lambda name: functions.get(id(namespace.get(name))),
            others=[code for code in functions.values() if code is not None],
            numbers=listing.numbers_of(namespace.items()),
        )
