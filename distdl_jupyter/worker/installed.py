"""Lists the packages installed for this Python, and the installed modules that this process has imported.

Packages are read from the names of their metadata folders, which takes about 2 ms for 250 packages. The list of each
folder is cached until the folder changes. Forked processes inherit the cache.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import sys
import sysconfig
from pathlib import Path

from distdl_jupyter.worker import owned

#: By folder, its modification time and the packages in it.
_cache: dict[str, tuple[int, list[tuple[str, str]]]] = {}


def list_packages() -> dict[str, str]:
    """Return the versions of all importable distributions, with the origin unless it is an index: 0.2 @ file:///src."""
    versions: dict[str, str] = {}
    for path in sys.path:
        with contextlib.suppress(OSError):  # the folder does not exist, or is a ZIP file
            # Not pathlib, because every rank 0 runs this.
            modified_at = os.stat(path or ".").st_mtime_ns  # noqa: PTH116
            if path not in _cache or modified_at != _cache[path][0]:
                _cache[path] = (modified_at, _list_distributions(path or "."))
            versions = {**dict(_cache[path][1]), **versions}
    return dict(sorted(versions.items(), key=lambda entry: entry[0].lower()))


def _list_distributions(path: str) -> list[tuple[str, str]]:
    distributions = []
    for entry in os.listdir(path):  # noqa: PTH208
        stem, _, suffix = entry.rpartition(".")
        name, _, version = stem.partition("-")
        version = version.partition("-py")[0] if suffix == "egg-info" else version
        if not name or not version or suffix not in ("dist-info", "egg-info"):
            continue
        # PEP 610: only distributions that were not installed from an index have this file.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            with open(f"{path}/{entry}/direct_url.json", encoding="utf-8") as file:  # noqa: PTH123
                source = json.load(file)
            commit = (source.get("vcs_info") or {}).get("commit_id")
            version += f" @ {source['url']}" + (f"@{commit}" if commit else "")
        distributions.append((name, version))
    return distributions


#: Environment variable with the path of the file in which this process records its imported modules, in the order in
#: which their import began. The next job preloads them for a warm start. Only modules of installed packages and of
#: Python are recorded, because the user's modules are never preloaded.
RECORD_VARIABLE = "DISTDL_LEARN"


def get_record_folder(job_folder: Path) -> Path:
    """Return the folder for records of imported modules in a job's folder. Their reader creates and removes it."""
    return job_folder / "modules"


#: Number of modules that were loaded when this process was forked. They are already recorded.
inherited_count = 0


def record_imports() -> None:
    """Write the names of the imported modules to the file named by ``RECORD_VARIABLE``, if any. Never raises."""
    if not (path := os.environ.get(RECORD_VARIABLE)):
        return
    with contextlib.suppress(Exception):
        roots, names = list_roots(), []
        # Start at the end, because reading the inherited modules would write to their shared memory (reference counts).
        modules = list(itertools.islice(reversed(sys.modules.items()), max(0, len(sys.modules) - inherited_count)))
        for name, module in reversed(modules):
            spec, package = getattr(module, "__spec__", None), name.partition(".")[0]
            # An alias or lazy proxy, whose spec has another name, cannot be imported by this name.
            if spec is None or spec.name != name or package in ("__main__", "__mp_main__", "distdl_jupyter"):
                continue
            if isinstance(spec.origin, str) and spec.origin.startswith(roots):
                names.append(name)
        owned.write(Path(path), json.dumps({"modules": names}).encode())


def list_roots() -> tuple[str, ...]:
    """Return the folders of the standard library and of installed packages, each with a trailing separator."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += filter(has_packages, sys.path)
    return tuple(f"{folder}{os.sep}" for folder in dict.fromkeys(folders))


def has_packages(folder: str) -> bool:
    """Return whether the folder contains installed packages, judged by its name or the metadata of installers.

    This includes folders of ``pip install --user`` and ``pip install --target``, environment modules on PYTHONPATH
    (Lmod, Spack, EasyBuild) and folders added by ``site.addsitedir``.
    """
    if Path(folder).name in ("site-packages", "dist-packages"):
        return True
    with contextlib.suppress(OSError):
        return _has_metadata(folder, os.stat(folder).st_mtime_ns)  # noqa: PTH116 - as above
    return False


@functools.lru_cache
def _has_metadata(folder: str, modified_at: int) -> bool:  # noqa: ARG001 - read again after a change
    return any(name.endswith(".dist-info") for name in os.listdir(folder))  # noqa: PTH208
