"""Where a template of one Python environment is found: its socket and its files. Nothing here is opened or made."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

from distdl_jupyter.core import sockets, store

#: Raised when what is said at the socket changes, so that two versions never meet there.
PROTOCOL = 2


class TemplateFiles(NamedTuple):
    """The files of one template. ``key`` names its environment in them."""

    python: str
    folder: Path
    key: str

    @property
    def socket(self) -> Path:
        """The Unix socket at which it takes jobs."""
        return sockets.place(f"warm-{self.key}", _shared())

    @property
    def lock(self) -> Path:
        """Held by the one living template."""
        return self.folder / f"{self.key}.lock"

    @property
    def stopped(self) -> Path:
        """When a template was last asked to end (epoch seconds): what was made before that does not begin any more."""
        return self.folder / f"{self.key}.stopped"

    @property
    def log(self) -> Path:
        """What the template itself printed."""
        return self.folder / f"{self.key}.log"

    @property
    def learned(self) -> Path:
        """What the last jobs have imported, and what must not be imported ahead."""
        return self.folder / f"{self.key}.json"

    @property
    def last_cold(self) -> Path:
        """Why the last job that was not started warm was not."""
        return self.folder / f"{self.key}.cold.json"


def folder() -> Path:
    """Return the folder of all templates of this data directory, ``$DISTDL_WARM_DIR`` where several share them."""
    return _shared() or store.home() / "warm"


def _shared() -> Path | None:
    chosen = os.environ.get("DISTDL_WARM_DIR")
    return Path(chosen).expanduser() if chosen else None


def of(python: str = "") -> TemplateFiles:
    """Return the place of the template of an interpreter (this one by default) in that folder.

    A virtual environment's interpreter is often a link to a common one, so its path is kept as it is.
    """
    path = os.path.abspath(python or sys.executable)  # noqa: PTH100 - Path.resolve would follow the link
    where = folder()
    name = f"{PROTOCOL}\0{os.getuid()}\0{path}\0{where.absolute()}"
    return TemplateFiles(path, where, hashlib.sha256(os.fsencode(name)).hexdigest()[:12])
