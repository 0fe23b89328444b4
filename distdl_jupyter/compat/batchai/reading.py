"""A Batch AI job as a job of this package: every field is taken over, changed or left out, and none of it silently."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.capture.free_names import imported, parse
from distdl_jupyter.compat.batchai import document, setting
from distdl_jupyter.compat.batchai.explained import How
from distdl_jupyter.compat.batchai.folders import Folders
from distdl_jupyter.compat.batchai.program import BY_SCRIPT, Program, program
from distdl_jupyter.compat.batchai.record import HIDDEN, Imported, masked, short
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.words import plural


def read(
    job: document.JobFile, *, cluster: document.JobFile | None = None, batchai_mounts: Mapping[str, Any] | None = None
) -> Imported:
    """Return a Batch AI job in the words of this package.

    ``cluster`` is the file of its cluster (``cluster.json`` beside the job's is found by itself). ``batchai_mounts``
    says where the files of a mount are now: ``{"nfs": "shared:/mnt/nfs", "scripts": "./scripts"}``. Raises InvalidSpec
    when there is no such file or it is no Batch AI job; what else is wrong stands in ``problems``.
    """
    fields, folder = document.read(job)
    machines = document.cluster(cluster, folder)
    found = Imported(directory=folder)
    folders = Folders(fields, machines, folder, batchai_mounts or {})
    setting.machines(fields, machines, found)
    _toolkit(fields, folder, folders, found)
    setting.software(fields, found)
    for one in fields.get("environmentVariables", ()):
        _variable("environmentVariables", str(one.get("name", "")), str(one.get("value", "")), folders, found)
    _secrets(fields, found)
    folders.read(found)
    setting.rest(fields, found)
    return found


def _toolkit(fields: Mapping[str, Any], folder: Path, folders: Folders, found: Imported) -> None:
    kinds = [name for name in document.TOOLKITS if name in fields]
    if len(kinds) != 1:
        hint = f"Leave one of {', '.join(kinds or document.TOOLKITS)}."
        what = f"The job has {plural(len(kinds), 'kind')} of settings, and it needs one."
        problem = InvalidSpec(what, field="batchai_job", hint=hint)
        found.lack("settings", ", ".join(kinds), problem)
        return
    (kind,) = kinds
    settings = fields[kind]
    said = settings.get("pythonScriptFilePath") or settings.get("commandLine") or settings.get("configFilePath", "")
    try:
        told = program(kind, settings, _whole_number(fields.get("nodeCount", 1)), folders.text)
    except InvalidSpec as problem:
        found.lack(kind, said, problem)
        return
    _script(kind, str(said), told, folder, folders, found)
    _counts(kind, fields.get("nodeCount", 1), told, found)
    if told.directory:
        _directory(told.directory, folder, folders, found)
    for name, value in told.variables.items():
        _variable(kind, name, value, folders, found)
    for text, became in told.notes:
        how: How = "ignored" if became.startswith(("left out: ", "ignored: ")) else "changed"
        found.say(kind, text, became.removeprefix("left out: ").removeprefix("ignored: "), how)


def _whole_number(told: Any) -> int:
    if isinstance(told, bool) or not isinstance(told, int) or told < 1:
        raise InvalidSpec(f"nodeCount is {told!r}, but it takes a whole number from 1.", field="nodeCount")
    return told


def _script(kind: str, said: str, told: Program, folder: Path, folders: Folders, found: Imported) -> None:
    found.script = folders.script(told.script)
    if found.script is None:
        where = f" Batch AI saw it as {told.script}." if "$" in told.script else ""
        hint = f'Put it beside job.json, or: batchai_mounts={{"{folders.mount_of_script}": "PATH"}}.'
        what = f"The script {told.script.rpartition('/')[2]} is not here.{where}"
        found.lack(kind, said, InvalidSpec(what, field="entry_script", hint=hint))
    else:
        found.say(kind, said, f"script {short(found.script, folder)}", "changed")
    found.arguments = told.arguments
    if told.arguments:
        found.say(f"{kind}: arguments", masked(told.arguments), "arguments; each rank fills in the variables")


def _counts(kind: str, nodes: int, told: Program, found: Imported) -> None:
    per_node = told.processes // told.nodes
    backend, why = _backend(kind, told, found.script)
    found.options |= {
        "node_count": told.nodes, "process_count_per_node": per_node, "distributed_backend": backend,
    }  # fmt: skip
    found.say("nodeCount; processes", f"{nodes}; {told.processes}",
              f"node_count={told.nodes}, process_count_per_node={per_node}")  # fmt: skip
    found.say("framework", why, f"distributed_backend={backend}", "changed")


def _backend(kind: str, told: Program, script: Path | None) -> tuple[str, str]:
    """Return the backend and by what it was chosen."""
    if told.backend != BY_SCRIPT:
        return told.backend, document.TOOLKITS[kind]
    if "horovod" in _imports(script):
        return "horovod-gloo", "the script imports horovod"
    if told.processes > 1:
        return "horovod-mpi", "an MPI program: Open MPI starts its ranks"
    return "plain", "one process"


def _imports(script: Path | None) -> set[str]:
    if script is None:
        return set()
    try:
        return set(imported(parse(script.read_text(encoding="utf-8"))))
    except (OSError, ValueError, SyntaxError):
        return set()  # it is refused with its line when it is captured


def _directory(path: str, folder: Path, folders: Folders, found: Imported) -> None:
    place = folders.directory(path)
    if place is None:
        found.say("cd", path, f"there is no such folder here; ranks work in {folder}", "ignored")
    else:
        found.directory = place
        found.say("cd", path, f"working directory {short(place, folder)}")


def _variable(field: str, name: str, value: str, folders: Folders, found: Imported) -> None:
    shown = HIDDEN if is_secret(name, value) else value
    if name.startswith("AZ_BATCHAI_") or "$AZ_BATCHAI" in value or "${AZ_BATCHAI" in value:
        folders.variables[name] = value
        found.say(f"{field}: {name}", shown, "variable of every rank, which fills it in")
    else:
        found.set_variable(name, value)
        found.say(f"{field}: {name}", shown, "environment_variables")


def _secrets(fields: Mapping[str, Any], found: Imported) -> None:
    found.secrets = tuple(str(one.get("name", "")) for one in fields.get("secrets", ()))
    for name in found.secrets:
        if name in os.environ:
            found.set_variable(name, os.environ[name])
            found.say(f"secrets {name}", HIDDEN, "taken from this process's environment and written nowhere", "changed")
        else:
            problem = InvalidSpec(f"The secret {name} is not in the environment of this process.",
                                  field="environment_variables",
                                  hint="Set it where Jupyter starts; a value in job.json is never read.")  # fmt: skip
            found.lack(f"secrets {name}", HIDDEN, problem)
