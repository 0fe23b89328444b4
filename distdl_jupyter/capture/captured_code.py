"""Captured code of a job that has not started yet, with everything that is written into its folder.

``client.launch`` starts it; a launch form creates one only to show what would be sent.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from distdl_jupyter.capture.modules import LocalModule
from distdl_jupyter.capture.pickler import PickleReport, dump
from distdl_jupyter.core import humanize
from distdl_jupyter.core.errors import UndefinedName, explain_interrupt
from distdl_jupyter.core.source import CodeAnalysis, CodeText, analyze, make_nesting_error
from distdl_jupyter.core.spec import Captured, CodeSource, Kind
from distdl_jupyter.core.store import JobFolder

_MAX_LISTED_NAMES = 6


@dataclass(frozen=True, kw_only=True)
class CapturedCode:
    """Captured code with its names: ``captured`` is the list for display, ``payload_json`` is read by the ranks.

    ``texts`` are the known source texts that will run. ``aliases`` maps captured names to full names (``hvd`` to
    ``horovod.torch``), and ``imports`` are the required top-level modules. ``names_on_gpu`` names values on a GPU.
    ``secret_arguments`` are the indices in ``payload_json["arguments"]`` that must not be displayed.
    """

    kind: Kind
    name: str
    source: CodeSource
    captured: tuple[Captured, ...] = ()
    modules: tuple[LocalModule, ...] = ()
    payload_json: dict[str, Any] = field(default_factory=dict)
    payload: IO[bytes] | None = field(default=None, repr=False, compare=False)
    seconds: float = 0.0
    texts: tuple[CodeText, ...] = field(default=(), repr=False)
    aliases: Mapping[str, str] = field(default_factory=dict)
    imports: frozenset[str] = frozenset()
    names_on_gpu: tuple[str, ...] = ()
    #: Names that the code uses but that are not defined anywhere.
    undefined: tuple[UndefinedName, ...] = ()
    #: Captured or passed numbers by name, such as a batch size or a learning rate.
    numbers: Mapping[str, float] = field(default_factory=dict)
    secret_arguments: frozenset[int] = frozenset()
    #: Names of environment variables whose values are secret, regardless of their names.
    secret_variables: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.payload is not None:
            weakref.finalize(self, self.payload.close)

    def write(self, folder: JobFolder) -> None:
        """Write payload.json, payload.pkl and code/ into a job's folder. May be called more than once."""
        payload_json = folder.path / "payload.json"
        payload_json.touch(mode=0o600)
        payload_json.write_text(json.dumps({"format": 1, **self.payload_json}, indent=1), encoding="utf-8")
        if self.payload is not None:
            self.payload.seek(0)
            folder.payload.touch(mode=0o600)
            with folder.payload.open("wb") as file:
                shutil.copyfileobj(self.payload, file, 1 << 20)
        for module in self.modules:
            module.copy(folder.code)

    @functools.cached_property
    def analysis(self) -> CodeAnalysis:
        """The calls and names in the source texts; analyzed once."""
        return analyze(self.texts, self.aliases, self.imports)

    @property
    def true_arguments(self) -> tuple[str, ...]:
        """The script's arguments as passed to it."""
        return tuple(self.payload_json.get("arguments") or ())

    @property
    def script_arguments(self) -> tuple[str, ...]:
        """The script's arguments with secret ones masked."""
        return tuple("•••" if i in self.secret_arguments else text for i, text in enumerate(self.true_arguments))

    @property
    def size(self) -> int:
        """The number of bytes that are sent."""
        return sum(item.size for item in self.captured)

    def format_heading(self) -> str:
        """Return count and size: ``5 names, 927 kB`` or ``nothing captured``."""
        if not self.captured:
            return "nothing captured"
        return f"{humanize.plural(len(self.captured), 'name')}, {humanize.size(self.size)}"

    def format_summary(self) -> str:
        """Return one line: ``5 names, 927 kB: digits 920 kB, shards.py 3.2 kB, ...``, the largest first."""
        if not self.captured:
            return self.format_heading()
        by_size = sorted(self.captured, key=lambda item: -item.size)
        listed = [f"{item.name} {humanize.size(item.size)}" for item in by_size[:_MAX_LISTED_NAMES]]
        rest = len(by_size) - len(listed)
        return f"{self.format_heading()}: {', '.join(listed)}{f', and {rest} more' if rest else ''}"


def build_payload(kind: Kind, **fields: Any) -> dict[str, Any]:
    """Return the fields of ``payload.json``; missing ones are empty, and the working directory is the current one."""
    defaults = {"code": "", "filename": "", "names": [], "sources": {}, "path": [], "script": "", "arguments": []}
    return {"kind": kind, **defaults, "working_directory": str(Path.cwd()), **fields}


@contextlib.contextmanager
def pickle_values(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[PickleReport, IO[bytes]]]:
    """Pickle the values into a temporary file, which is closed if the block raises an exception."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - CapturedCode closes it
    try:
        yield dump(items, file), file
    except BaseException:
        file.close()
        raise


@contextlib.contextmanager
def explain_packing() -> Iterator[None]:
    """Raise clear errors for interrupts and for code that is nested too deeply.

    Since 3.14, Python compiles code that is nested too deeply for a recursive walk over its syntax tree.
    """
    with explain_interrupt(lambda: "Interrupted while packing; no job was started."):
        try:
            yield
        except RecursionError:
            raise make_nesting_error() from None
