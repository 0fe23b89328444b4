"""Checks of what travels: names that nobody defines, values that are large, on a GPU, or look secret."""

from __future__ import annotations

from collections.abc import Iterator

from distdl_jupyter.core import humanize
from distdl_jupyter.core.spec import JobSpec, looks_secret
from distdl_jupyter.preflight.model import CapturedCode, Check, Finding

LARGE = 100_000_000


def names(draft: CapturedCode, spec: JobSpec) -> Check:
    """Everything that the code uses is there."""
    findings = (*_undefined(draft, spec), *_deleted(draft))
    return Check("Names", f"{humanize.plural(len(draft.captured), 'name')} captured, none missing", findings)


def _undefined(draft: CapturedCode, spec: JobSpec) -> Iterator[Finding]:
    option = "--allow-undefined" if draft.kind == "cell" else "allow_undefined=True"
    for one in draft.undefined:
        refused = one.certain and not spec.allow_undefined
        similar = f" Did you mean {' or '.join(one.similar)}?" if one.similar else ""
        yield Finding(
            "error" if refused else "warning",
            "undefined-name",
            f"{one.name} is not defined in {one.where} ({one.place}).{similar}",
            f"Define it before using it{f', or start anyway with {option}' if refused else ''}.",
        )


def _deleted(draft: CapturedCode) -> Iterator[Finding]:
    for name, line in draft.deleted.items():
        yield Finding(
            "warning",
            "deleted-name",
            f"Line {line} deletes {name}, which does not exist on the ranks: only variables that the cell uses are "
            "sent.",
            "Remove the del statement.",
        )


def captured_values(draft: CapturedCode) -> Check:
    """What travels is small, knows no GPU and holds no secret."""
    total = sum(one.size for one in draft.captured)
    findings = (*_large(draft), *_on_gpu(draft), *_secret(draft), *_left_out(draft))
    return Check("Captured values", f"{humanize.size(total)} in total", findings)


def _large(draft: CapturedCode) -> Iterator[Finding]:
    for one in draft.captured:
        if one.size > LARGE:
            yield Finding(
                "warning",
                "large-value",
                f"{one.name} ({one.detail}) is {humanize.size(one.size)}: every rank reads and stores its own copy.",
                f"Load it inside the {draft.kind}, each rank its own part, or send it once to each node with data=.",
            )


def _on_gpu(draft: CapturedCode) -> Iterator[Finding]:
    for name in draft.on_gpu:
        yield Finding(
            "warning",
            "gpu-value",
            f"{name} is on this kernel's GPU: each rank gets a copy on its own GPU, or in memory if it has no GPU.",
            f"Keep it on the CPU (.cpu()) and move it to the GPU inside the {draft.kind}.",
        )


def _secret(draft: CapturedCode) -> Iterator[Finding]:
    for one in draft.captured:
        if one.kind == "value" and looks_secret(one.name) and one.detail.partition(",")[0] in ("str", "bytes"):
            yield Finding(
                "warning",
                "secret-value",
                f"{one.name} looks like a secret and would be stored with the job's captured values.",
                "Pass it as an environment variable and read it with os.environ.",
            )
    if draft.secret_arguments:
        yield Finding(
            "warning",
            "secret-argument",
            "A script argument looks like a secret and would be stored with the job.",
            "Pass it as an environment variable and read it with os.environ.",
        )


def _left_out(draft: CapturedCode) -> Iterator[Finding]:
    for module in draft.modules:
        if module.left_out:
            listed = humanize.listing([file.name for file in module.left_out[:3]])
            more = f" and {len(module.left_out) - 3} more" if len(module.left_out) > 3 else ""
            yield Finding(
                "info",
                "left-out-file",
                f"{module.label} is sent without its large files {listed}{more}.",
                "Use absolute paths to read them.",
            )
