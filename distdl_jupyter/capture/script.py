"""Captures a script: its path, its arguments, and the modules beside it.

The script runs in place. Modules beside it are also sent: ranks on machines without that folder import the copies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distdl_jupyter.capture.captured_code import CapturedCode, build_payload, explain_packing
from distdl_jupyter.capture.free_names import CompiledSource, find_undefined
from distdl_jupyter.capture.listing import read_module_texts
from distdl_jupyter.capture.modules import find_modules
from distdl_jupyter.capture.notebook import CodeLocation
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.source import CodeText, list_imports, parse
from distdl_jupyter.core.spec import Captured, CodeSource
from distdl_jupyter.worker.secret_patterns import looks_secret

Parameters = Mapping[str, Any] | Sequence[Any] | None


@explain_packing()
def capture_script(
    entry_script: str | os.PathLike[str],
    source_directory: str | os.PathLike[str] | None = ".",
    script_params: Parameters = None,
) -> CapturedCode:
    """Capture ``python entry_script ...``; the script runs in place, its path is relative to ``source_directory``.

    ``source_directory`` is also the working directory; None means the current one. ``script_params`` is a dict from
    flags to values (``{"--epochs": 3, "--amp": "", "--sizes": [64, 128]}``): "", None and True give the bare flag,
    False omits it, and a list gives several values. A plain list of arguments is passed unchanged.

    Raises InvalidSpec if the script does not exist or is not valid Python.
    """
    start = time.perf_counter()
    folder = Path(source_directory or ".").expanduser().resolve()
    script = _find_script(folder, entry_script)
    text = _read_script(script)
    tree = parse(text)
    arguments, secret_indices = _to_arguments(script_params)
    modules = find_modules(
        list_imports(tree), {script.parent: "in the script's folder", folder: "in the source directory"}
    )
    entry = Captured(name=script.name, kind="module", detail="script, run in place", size=script.stat().st_size)
    undefined = find_undefined(CompiledSource.from_text(text, script.name), {}, script.name, (), CodeLocation())
    return CapturedCode(
        kind="script",
        name=script.stem[:120],
        source=CodeSource(code=text, filename=str(script), command=f"entry_script={script.name}"),
        captured=(entry, *(module.captured for module in modules)),
        modules=tuple(modules),
        payload_json=build_payload(
            "script",
            filename=str(script),
            path=list(dict.fromkeys([str(script.parent), str(folder)])),
            script=str(script),
            arguments=arguments,
            working_directory=str(folder),
        ),
        undefined=undefined,
        seconds=time.perf_counter() - start,
        texts=(CodeText(text, script.name), *read_module_texts(modules)),
        imports=frozenset(name.partition(".")[0] for name in list_imports(tree)),
        secret_arguments=frozenset(secret_indices),
    )


def _find_script(folder: Path, entry_script: str | os.PathLike[str]) -> Path:
    if not folder.is_dir():
        raise InvalidSpec(
            f"The source_directory {str(folder)!r} is not a folder.",
            code="source-directory-missing",
            field="source_directory",
        )
    script = (folder / Path(entry_script).expanduser()).resolve()
    if not script.is_file():
        scripts = ", ".join(sorted(path.name for path in folder.glob("*.py"))[:8])
        hint = f"Use one of: {scripts}." if scripts else "There is no Python file in it."
        raise InvalidSpec(
            f"Unknown script {str(entry_script)!r} in {folder}.", code="script-missing", field="entry_script", hint=hint
        )
    return script


def _read_script(script: Path) -> str:
    try:
        text = script.read_text(encoding="utf-8")
        parse(text)
    except UnicodeDecodeError as error:
        message = f"{script.name} is not valid UTF-8 text: {error}."
        raise InvalidSpec(message, code="script-not-utf-8", field="entry_script") from None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        origin = f"Line {line} of {script.name}" if line else script.name
        message = f"{origin} is not valid Python: {getattr(error, 'msg', error)}."
        raise InvalidSpec(message, code="script-syntax", field="entry_script") from None
    return text


def _to_arguments(parameters: Parameters) -> tuple[list[str], list[int]]:
    """Return the arguments after the script's name, and the positions of those whose flag has a secret-looking name."""
    if parameters is None:
        return [], []
    if isinstance(parameters, str) or not isinstance(parameters, Mapping | Sequence):
        raise InvalidSpec(
            f"script_params must be a dict, not {type(parameters).__name__}.",
            code="script-params-not-a-dict",
            field="script_params",
            hint='Pass a dict such as {"--epochs": 3}.',
        )
    if isinstance(parameters, Mapping):
        parameters = [text for flag, value in parameters.items() for text in _format_flag(str(flag), value)]
    arguments, secret_indices = [str(parameter) for parameter in parameters], []
    for index, text in enumerate(arguments):
        flag, equals, _ = text.partition("=")
        if text.startswith("-") and looks_secret(flag.lstrip("-").replace("-", "_")):
            secret_indices.append(index if equals else index + 1)
    return arguments, [index for index in secret_indices if index < len(arguments)]


def _format_flag(flag: str, value: Any) -> list[str]:
    if value is False:
        return []
    if value is None or value is True or (isinstance(value, str) and not value):
        return [flag]
    values = value if isinstance(value, list | tuple) else [value]
    return [flag, *(str(item) for item in values)]
