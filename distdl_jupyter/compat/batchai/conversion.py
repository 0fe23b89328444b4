"""A Batch AI job as a job of this package: each field is taken, changed or ignored, and a row of the table says so."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from distdl_jupyter.azure import successors
from distdl_jupyter.azure.vm_sizes import find
from distdl_jupyter.capture.free_names import imported, parse
from distdl_jupyter.compat.batchai.command import Command, toolkit_command
from distdl_jupyter.compat.batchai.explanation import ImportedJob
from distdl_jupyter.compat.batchai.folders import Folders, short_path
from distdl_jupyter.compat.batchai.job_file import TOOLKITS, Fields, JobFile, read_cluster, read_job
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.worker.secret_patterns import MASK

_DURATION = re.compile(r"(?:(\d+)(?: days?, |\.))?(\d+):(\d\d):(\d\d)(?:\.\d+)?")
_ISO_DURATION = re.compile(r"P(?=.)(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?")
_PIP_INSTALL = re.compile(r"\bpip3? install ([^;&|\n]*)")
_PYTHON = ".".join(map(str, sys.version_info[:3]))
#: Fields that only get a row, with what it says.
_IGNORED = {
    "cluster": "Batch AI clusters no longer exist; set compute_target= to one of your clusters",
    "stdOutErrPathPrefix": "see the log of the job: job.logs(), distdl logs",
    "schedulingPriority": "priorities are not supported",
    "containerSettings.imageSourceRegistry.image": f"no image is pulled, ranks run in this environment "
    f"(Python {_PYTHON}); on Azure ML, set environment= to a current image",
    "containerSettings.shmSize": "there is no container; ranks use the shared memory of the machine",
}
_READ = {
    "$schema", "name", "cluster", "nodeCount", "jobPreparation", "containerSettings", "inputDirectories",
    "mountVolumes", "outputDirectories", "stdOutErrPathPrefix", "environmentVariables", "secrets", "constraints",
    "schedulingPriority", *TOOLKITS,
}  # fmt: skip


def read(
    job: JobFile, *, cluster: JobFile | None = None, batchai_mounts: Mapping[str, Any] | None = None
) -> ImportedJob:
    """Return a Batch AI job in the options of ``submit``, with a row for each field; takes what ``explain`` takes.

    Raises InvalidSpec when it is no Batch AI job; what else keeps it from starting stands in ``problems``.
    """
    fields, folder = read_job(job)
    machines = read_cluster(cluster, folder)
    result, folders = ImportedJob(directory=folder), Folders(fields, machines, folder, batchai_mounts or {})
    if name := fields.text("name"):
        result.options["name"] = name
        result.add_row("name", name, "name of the job")
    if size := machines.text("vmSize"):
        result.add_row("cluster: vmSize", size, _vm_size(size), "changed")
    _add_toolkit(fields, folders, result)
    for variable in fields.objects("environmentVariables"):
        _add_variable("environmentVariables", variable.text("name"), variable.text("value"), folders, result)
    _add_secrets(fields, result)
    folders.add_all(result)
    _add_rest(fields, result)
    return result


def _vm_size(name: str) -> str:
    try:
        size = find(name)
    except InvalidSpec:
        return "the size is not in the catalogue"
    successor = successors.successor_of(size)
    if successor is None:
        return f"{size.size} is not retired; set vm_size= to get advice for a size"
    return f"retired; today {successor.size.size}: {successor.reason}"


def _add_toolkit(fields: Fields, folders: Folders, result: ImportedJob) -> None:
    kinds = [kind for kind in TOOLKITS if kind in fields]
    if len(kinds) != 1:
        what = f"The job has {plural(len(kinds), 'type')} of toolkit settings, but must have exactly one."
        hint = f"Keep one of: {', '.join(kinds or TOOLKITS)}."
        result.add_problem(
            "settings",
            ", ".join(kinds),
            InvalidSpec(what, code="batchai-toolkit-count", field="batchai_job", hint=hint),
        )
        return
    (kind,) = kinds
    settings = fields.object(kind)
    text = settings.text("pythonScriptFilePath") or settings.text("commandLine")
    try:
        nodes = fields.count("nodeCount") or 1
        command = toolkit_command(kind, settings, nodes, folders.read_script)
    except InvalidSpec as problem:
        result.add_problem(kind, text, problem)
        return
    _add_script(kind, text, command, folders, result)
    _add_counts(kind, nodes, command, result)
    if command.directory:
        _add_directory(command.directory, folders, result)
    for name, value in command.variables.items():
        _add_variable(kind, name, value, folders, result)
    for part, why in command.ignored:
        result.add_row(kind, part, why, "ignored")


def _add_script(kind: str, text: str, command: Command, folders: Folders, result: ImportedJob) -> None:
    mount = folders.find_script(command.script)
    result.script, result.arguments = folders.script, command.arguments
    if result.script is None:
        where = f" Its path in Batch AI is {command.script}." if "$" in command.script else ""
        what = f"The script {command.script.rpartition('/')[2]} was not found.{where}"
        hint = f'Copy it to the folder of job.json, or set batchai_mounts={{"{mount}": "PATH"}}.'
        result.add_problem(
            kind, text, InvalidSpec(what, code="batchai-script-not-found", field="entry_script", hint=hint)
        )
    else:
        result.add_row(kind, text, f"script {short_path(result.script, result.directory)}", "changed")
    if command.arguments:
        shown = " ".join(repr(part) if re.search(r"\s", part) else part for part in command.arguments)
        result.add_row(f"{kind}: arguments", shown, "arguments; each rank fills in the variables")


def _add_counts(kind: str, nodes: int, command: Command, result: ImportedJob) -> None:
    processes = command.processes or 1
    backend, why = command.backend, TOOLKITS[kind]
    if not backend and "horovod" in _imports(result.script):
        backend, why = "horovod-gloo", "the script imports horovod"
    elif not backend:
        backend, why = ("horovod-mpi", "an MPI program") if processes > 1 else ("plain", "one process")
    per_node = processes // command.nodes
    result.options |= {
        "node_count": command.nodes, "process_count_per_node": per_node, "distributed_backend": backend,
    }  # fmt: skip
    became = f"node_count={command.nodes}, process_count_per_node={per_node}"
    result.add_row("nodeCount; processes", f"{nodes}; {processes}", became)
    result.add_row("framework", why, f"distributed_backend={backend}", "changed")


def _imports(script: Path | None) -> set[str]:
    try:
        return set(imported(parse(script.read_text(encoding="utf-8")))) if script else set()
    except (OSError, ValueError, SyntaxError, InvalidSpec):
        return set()  # capturing the script refuses it with its line


def _add_directory(path: str, folders: Folders, result: ImportedJob) -> None:
    local = folders.resolve(path).local
    if local is None or not local.is_dir():
        result.add_row("cd", path, f"the folder does not exist here; ranks run in {result.directory}", "ignored")
    else:
        result.add_row("cd", path, f"working directory {short_path(local, result.directory)}")
        result.directory = local


def _add_variable(field: str, name: str, value: str, folders: Folders, result: ImportedJob) -> None:
    shown = MASK if is_secret(name, value) else value
    if name.startswith("AZ_BATCHAI_") or re.search(r"\$\{?AZ_BATCHAI", value):
        folders.variables[name] = value
        result.add_row(f"{field}: {name}", shown, "variable of every rank, which fills it in")
    else:
        result.set_variable(name, value)
        result.add_row(f"{field}: {name}", shown, "environment_variables")


def _add_secrets(fields: Fields, result: ImportedJob) -> None:
    result.secrets = tuple(secret.text("name") for secret in fields.objects("secrets"))
    for name in result.secrets:
        if name in os.environ:
            result.set_variable(name, os.environ[name])
            became = "taken from the environment of this process and not stored"
            result.add_row(f"secrets {name}", MASK, became, "changed")
        else:
            what = f"The secret {name} is not in the environment of this process."
            hint = "Set the variable before Jupyter starts. Values in job.json are ignored."
            result.add_problem(
                f"secrets {name}",
                MASK,
                InvalidSpec(what, code="batchai-secret-missing", field="environment_variables", hint=hint),
            )


def _add_rest(fields: Fields, result: ImportedJob) -> None:
    """Add the limit of time, and the fields that ask for nothing here."""
    if limit := fields.text("constraints.maxWallClockTime"):
        if seconds := _seconds(limit):
            result.options["max_run_duration_seconds"] = seconds
            result.add_row("constraints: maxWallClockTime", limit, f"max_run_duration_seconds={seconds:g}")
        else:
            result.add_row("constraints: maxWallClockTime", limit, "it is not a valid duration", "ignored")
    for name, became in _IGNORED.items():
        if value := fields.text(name):
            parts = name.split(".")
            result.add_row(": ".join(dict.fromkeys((parts[0], parts[-1]))), value, became, "ignored")
    if line := fields.text("jobPreparation.commandLine"):
        became = f"no packages are installed when the job starts{_packages(line)}"
        result.add_row("jobPreparation", line, became, "ignored")
    for name in fields:
        if name not in _READ:
            result.add_row(name, "", "not a field of Batch AI jobs (API 2018-05-01)", "ignored")


def _packages(line: str) -> str:
    """Return which of the packages that a command line installs with pip are not installed here."""
    words = [word.strip("'\"") for packages in _PIP_INSTALL.findall(line) for word in packages.split()]
    names = [re.split(r"[<>=!~\[]", word)[0] for word in words if not re.search(r"^\W|/|\.txt$", word)]
    absent = [name for name in names if not list(metadata.Distribution.discover(name=name))]
    if absent:
        return f"; not installed; run: pip install {' '.join(absent)}"
    return f"; {', '.join(names)} already installed" if names else ""


def _seconds(text: str) -> float:
    """Return the seconds of ``7 days, 0:00:00``, ``7.00:00:00`` or ``P7D``, 0 for another text."""
    match = _DURATION.fullmatch(text) or _ISO_DURATION.fullmatch(text)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0, 0)
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
