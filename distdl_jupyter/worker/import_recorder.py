"""Records what this process has imported in a file for the next job's warm start, if requested.

``DISTDL_LEARN`` names the file. It lists only modules of installed packages and of Python itself, in the order in which
their import began, because the user's own modules are never preloaded.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from distdl_jupyter.worker import owned

VARIABLE = "DISTDL_LEARN"


def folder_of(job: Path) -> Path:
    """Return the folder of such files in a job's folder; the reader creates and removes it."""
    return job / "modules"


def record() -> None:
    """Write the names of the imported modules to the requested file. Never raises."""
    path = os.environ.get(VARIABLE)
    if path:
        with contextlib.suppress(Exception):
            whole = Path(f"{path}.{os.getpid()}")
            with open(whole, "w", encoding="utf-8", opener=owned.private) as file:
                file.write(json.dumps({"modules": imported()}))
            whole.replace(path)


#: Number of modules loaded when this process was forked, which are already recorded.
known = 0


def imported() -> list[str]:
    """Return the names of loaded installed modules in order, without the first ``known`` ones."""
    roots = installed_roots()
    # From the end, because reading the known ones writes to their memory (reference counts).
    new = list(itertools.islice(reversed(sys.modules.items()), max(0, len(sys.modules) - known)))
    return [name for name, module in reversed(new) if _is_installed(name, module, roots)]


def installed_roots() -> tuple[str, ...]:
    """Return the folders of Python's own and of installed modules, each with a trailing separator."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += filter(holds_packages, sys.path)
    return tuple(f"{folder}{os.sep}" for folder in dict.fromkeys(folders))


def holds_packages(folder: str) -> bool:
    """Return whether the folder contains installed packages, by its name or by the metadata that installers leave.

    This includes ``pip install --user``, environment modules on PYTHONPATH (Lmod, Spack, EasyBuild),
    ``site.addsitedir`` and ``pip install --target``.
    """
    if Path(folder).name in ("site-packages", "dist-packages"):
        return True
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.endswith(".dist-info") for entry in entries)
    except OSError:
        return False


def _is_installed(name: str, module: ModuleType, roots: tuple[str, ...]) -> bool:
    spec = getattr(module, "__spec__", None)
    # A module under another name (an alias or a lazy proxy) cannot be imported by that name.
    if spec is None or spec.name != name or name.partition(".")[0] in ("__main__", "__mp_main__", "distdl_jupyter"):
        return False
    return isinstance(spec.origin, str) and spec.origin.startswith(roots)
