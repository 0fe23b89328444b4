"""Checks of captured names: undefined names, large or secret values, values on a GPU, changed module attributes."""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from types import ModuleType

from distdl_jupyter.capture.captured_code import CapturedCode
from distdl_jupyter.capture.references import iter_instructions
from distdl_jupyter.core import humanize
from distdl_jupyter.core.errors import Check, Finding
from distdl_jupyter.core.source import get_module_name, try_parse
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.worker.secret_patterns import looks_secret

#: Minimum size in bytes of a captured value that is reported as large.
_LARGE_BYTES = 100_000_000


def check_names(draft: CapturedCode, spec: JobSpec) -> Check:
    """Check that all names that the code uses are defined."""
    summary = f"{humanize.plural(len(draft.captured), 'name')} captured, none missing"
    return Check("Names", summary, tuple(_check_undefined(draft, spec)))


def _check_undefined(draft: CapturedCode, spec: JobSpec) -> Iterator[Finding]:
    option = "--allow-undefined" if draft.kind == "cell" else "allow_undefined=True"
    for name in draft.undefined:
        is_error = name.certain and not spec.allow_undefined
        similar = f" Did you mean {' or '.join(name.similar)}?" if name.similar else ""
        yield Finding(
            "error" if is_error else "warning",
            "undefined-name",
            f"{name.name} is not defined in {name.where} ({name.location}).{similar}",
            f"Define it before using it{f', or start anyway with {option}' if is_error else ''}.",
        )


def check_values(draft: CapturedCode) -> Check:
    """Check that captured values are small, on the CPU and not secret."""
    total = sum(variable.size for variable in draft.captured)
    checks = (_check_sizes, _check_gpu_values, _check_secrets, _check_omitted_files, _check_attributes)
    findings = tuple(finding for check in checks for finding in check(draft))
    return Check("Captured values", f"{humanize.size(total)} in total", findings)


def _check_sizes(draft: CapturedCode) -> Iterator[Finding]:
    for variable in draft.captured:
        if variable.size >= _LARGE_BYTES:
            yield Finding(
                "warning",
                "large-value",
                f"{variable.name} ({variable.detail}) is {humanize.size(variable.size)}: every rank reads and stores "
                "its own copy.",
                f"Load it inside the {draft.kind}, each rank its own part, or send it once to each node with data=.",
            )


def _check_gpu_values(draft: CapturedCode) -> Iterator[Finding]:
    for name in draft.names_on_gpu:
        yield Finding(
            "warning",
            "gpu-value",
            f"{name} is on this kernel's GPU: each rank gets a copy on its own GPU, or in memory if it has no GPU.",
            f"Keep it on the CPU (.cpu()) and move it to the GPU inside the {draft.kind}.",
        )


def _check_secrets(draft: CapturedCode) -> Iterator[Finding]:
    for variable in draft.captured:
        is_text = variable.kind == "value" and variable.detail.partition(",")[0] in ("str", "bytes")
        if is_text and looks_secret(variable.name):
            yield Finding(
                "warning",
                "secret-value",
                f"{variable.name} looks like a secret and would be stored with the job's captured values.",
                "Pass it as an environment variable and read it with os.environ.",
            )
    if draft.secret_arguments:
        yield Finding(
            "warning",
            "secret-argument",
            "A script argument looks like a secret and would be stored with the job.",
            "Pass it as an environment variable and read it with os.environ.",
        )


def _check_omitted_files(draft: CapturedCode) -> Iterator[Finding]:
    for module in draft.modules:
        if module.omitted:
            listed = humanize.listing([file.name for file in module.omitted[:3]])
            suffix = f" and {len(module.omitted) - 3} more" if len(module.omitted) > 3 else ""
            yield Finding(
                "info",
                "left-out-file",
                f"{module.label} is sent without its large files {listed}{suffix}.",
                "Use absolute paths to read them.",
            )


def _check_attributes(draft: CapturedCode) -> Iterator[Finding]:
    """Report module attributes that were set in the notebook, because ranks import the unchanged file."""
    if draft.kind == "script":  # a script does not see the notebook's changes
        return
    set_by_code = {name for source in draft.texts for name in _find_assigned_attributes(source.text)}
    for source in draft.texts:
        module = _find_module(source.label) if source.is_module else None
        if module is None:
            continue
        values = {name: value for name, value in _read_constants(source.text).items() if name not in set_by_code}
        changed = [f"{module.__name__}.{name}" for name, value in values.items() if _is_changed(module, name, value)]
        if changed:
            yield Finding(
                "warning",
                "module-attribute-changed",
                f"{humanize.listing(changed)} {'differs' if len(changed) == 1 else 'differ'} from {source.label}: the "
                "ranks import the file and do not see what the notebook has set.",
                f"Pass the value as an argument, or set it inside the {draft.kind}.",
            )


def _find_module(path: str) -> ModuleType | None:
    """Return the module that this kernel has imported from a file, given by its path below a module folder."""
    module = sys.modules.get(get_module_name(path))
    file = getattr(module, "__file__", None)
    return module if isinstance(file, str) and f"/{file}".endswith(f"/{path}") else None


def _is_changed(module: ModuleType, name: str, value: object) -> bool:
    try:
        return name in vars(module) and bool(vars(module)[name] != value)
    except Exception:  # noqa: BLE001 - a user's object can raise anything in a comparison
        return True


@functools.lru_cache(maxsize=1000)
def _find_assigned_attributes(text: str) -> frozenset[str]:
    """Return the names of the attributes that a source text assigns."""
    nodes = ast.walk(try_parse(text) or ast.Module([], []))
    return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))


@functools.lru_cache(maxsize=1000)
def _read_constants(text: str) -> Mapping[str, object]:
    """Return the constants (numbers, strings, tuples) of a module's source by name; each name is assigned once."""
    tree = try_parse(text)
    if tree is None or any(isinstance(node, ast.alias) and node.name == "*" for node in ast.walk(tree)):
        return {}
    try:
        with warnings.catch_warnings(action="ignore"):
            compiled = compile(tree, "<module>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return {}
    steps = iter_instructions(compiled, ("STORE_NAME", "DELETE_NAME", "STORE_GLOBAL"))
    writes = Counter(step.argval for step in steps)
    values: dict[str, object] = {}
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if writes[name] == 1:
                with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                    literal = ast.literal_eval(value)
                    if not isinstance(literal, list | dict | set):  # code may fill it later
                        values[name] = literal
    return values
