"""Check of the data sources: the code asks for those that the job is given, and none is read over the network unawares.

Nothing is looked up here: whether a place can be read is seen when the job begins, or in the form.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdl_jupyter.core.data import DataSource
from distdl_jupyter.core.humanize import listing
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.preflight.model import Check, Finding
from distdl_jupyter.preflight.reading import Call, Code


def sources(code: Code, spec: JobSpec) -> Check | None:
    """Each ``data_path("name")`` of the code has its source; None where no data is asked for."""
    asked = _asked(code)
    if not (spec.data or asked):
        return None
    findings = (*_lacking(asked, spec.data), *_mounted(spec.data))
    names = [source.name for source in spec.data]
    return Check("Data sources", listing(names) if names else "none", findings)


def _asked(code: Code) -> list[Call]:
    """Return the training code's own calls: a module that travels beside it may never be used."""
    return [call for call in code.calls if call.last == "data_path" and call.label in code.own]


def _lacking(asked: list[Call], given: tuple[DataSource, ...]) -> Iterator[Finding]:
    names = {source.name.lower() for source in given}
    for call in asked:
        wanted = _name(call.node)
        if wanted is not None and wanted.lower() not in names:
            has = f"only {listing(sorted(names))}" if names else "none"
            yield Finding(
                "warning",
                "data-not-given",
                f"{call.beginning} uses the data source {wanted!r}, but the job has {has}.",
                f"Add it with --data {wanted}=PLACE, or data={{{wanted!r}: PLACE}}.",
            )


def _name(call: ast.Call) -> str | None:
    """Return the name that a call gives as text, the default without one, None when it is not known."""
    given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "name"), None)
    if given is None:
        return "data"
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None


def _mounted(given: tuple[DataSource, ...]) -> Iterator[Finding]:
    if names := [source.name for source in given if source.mode == "mount"]:
        yield Finding(
            "warning",
            "data-mounted",
            f"{listing(names)} {'is' if len(names) == 1 else 'are'} mounted, so every epoch reads over the network.",
            "Remove mode=mount if the data fits on the disks: it is then copied once, before the start.",
        )
