"""Checks of files and data: no two ranks write the same file, and the job has the data sources that it uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from distdl_jupyter.core.data import DataSource
from distdl_jupyter.core.errors import Check, Finding
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.source import Call, CodeAnalysis, depends_on_rank
from distdl_jupyter.core.spec import JobSpec

#: Calls whose first argument is the path that they write to, and calls whose second argument is.
_PATH_FIRST_PATTERN = re.compile(
    r"numpy\.save(z|z_compressed|txt)?|horovod\.save|"
    r".*\.(to_(csv|parquet|json|pickle|feather)|save_(pretrained|weights|model)|savefig)"
)
_PATH_SECOND_CALLS = ("torch.save", "joblib.dump")
#: Maximum number of findings that are listed individually.
_MAX_LISTED_FINDINGS = 3


def check_files(code: CodeAnalysis, spec: JobSpec) -> Check:
    """Check that no two ranks write to the same file."""
    name = "Files"
    if spec.process_count == 1:
        return Check(name, "only one process writes")
    writes = [(call, path) for call in code.calls if (path := _find_fixed_path(call, code)) is not None]
    findings = [_make_finding(call, path) for call, path in writes[:_MAX_LISTED_FINDINGS]]
    if len(writes) > _MAX_LISTED_FINDINGS:
        findings.append(_summarize_calls([call for call, _ in writes[_MAX_LISTED_FINDINGS:]]))
    return Check(
        name,
        "several ranks write the same file" if findings else "no file is written by several ranks",
        tuple(findings),
    )


def _summarize_calls(calls: Sequence[Call]) -> Finding:
    """Return one finding for all calls that are not listed individually."""
    location = f"for example {calls[0].location}" if len(calls) > 1 else calls[0].location
    return Finding(
        "warning",
        "shared-file",
        f"{plural(len(calls), 'more call')} ({location}) would write the same file on every rank.",
        "Ignore this for code that the job never calls.",
    )


def _make_finding(call: Call, path: str) -> Finding:
    return Finding(
        "warning",
        "shared-file",
        f"Every rank would write {path} in {call.location}, and the ranks would overwrite each other's file.",
        "Put `if rank == 0:` before it, or include the rank in the file name.",
    )


def _find_fixed_path(call: Call, code: CodeAnalysis) -> str | None:
    """Return the path's source text if the call writes to the same path on all ranks, or None if not."""
    path = None if call.is_on_one_rank else _find_written_path(call)
    if isinstance(path, ast.Name):
        path = code.assigned.get(path.id)
    if path is None or not _is_literal_path(path) or depends_on_rank(path, code.rank_names):
        return None
    return ast.unparse(path)[:60]


def _find_written_path(call: Call) -> ast.expr | None:
    if call.name in ("open", "io.open", "builtins.open"):
        return _find_argument(call, 0) if _opens_for_writing(call, 1) else None
    if call.short_name == "open" and isinstance(call.node.func, ast.Attribute):
        return call.node.func.value if _opens_for_writing(call, 0) else None
    if call.short_name in ("write_text", "write_bytes") and isinstance(call.node.func, ast.Attribute):
        return call.node.func.value
    if call.name in _PATH_SECOND_CALLS:
        return _find_argument(call, 1)
    return _find_argument(call, 0) if _PATH_FIRST_PATTERN.fullmatch(call.name) else None


def _find_argument(call: Call, position: int) -> ast.expr | None:
    if position < len(call.node.args):
        return call.node.args[position]
    keywords = ("file", "f", "path", "path_or_buf", "fname", "filename", "save_directory")
    return next((k.value for k in call.node.keywords if k.arg in keywords), None)


def _opens_for_writing(call: Call, position: int) -> bool:
    """Return whether the call opens a file for writing."""
    mode = call.node.args[position] if position < len(call.node.args) else None
    mode = mode or next((k.value for k in call.node.keywords if k.arg == "mode"), None)
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and bool(set("wxa+") & set(mode.value))


def _is_literal_path(node: ast.expr) -> bool:
    """Return whether an expression is a path that is built from literals in the code."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and not node.value.startswith("/dev/")
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Add | ast.Mod):
        return _is_literal_path(node.left) or _is_literal_path(node.right)
    if isinstance(node, ast.Call):
        return any(_is_literal_path(argument) for argument in node.args)
    return False


# data sources -----------------------------------------------------------------------------------------


def check_sources(code: CodeAnalysis, spec: JobSpec) -> Check | None:
    """Check that each ``data_path("name")`` in the code has a data source. Return None if no data is used."""
    calls = _find_data_path_calls(code)
    if not (spec.data or calls):
        return None
    findings = (*_check_missing_sources(calls, spec.data), *_check_mounted_sources(spec.data))
    names = [source.name for source in spec.data]
    return Check("Data sources", listing(names) if names else "none", findings)


def _find_data_path_calls(code: CodeAnalysis) -> list[Call]:
    """Return the calls of ``data_path`` outside sent modules, because the job may not use these."""
    return [call for call in code.calls if call.short_name == "data_path" and call.label in code.training_labels]


def _check_missing_sources(calls: list[Call], sources: tuple[DataSource, ...]) -> Iterator[Finding]:
    names = {source.name.lower() for source in sources}
    for call in calls:
        name = _read_source_name(call.node)
        if name is not None and name.lower() not in names:
            available = f"only {listing(sorted(names))}" if names else "none"
            yield Finding(
                "warning",
                "data-not-given",
                f"{call.beginning} uses the data source {name!r}, but the job has {available}.",
                f"Add it with --data {name}=ADDRESS, or data={{{name!r}: ADDRESS}}.",
            )


def _read_source_name(call: ast.Call) -> str | None:
    """Return the literal name in a call or the default, or None if it is not a literal."""
    argument = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "name"), None)
    if argument is None:
        return "data"
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None


def _check_mounted_sources(sources: tuple[DataSource, ...]) -> Iterator[Finding]:
    if names := [source.name for source in sources if source.mode == "mount"]:
        yield Finding(
            "warning",
            "data-mounted",
            f"{listing(names)} {'is' if len(names) == 1 else 'are'} mounted, so every epoch reads over the network.",
            "Remove mode=mount if the data fits on the disks: it is then copied once, before the start.",
        )
