"""Where a Batch AI job reads and writes: its paths as data sources, outputs, and variables and links of every rank.

Batch AI mounted shares and containers below ``$AZ_BATCHAI_MOUNT_ROOT`` (those of the cluster) and
``$AZ_BATCHAI_JOB_MOUNT_ROOT`` (those of the job). Here a container is staged to the nodes, and everything else is a
folder that ``batchai_mounts`` names, or one beside job.json. In a rank the mount root is a folder of links.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from distdl_jupyter.compat.batchai.explanation import ImportedJob
from distdl_jupyter.compat.batchai.job_file import Fields
from distdl_jupyter.core.data import VARIABLE
from distdl_jupyter.core.errors import InvalidSpec

_ROOT, _INPUT, _OUTPUT = "AZ_BATCHAI_MOUNT_ROOT", "AZ_BATCHAI_INPUT_", "AZ_BATCHAI_OUTPUT_"
_SHARED = "AZ_BATCHAI_SHARED_JOB_TEMP"
_OUTPUTS, _TEMPORARY = "$DISTDL_JOB_DIR/outputs", "$DISTDL_JOB_DIR/temporary"
_MOUNTED = re.compile(r"\$\{?AZ_BATCHAI_(?:JOB_)?MOUNT_ROOT\}?/*([^\s\"':;,]*)")
_OF_INPUT = re.compile(r"\$\{?AZ_BATCHAI_INPUT_(\w+)\}?/*(.*)")
#: Variables that Batch AI set in every job, with their values in a rank.
_ALWAYS = {
    **dict.fromkeys((_ROOT, "AZ_BATCHAI_JOB_MOUNT_ROOT"), "$DISTDL_JOB_DIR/mounts/node-$DISTDL_NODE_RANK"),
    "AZ_BATCHAI_JOB_WORK_DIR": "$PWD",
    **dict.fromkeys(("AZ_BATCHAI_JOB_TEMP", _SHARED), _TEMPORARY),
    "AZ_BATCHAI_STDOUTERR_DIR": _OUTPUTS,
    "AZ_BATCHAI_TASK_INDEX": "$DISTDL_RANK",
}
#: Fields of mountVolumes, and what each mounts.
_MOUNTS = {
    "azureBlobFileSystems": "container", "azureFileShares": "Azure Files share", "fileServers": "file server",
    "unmanagedFileSystems": "file system",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MountedPath:
    """A path of the job: its ``place`` of ``core.data`` ("" when unknown), and ``below`` the mount root.

    ``mount`` is the volume's path or the first folder of ``below``, ``kind`` what the volume was.
    """

    place: str = ""
    below: str = ""
    mount: str = ""
    kind: str = "mount"

    @property
    def local(self) -> Path | None:
        """The folder or file on this machine, None for another place."""
        return Path(self.place) if self.place and not _is_remote(self.place) else None


class Folders:
    """The paths of one job, and the layout that its ranks make of them. ``script`` is None until it is found."""

    def __init__(self, job: Fields, cluster: Fields, folder: Path, batchai_mounts: Mapping[str, Any]) -> None:
        self._job, self._folder = job, folder
        volumes = (job.object("mountVolumes"), cluster.object("nodeSetup.mountVolumes"))
        #: Field, path below the mount root, and fields of each volume.
        self._volumes = [(field, volume.text("relativeMountPath").strip("/"), volume)
                         for mounted in volumes for field in _MOUNTS for volume in mounted.objects(field)]  # fmt: skip
        self._inputs = {entry.text("id"): entry.text("path") for entry in job.objects("inputDirectories")}
        self._given = {str(path).strip("/"): str(place) for path, place in batchai_mounts.items()}
        self.script: Path | None = None
        self._script_text, self._script_below = "", ""
        #: Variables of the ranks, in the order in which they are set.
        self.variables = dict(_ALWAYS)
        self._data: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._made = [_TEMPORARY]

    def find_script(self, text: str) -> str:
        """Find the Python script; return the key of batchai_mounts that would give its place."""
        resolved = self.resolve(text, is_file=True)
        self._script_text, self._script_below = text, resolved.below
        self.script = resolved.local.resolve() if resolved.local and resolved.local.is_file() else None
        return resolved.mount or "NAME"

    def read_script(self, text: str) -> str | None:
        """Return the text of a shell script, None when it is not here or no text."""
        try:
            return (self.resolve(text, is_file=True).local or Path()).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None

    def resolve(self, text: str, *, is_file: bool = False) -> MountedPath:
        """Return what a path stands for; a file beside job.json is also looked for under its name alone."""
        if match := _OF_INPUT.fullmatch(text):
            text = "/".join(part for part in (self._inputs.get(match[1], ""), match[2]) if part)
        if not (mounted := _MOUNTED.fullmatch(text)):
            path = self._folder / Path(os.path.expandvars(text)).expanduser()
            below = text.partition("/")[2] if text.startswith("$") else ""
            return MountedPath(str(path) if path.exists() else self._beside(below, is_file=is_file))
        below = mounted[1].strip("/")
        place = self._given_place(below)
        volumes = [volume for volume in self._volumes if PurePosixPath(below).is_relative_to(volume[1])]
        if not volumes:
            return MountedPath(place or self._beside(below, is_file=is_file), below, below.partition("/")[0])
        field, path_, volume = max(volumes, key=lambda volume: len(volume[1]))
        if field == "azureBlobFileSystems" and not is_file:
            container = f"blob://{volume.text('accountName')}/{volume.text('containerName')}"
            place = place or _joined(container, below.removeprefix(path_))
        return MountedPath(place or self._beside(below, is_file=is_file), below, path_, _MOUNTS[field])

    def _given_place(self, below: str) -> str:
        """Return the place that batchai_mounts gives for a path, or for a folder above it."""
        for path in (below, *map(str, PurePosixPath(below).parents)):
            if place := self._given.get(path):
                base = place if _is_remote(place) else str(Path(place).expanduser().resolve())
                return _joined(base, below.removeprefix(path))
        return ""

    def _beside(self, below: str, *, is_file: bool) -> str:
        """Return what lies beside job.json under this path, or under its end."""
        parts = PurePosixPath(below).parts
        # A folder is not looked for by the last of many names: several folders may have it.
        for start in range(len(parts) if is_file else min(2, len(parts))):
            path = self._folder.joinpath(*parts[start:])
            if path.is_file() if is_file else path.is_dir():
                return str(path)
        return ""

    def add_all(self, result: ImportedJob) -> None:
        """Add every path of the job to the result: inputs, paths in arguments and variables, outputs, mounts."""
        for id_, path in self._inputs.items():
            self._add_input(id_, path, result)
        texts = "\n".join((*result.arguments, *self.variables.values()))
        for below in dict.fromkeys(_mounted_folders(texts)):
            self._add_mounted(below, result)
        for output in self._job.objects("outputDirectories"):
            self._add_output(output, result)
        for name in dict.fromkeys(re.findall(r"\$\{?(AZ_BATCH\w+)", texts)):
            if name not in self.variables:
                result.add_row("variable", f"${name}", "not set here; it stays unchanged", "ignored")
            elif name == _SHARED:
                became = "a folder of the job; all nodes see it only if they share the folder of the job"
                result.add_row("variable", f"${name}", became, "changed")
        for field, path, _ in self._volumes:
            became = "nothing is mounted and no account key is read; the required folders are listed above"
            result.add_row(f"{field} {path}", "mounted", became, "ignored")
        if self._data:
            result.options["data"] = dict(self._data)
        result.layout = {
            "variables": list(self.variables.items()), "folders": self._made, "links": sorted(self._links.items()),
        }  # fmt: skip

    def _add_input(self, id_: str, path: str, result: ImportedJob) -> None:
        field, variable, resolved = f"inputDirectories {id_}", _INPUT + id_, self.resolve(path)
        named = _OF_INPUT.fullmatch(self._script_text)
        is_script = self._is_above_script(resolved.below) or bool(self.script and named and named[1] == id_)
        value, became = self._target(resolved, id_, is_script=is_script)
        if value:
            self.variables[variable] = value
            result.add_row(field, path, f"${variable}: {became}", "changed")
        else:
            name = resolved.mount or path
            what = f"The job reads {path} from the Batch AI {resolved.kind} {name}, which is not available here."
            hint = f'Set where its files are: batchai_mounts={{"{name}": "shared:/PATH"}}.'
            result.add_problem(
                field, path, InvalidSpec(what, code="batchai-mount-missing", field="batchai_mounts", hint=hint)
            )

    def _add_mounted(self, below: str, result: ImportedJob) -> None:
        """Link a path below the mount root to the script's folder, a data source or a folder of outputs."""
        path = f"${_ROOT}/{below}"
        if any(PurePosixPath(path).is_relative_to(link) for link in self._links):
            return
        resolved = self.resolve(path)
        is_script = self._is_above_script(below) and not resolved.place.startswith("blob:")
        target, became = self._target(resolved, PurePosixPath(below).name, is_script=is_script)
        if not target:
            target = f"{_OUTPUTS}/{below}"
            self._made.append(target)
            where = f'batchai_mounts={{"{below.partition("/")[0]}": "PATH"}} sets where the files are'
            became = f"outputs/{below}, empty at first; {where}"
        self._links[path] = target
        result.add_row("path", path, became, "changed")

    def _target(self, resolved: MountedPath, name: str, *, is_script: bool) -> tuple[str, str]:
        """Return what a rank sees in place of a folder, as its value and in words; "" when that is unknown."""
        if is_script:
            return self._script_folder(resolved.below), "the folder of the script"
        if not resolved.place:
            return "", ""
        value = self._add_data(name.lower(), resolved.place)
        if resolved.below:
            self._links[f"${_ROOT}/{resolved.below}"] = value
        if resolved.place.startswith("blob://"):
            return value, f"{resolved.place}, copied to the disk of each node before the start instead of mounted"
        if _is_remote(resolved.place):
            return value, f"{resolved.place}, seen by every node"
        return value, f"the folder {short_path(resolved.place, self._folder)}"

    def _is_above_script(self, below: str) -> bool:
        return self.script is not None and bool(below) and self._script_below.startswith(f"{below}/")

    def _script_folder(self, below: str) -> str:
        """Return the folder here that stands for a folder of Batch AI with the script somewhere in it."""
        script, inside = self.script or Path(), Path(self._script_below.removeprefix(below).strip("/")).parts
        same = bool(below) and script.parts[-len(inside) :] == inside
        return str(script.parents[len(inside) - 1] if same else script.parent)

    def _add_data(self, wanted: str, place: str) -> str:
        """Make a place a data source and return the variable of its folder."""
        plain = re.sub(r"\W", "_", wanted)
        plain = plain if plain[:1].isalpha() else f"data_{plain}".rstrip("_")
        name, number = plain, 2
        while self._data.setdefault(name, place) != place:
            name, number = f"{plain}_{number}", number + 1
        return f"${VARIABLE}{name.upper()}"

    def _add_output(self, output: Fields, result: ImportedJob) -> None:
        id_, prefix = output.text("id"), output.text("pathPrefix")
        inside = (output.text("pathSuffix") or id_).strip("/")
        self.variables[_OUTPUT + id_] = f"{_OUTPUTS}/{inside}"
        self._made.append(f"{_OUTPUTS}/{inside}")
        became, place = f"${_OUTPUT}{id_}: outputs/{inside} of the job", self.resolve(prefix).place
        if place.startswith("blob://"):
            became += f", copied to {result.options.setdefault('outputs', place)} at the end"
        result.add_row(f"outputDirectories {id_}", prefix, became, "changed")


def short_path(path: str | Path, folder: Path) -> str:
    """Return a path as seen from ``folder``, whole when it lies elsewhere."""
    return str(Path(path).relative_to(folder) if Path(path).is_relative_to(folder) else path)


def _is_remote(place: str) -> bool:
    return "://" in place or place.startswith("shared:")


def _joined(place: str, below: str) -> str:
    return f"{place.rstrip('/')}/{below.strip('/')}" if below.strip("/") else place


def _mounted_folders(texts: str) -> Iterator[str]:
    """Yield the folders below the mount root that stand in arguments and values, as ``data/mnist``."""
    for below in _MOUNTED.findall(texts):
        path = PurePosixPath(below.strip("/"))
        if path.parts:
            yield str(path.parent) if path.suffix and len(path.parts) > 1 else str(path)
