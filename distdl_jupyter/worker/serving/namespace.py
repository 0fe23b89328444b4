"""What a rank that stays can be asked to do: run a cell in its namespace, take and give names, run a whole job's code.

Each method returns the value or raises what the user's code raises; nothing here knows of sockets.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.worker import execute, payload, pictures, report
from distdl_jupyter.worker.data import data_path
from distdl_jupyter.worker.identity import Identity
from distdl_jupyter.worker.serving.listener import NOTES
from distdl_jupyter.worker.sources import Sources
from distdl_jupyter.worker.watch import persistent_groups


class Room:
    """The namespace of one rank, a ``__main__`` of its own, with ``log`` and its place among the ranks in it."""

    def __init__(self, identity: Identity, sources: Sources) -> None:
        self._sources = sources
        self._folder = identity.folder / NOTES
        self._rank = identity.rank
        self._main = payload.fresh_main()
        self._main.__dict__.update(
            rank=identity.rank, local_rank=identity.local_rank, world_size=identity.world_size,
            log=report.log, progress=report.progress, data_path=data_path,
        )  # fmt: skip
        builtins.display = pictures.display  # type: ignore[attr-defined]
        builtins.input = _no_input
        persistent_groups.watch()

    def run(self, asked: Mapping[str, Any], body: bytes) -> Any:
        """Run ``code`` as a cell and return the value of its last expression; ``names`` in ``body`` come first."""
        self.push(asked, body)
        filename = str(asked["filename"])
        entry = {"text": asked["code"], "label": asked["title"], **{n: asked.get(n) for n in ("cell", "first_line")}}
        self._sources.add_all({filename: entry})
        return execute.run_cell(str(asked["code"]), filename, self._sources, self._main.__dict__)

    def push(self, asked: Mapping[str, Any], body: bytes) -> None:
        """Take ``names`` from ``body``, one pickle behind the other."""
        names = asked.get("names") or ()
        if names:
            self._sources.add_all(asked.get("sources") or {})
            unpickler = payload.NotebookUnpickler(io.BytesIO(body), self._main.__dict__)
            self._main.__dict__.update({str(name): unpickler.load() for name in names})

    def pull(self, asked: Mapping[str, Any], _body: bytes) -> Any:
        """Return the value of the name. Raises NameError."""
        name = str(asked["name"])
        if name not in self._main.__dict__:
            raise NameError(f"name {name!r} is not defined in this rank")
        return self._main.__dict__[name]

    def distributed(self, asked: Mapping[str, Any], body: bytes) -> Any:
        """Run a job's code, whose files ``body`` holds as a tar, in a namespace of its own."""
        folder = self._folder / f"run-{int(asked['id'])}-{self._rank}"
        before = (list(sys.path), list(sys.argv), Path.cwd())
        try:
            _unpack(body, folder)
            code = payload.read(folder)
            if not Path(code.working_directory).is_dir():  # the notebook's, on another machine
                code = code._replace(working_directory="")
            with persistent_groups.kept():
                return execute.run(folder, code, self._sources)
        finally:
            sys.path[:], sys.argv[:] = before[0], before[1]
            os.chdir(before[2])
            sys.modules["__main__"] = self._main
            _forget_modules(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _unpack(content: bytes, folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        # Other users' right to write, which would be refused, does not travel; Python before 3.11.4 has no such filter.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)  # noqa: S202 - from whoever may run any code here


def _forget_modules(folder: Path) -> None:
    """Let modules that travelled be loaded anew the next time: they may be others then."""
    inside = f"{folder}{os.sep}"
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(inside):
            del sys.modules[name]


def _no_input(*_: object) -> str:
    raise RuntimeError("input() does not work on ranks because they have no keyboard. Write the value into the cell.")
