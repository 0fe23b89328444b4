"""What is installed for this Python, from the names of the folders that installers leave: some 2 ms for 250 packages.

What was found in a folder is kept and holds while that has not changed; forked processes inherit it.
"""

from __future__ import annotations

import json
import os
import sys

#: What was found in each folder, and when that had changed.
_kept: dict[str, tuple[int, list[tuple[str, str]]]] = {}


def packages() -> dict[str, str]:
    """Return the versions of all distributions that can be imported, by name, in the order of their names.

    One that was installed from elsewhere than an index has that place behind its version: ``0.2 @ file:///src``.
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
        return os.stat(path or ".").st_mtime_ns  # noqa: PTH116  as quick as can be: each rank 0 does it
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
