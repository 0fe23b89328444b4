"""Paths of a Batch AI job, and what they stand for here.

Batch AI mounted shares and containers below ``$AZ_BATCHAI_MOUNT_ROOT`` (those of the cluster) and
``$AZ_BATCHAI_JOB_MOUNT_ROOT`` (those of the job). Here a container is staged to the nodes, and everything else is a
folder that the user has: named in ``batchai_mounts``, or found beside job.json.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

ROOTS = ("AZ_BATCHAI_MOUNT_ROOT", "AZ_BATCHAI_JOB_MOUNT_ROOT")
INPUT = "AZ_BATCHAI_INPUT_"
OUTPUT = "AZ_BATCHAI_OUTPUT_"
_ROOTED = re.compile(r"\$\{?AZ_BATCHAI_(?:JOB_)?MOUNT_ROOT\}?/*([^\s\"':;,]*)")
_OF_INPUT = re.compile(r"\$\{?AZ_BATCHAI_INPUT_(\w+)\}?/*(.*)")

Kind = Literal["blob", "share", "server", "other"]
#: Fields of mountVolumes, and what each holds.
KINDS: dict[str, Kind] = {
    "azureBlobFileSystems": "blob",
    "azureFileShares": "share",
    "fileServers": "server",
    "unmanagedFileSystems": "other",
}
WORDS: dict[Kind, str] = {
    "blob": "container",
    "share": "Azure Files share",
    "server": "file server",
    "other": "file system",
}


@dataclass(frozen=True, slots=True)
class Volume:
    """One mount: its path below the root, and what it was. ``blob`` is ``account/container`` of a container."""

    path: str
    kind: Kind
    blob: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """What a path stands for: a place of ``core.data`` ("" when nobody knows), seen as ``below`` the mounts' root.

    ``volume`` is the mount that holds it, None for a path that is not below the root.
    """

    where: str
    below: str = ""
    volume: Volume | None = None

    @property
    def folder(self) -> Path | None:
        """The folder or file on this machine, None for other places."""
        return None if not self.where or "://" in self.where or self.where.startswith("shared:") else Path(self.where)


class Volumes:
    """The mounts of a job and of its cluster, with what the user says of them (``mounts``: path to place)."""

    def __init__(self, told: list[Mapping[str, Any]], mounts: Mapping[str, Any], beside: Path) -> None:
        self.all = [volume for one in told for volume in _volumes(one)]
        self.said = {str(path).strip("/"): str(where) for path, where in mounts.items()}
        self._beside = beside

    def place(self, text: str, inputs: Mapping[str, str], *, folder: bool = True) -> Place:
        """Return what a path stands for; ``inputs`` are the input directories' own paths by id.

        A path of a file (not ``folder``) is also looked for under its name alone.
        """
        if found := _OF_INPUT.fullmatch(text):
            text = "/".join(part for part in (inputs.get(found[1], ""), found[2]) if part)
        rooted = _ROOTED.fullmatch(text)
        if rooted is None:
            return Place(self._plain(text) or self._found(_below_variable(text), folder=folder))
        below = rooted[1].strip("/")
        volume = next((one for one in self._deepest_first() if _is_in(below, one.path)), None)
        return Place(self._said(below) or self._known(below, volume, folder=folder), below, volume)

    def _plain(self, text: str) -> str:
        path = Path(os.path.expandvars(text)).expanduser()
        path = path if path.is_absolute() else self._beside / path
        return str(path) if path.exists() else ""

    def _deepest_first(self) -> list[Volume]:
        return sorted(self.all, key=lambda one: -len(one.path))

    def _said(self, below: str) -> str:
        """Return the place that the user gave for a path, or for a folder above it."""
        for path in (below, *map(str, PurePosixPath(below).parents)):
            if path in self.said:
                rest = below.removeprefix(path).strip("/")
                base = self.said[path]
                if "://" not in base and not base.startswith("shared:"):
                    base = str(Path(base).expanduser().resolve())
                return f"{base.rstrip('/')}/{rest}" if rest else base
        return ""

    def _known(self, below: str, volume: Volume | None, *, folder: bool) -> str:
        if volume is not None and volume.blob and folder:
            rest = below.removeprefix(volume.path).strip("/")
            return f"blob://{volume.blob}" + (f"/{rest}" if rest else "")
        return self._found(below, folder=folder)

    def _found(self, below: str, *, folder: bool) -> str:
        """Return what lies beside job.json under this path, or under its end."""
        parts = PurePosixPath(below).parts if below else ()
        # A folder of data is not guessed by its last name alone: another one may have it too.
        for at in range(len(parts) if not folder else min(2, len(parts))):
            path = self._beside.joinpath(*parts[at:])
            if path.is_dir() if folder else path.is_file():
                return str(path)
        return ""


def references(text: str) -> Iterator[str]:
    """Yield the paths below the mounts' root that stand in an argument or a value, as ``data/mnist``."""
    for found in _ROOTED.finditer(text):
        below = found[1].strip("/")
        path = PurePosixPath(below)
        # Of a file the folder is needed.
        yield str(path.parent) if path.suffix and len(path.parts) > 1 else below


def _below_variable(text: str) -> str:
    """Return what follows a variable at a path's beginning, such as a folder that the preparation had filled."""
    return text.partition("/")[2] if text.startswith("$") else ""


def _is_in(below: str, path: str) -> bool:
    return below == path or below.startswith(f"{path}/")


def _volumes(told: Mapping[str, Any]) -> Iterator[Volume]:
    for name, kind in KINDS.items():
        for one in told.get(name, ()):
            path = str(one.get("relativeMountPath", "")).strip("/")
            blob = f"{one.get('accountName', '')}/{one.get('containerName', '')}" if kind == "blob" else ""
            yield Volume(path, kind, blob)
