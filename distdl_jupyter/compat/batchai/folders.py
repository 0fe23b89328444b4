"""Where a Batch AI job reads and writes: what each of its paths becomes, and what ranks lay out so that they find it.

Inputs become sources of data (``core.data``), outputs folders below the job's ``outputs/``, and the mounts' root a
folder of links in each node's copy of the job's folder (``worker.layout``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.compat.batchai.record import HIDDEN, Imported, short
from distdl_jupyter.compat.batchai.volumes import INPUT, KINDS, OUTPUT, ROOTS, WORDS, Place, Volumes, references
from distdl_jupyter.core.data import VARIABLE
from distdl_jupyter.core.errors import InvalidSpec

_OUTPUTS = "$DISTDL_JOB_DIR/outputs"
_TEMPORARY = "$DISTDL_JOB_DIR/temporary"
_SHARED = "AZ_BATCHAI_SHARED_JOB_TEMP"
_NAMED = re.compile(r"\$\{?(AZ_BATCH\w+)")
#: Variables that Batch AI set in every job, and what stands for them in a rank.
_ALWAYS = {
    **dict.fromkeys(ROOTS, "$DISTDL_JOB_DIR/mounts/node-$DISTDL_NODE_RANK"),
    "AZ_BATCHAI_JOB_WORK_DIR": "$PWD",
    "AZ_BATCHAI_JOB_TEMP": _TEMPORARY,
    _SHARED: _TEMPORARY,
    "AZ_BATCHAI_STDOUTERR_DIR": _OUTPUTS,
    "AZ_BATCHAI_TASK_INDEX": "$DISTDL_RANK",
}


class Folders:
    """The paths of one job."""

    def __init__(
        self, fields: Mapping[str, Any], cluster: Mapping[str, Any], folder: Path, mounts: Mapping[str, Any]
    ) -> None:
        self._fields, self._folder = fields, folder
        told = [fields.get("mountVolumes", {}), cluster.get("nodeSetup", {}).get("mountVolumes", {})]
        self._mounts = told
        self._volumes = Volumes(told, mounts, folder)
        self._inputs = {str(one.get("id")): str(one.get("path", "")) for one in fields.get("inputDirectories", ())}
        #: Variables of the ranks, in the order in which they are set.
        self.variables: dict[str, str] = dict(_ALWAYS)
        self._data: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._made: list[str] = [_TEMPORARY]
        self._said_script = ""
        self._script_place = Place("")

    def script(self, path: str) -> Path | None:
        """Return the script that a path names, None when it is not here."""
        self._said_script = path
        self._script_place = self._volumes.place(path, self._inputs, folder=False)
        found = self._script_place.folder
        return found.resolve() if found is not None and found.is_file() else None

    @property
    def mount_of_script(self) -> str:
        """The mount in which Batch AI found the script, "NAME" when it was in none."""
        place = self._script_place
        return place.volume.path if place.volume else place.below.partition("/")[0] or "NAME"

    def text(self, path: str) -> str | None:
        """Return the text of a shell script that a path names, None when it is not here or no text."""
        found = self._volumes.place(path, self._inputs, folder=False).folder
        if found is None or not found.is_file():
            return None
        try:
            return found.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None

    def directory(self, path: str) -> Path | None:
        """Return the folder that a path names, None when it is not here."""
        found = self._volumes.place(path, self._inputs).folder
        return found if found is not None and found.is_dir() else None

    def read(self, found: Imported) -> None:
        """Take over every path that the job names: inputs, paths in arguments and variables, outputs, mounts."""
        for id_, path in self._inputs.items():
            self._input(id_, path, found)
        texts = [*found.arguments, *self.variables.values()]
        for below in dict.fromkeys(one for text in texts for one in references(text) if one):
            self._reference(below, found)
        for one in self._fields.get("outputDirectories", ()):
            self._output(one, found)
        self._say_unset(texts, found)
        if said := self._fields.get("stdOutErrPathPrefix"):
            found.say("stdOutErrPathPrefix", said, "the log stays with the job: job.logs(), distdl logs", "changed")
        for told in self._mounts:
            self._say_mounts(told, found)
        if self._data:
            found.options["data"] = dict(self._data)
        found.layout = {
            "variables": list(self.variables.items()),
            "folders": self._made,
            "links": sorted(self._links.items()),
        }

    # inputs -------------------------------------------------------------------------------------

    def _input(self, id_: str, path: str, found: Imported) -> None:
        field, variable = f"inputDirectories {id_}", INPUT + id_
        place = self._volumes.place(path, self._inputs)
        if found.script is not None and self._holds_script(id_, place):
            self.variables[variable] = str(self._script_folder(found.script, place))
            found.say(field, path, f"${variable}: the script's own folder")
        elif place.where:
            self.variables[variable] = f"${self._source(id_.lower(), place)}"
            found.say(field, path, f"${variable}: {self._says(place)}", "changed")
        else:
            found.lack(field, path, _unknown(place, path))

    def _holds_script(self, id_: str, place: Place) -> bool:
        if self._said_script.startswith((f"${INPUT}{id_}/", f"${{{INPUT}{id_}}}/")):
            return True
        return bool(place.below) and self._script_place.below.startswith(f"{place.below}/")

    def _script_folder(self, script: Path, place: Place) -> Path:
        """Return the folder here that stands for a folder of Batch AI with the script somewhere in it."""
        inside = Path(self._script_place.below.removeprefix(place.below).strip("/"))
        depth = len(inside.parts)
        return script.parents[depth - 1] if place.below and script.parts[-depth:] == inside.parts else script.parent

    def _source(self, wanted: str, place: Place) -> str:
        """Make a place a source of data and return the variable of its folder."""
        plain = re.sub(r"\W", "_", wanted)
        plain = plain if plain[:1].isalpha() else f"data_{plain}".rstrip("_")
        name, number = plain, 2
        while self._data.get(name, place.where) != place.where:
            name, number = f"{plain}_{number}", number + 1
        self._data[name] = place.where
        variable = VARIABLE + name.upper()
        if place.below:
            self._links[f"${ROOTS[0]}/{place.below}"] = f"${variable}"
        return variable

    def _says(self, place: Place) -> str:
        if place.where.startswith("blob://"):
            return f"{place.where}, brought to each node's disk before the start instead of mounted"
        if place.where.startswith("shared:"):
            return f"{place.where}, seen by every node"
        return f"the folder {short(Path(place.where), self._folder)}"

    def _reference(self, below: str, found: Imported) -> None:
        """Give a meaning to a path below the mounts' root."""
        path = f"${ROOTS[0]}/{below}"
        if any(path == link or path.startswith(f"{link}/") for link in self._links):
            return
        place = self._volumes.place(path, self._inputs)
        of_script = found.script is not None and self._script_place.below.startswith(f"{below}/")
        if of_script and found.script is not None and not place.where.startswith("blob:"):
            self._links[path] = str(self._script_folder(found.script, place))
            found.say("path", path, "the script's own folder")
        elif place.where:
            self._source(Path(below).name.lower(), place)
            found.say("path", path, self._says(place), "changed")
        else:
            self._links[path] = f"{_OUTPUTS}/{below}"
            self._made.append(f"{_OUTPUTS}/{below}")
            top = below.partition("/")[0]
            became = f'outputs/{below}, empty at first; batchai_mounts={{"{top}": "PATH"}} says where files to read are'
            found.say("path", path, became, "changed")

    # outputs ------------------------------------------------------------------------------------

    def _output(self, told: Mapping[str, Any], found: Imported) -> None:
        id_, prefix = str(told.get("id", "")), str(told.get("pathPrefix", ""))
        inside = str(told.get("pathSuffix", "") or id_).strip("/")
        self.variables[OUTPUT + id_] = f"{_OUTPUTS}/{inside}"
        self._made.append(f"{_OUTPUTS}/{inside}")
        became = f"${OUTPUT}{id_}: outputs/{inside} of the job"
        where = self._volumes.place(prefix, self._inputs).where
        if where.startswith("blob://"):
            became += f", copied to {found.options.setdefault('outputs', where)} at the end"
        found.say(f"outputDirectories {id_}", prefix, became, "changed")

    def _say_unset(self, texts: list[str], found: Imported) -> None:
        named = dict.fromkeys(name for text in texts for name in _NAMED.findall(text))
        for name in named:
            if name not in self.variables:
                found.say("variable", f"${name}", "nothing sets it here, it stays as it is", "ignored")
        if _SHARED in named:
            became = "a folder of the job: all nodes see it only where they share the job's folder"
            found.say("variable", f"${_SHARED}", became, "changed")

    def _say_mounts(self, told: Mapping[str, Any], found: Imported) -> None:
        for name in KINDS:
            for one in told.get(name, ()):
                path = str(one.get("relativeMountPath", "")).strip("/")
                if one.get("credentials"):
                    became = "no account key is read; sign in to Azure instead"
                    found.say(f"{name} {path}: credentials", HIDDEN, became, "ignored")
                if not self._is_used(path):
                    found.say(f"{name} {path}", "mounted", "nothing is mounted; what is needed of it stands above",
                              "ignored")  # fmt: skip

    def _is_used(self, path: str) -> bool:
        linked = (link.partition("/")[2] for link in self._links)
        return any(link == path or link.startswith(f"{path}/") for link in linked)


def _unknown(place: Place, path: str) -> InvalidSpec:
    kind = WORDS[place.volume.kind] if place.volume else "mount"
    top = place.volume.path if place.volume else place.below.partition("/")[0]
    hint = f'Say where its files are: batchai_mounts={{"{top or path}": "shared:/PATH"}}.'
    what = f"The {kind} {top or path} of Batch AI is not here, and the job reads {path}."
    return InvalidSpec(what, field="batchai_mounts", hint=hint)
