"""The packages installed for this Python, from the names of their metadata folders: about 2 ms for 250 packages.

The content of each folder is cached until the folder changes; forked processes inherit the cache.
"""

from __future__ import annotations

import json
import os
import sys

#: The packages in each folder, and its modification time.
_kept: dict[str, tuple[int, list[tuple[str, str]]]] = {}


def packages() -> dict[str, str]:
    """Return the versions of all importable distributions, sorted by name.

    If a distribution was not installed from an index, its origin follows the version: ``0.2 @ file:///src``.
    """
    versions: dict[str, str] = {}
    for path in sys.path:
        if (changed := _changed(path)) != _kept.get(path, (0, []))[0]:
            _kept[path] = (changed, _of_folder(path))
        for name, version in _kept[path][1] if changed else ():
            versions.setdefault(name, version)
    return dict(sorted(versions.items(), key=lambda entry: entry[0].lower()))


def _changed(path: str) -> int:
    try:
        return os.stat(path or ".").st_mtime_ns  # noqa: PTH116  speed matters: every rank 0 runs this
    except OSError:
        return 0


def _of_folder(path: str) -> list[tuple[str, str]]:
    try:
        entries = os.listdir(path or ".")  # noqa: PTH208
    except OSError:
        return []
    distributions = []
    for entry in entries:
        stem, dot, kind = entry.rpartition(".")
        if not dot or kind not in ("dist-info", "egg-info"):
            continue
        name, _, version = stem.partition("-")
        version = version.partition("-py")[0] if kind == "egg-info" else version
        if name and version:
            distributions.append((name, version + _origin(f"{path}/{entry}/direct_url.json")))
    return distributions


def _origin(path: str) -> str:
    """Return where a distribution was installed from, "" for an index (PEP 610)."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            stated = json.load(file)
        commit = (stated.get("vcs_info") or {}).get("commit_id")
        return f" @ {stated['url']}" + (f"@{commit}" if commit else "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
