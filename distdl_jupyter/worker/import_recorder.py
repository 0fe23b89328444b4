"""What this process has imported, written to a file for the next job's warm start, where that is requested.

``DISTDL_LEARN`` names the file. Only modules of installed packages and of Python itself are told, in the order in
which their import began: the user's own modules are never imported ahead.
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
    """Write the names of the imported modules to the file that was asked for. Never raises."""
    path = os.environ.get(VARIABLE)
    if path:
        with contextlib.suppress(Exception):
            whole = Path(f"{path}.{os.getpid()}")
            with open(whole, "w", encoding="utf-8", opener=owned.private) as file:
                file.write(json.dumps({"modules": imported()}))
            whole.replace(path)


#: How many modules were there when this process was forked: they are known.
known = 0


def imported() -> list[str]:
    """Return the names of the installed modules that are loaded, in order, without those that are ``known``."""
    roots = installed_roots()
    # From the end, because looking at the known ones writes to them (Python counts references).
    new = list(itertools.islice(reversed(sys.modules.items()), max(0, len(sys.modules) - known)))
    return [name for name, module in reversed(new) if _is_installed(name, module, roots)]


def installed_roots() -> tuple[str, ...]:
    """Return the folders of Python's own and of installed modules, each with a separator at its end."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += filter(holds_packages, sys.path)
    return tuple(f"{folder}{os.sep}" for folder in dict.fromkeys(folders))


def holds_packages(folder: str) -> bool:
    """Return whether packages are installed there: by its name, or by the records that installers leave beside them.

    So have a user's own packages (``pip install --user``), those of environment modules on PYTHONPATH (Lmod, Spack,
    EasyBuild), of ``site.addsitedir`` and of ``pip install --target``.
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
    # A module under another name than its own (an alias, a lazy stand-in) cannot be imported by that name.
    if spec is None or spec.name != name or name.partition(".")[0] in ("__main__", "__mp_main__", "distdl_jupyter"):
        return False
    return isinstance(spec.origin, str) and spec.origin.startswith(roots)
