"""Jobs of Azure Batch AI (retired 2019-03-31): ``batchai.submit("job.json")`` runs one as a job of this package.

The fields are those of the REST API 2018-05-01. ``mpirun`` is parsed but never run, because the backend starts ranks.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import warnings
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from distdl_jupyter import capture
from distdl_jupyter.core.data import VARIABLE_PREFIX
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.options import override
from distdl_jupyter.jobs import client

#: The backend for each type of toolkit settings.
_BACKENDS = {"horovodSettings": "horovod-gloo", "customToolkitSettings": "horovod-gloo", "pyTorchSettings": "torch"}
_KNOWN_FIELDS = {"$schema", "nodeCount", "mountVolumes", "inputDirectories", "outputDirectories",
                 "environmentVariables", *_BACKENDS}  # fmt: skip
#: Variables that Batch AI set in every job, with their values in a rank.
_VARIABLES = {"AZ_BATCHAI_TASK_INDEX": "$DISTDL_RANK", "AZ_BATCHAI_PYTORCH_INIT_METHOD": "env://"}
#: A path below the mount root, in an argument or a value.
_MOUNT_PATH_PATTERN = re.compile(r"\$\{?AZ_BATCHAI_(?:JOB_)?MOUNT_ROOT\}?/+([^\s\"':;,]*[^\s\"':;,/])/*")
#: A command that runs a script, up to the next command of the line.
_COMMAND_PATTERN = re.compile(
    r"""(?:^|;|&&|\n)\s*(?:[\w./]*(?:mpirun|mpiexec|horovodrun)(?P<flags>\s(?:[^;&\n]*\s)?))?
        (?:[\w./-]*/)?python[\d.]*\s+(?:-[uBOsS]+\s+)*(?P<script>[^\s;&'"-][^\s;&'"]*\.py)
        (?P<arguments>(?:\s[^;&\n]*)?)(?=$|;|&&|\n)""",
    re.VERBOSE,
)
#: Syntax that needs a shell: pipes, redirections, substitutions, and several programs for ``mpirun``.
_SHELL_PATTERN = re.compile(r"[`|<>]|\$\(|\s:\s")


def submit(job: str | os.PathLike[str], *, mounts: Mapping[str, str] | None = None, **options: Any) -> client.Job:
    """Start the job of a job.json and return its handle immediately; warn about ignored fields.

    ``mounts`` maps mounts to the current locations of their files: ``{"nfs": "shared:/mnt/nfs", "extfs": "./files"}``.
    Mounted containers are read from Blob; account keys in the file are never used. ``options`` are those of
    ``distdl_jupyter.submit`` and override the file.

    Raises InvalidSpec if something is missing, and the errors of ``distdl_jupyter.submit``.
    """
    path = Path(job).expanduser().resolve()
    try:
        fields = _read_fields(path)
        imported = _ImportedJob(fields, path.parent, mounts or {})
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise InvalidSpec(
            f"{path} is not a valid Batch AI job: {type(error).__name__}: {error}.",
            code="batchai-not-a-job",
            field="job",
            hint="Use the job.json of 'az batchai job create'.",
        ) from error
    code = capture.capture_script(imported.script, path.parent, imported.arguments)
    layout = {"variables": list(imported.variables.items()), "folders": imported.folders}
    code = dataclasses.replace(code, payload_json={**code.payload_json, "layout": layout})
    if ignored := sorted(fields.keys() - _KNOWN_FIELDS):
        warnings.warn(
            f"Not carried over from {path.name}: {', '.join(ignored)}. Ranks run in this Python environment without a "
            "container, and job.logs() returns their output.",
            stacklevel=2,
        )
    environment = {**imported.environment, **options.pop("environment_variables", {})}
    return client.launch(code, **override(imported.options, options), environment_variables=environment)


def _read_fields(path: Path) -> dict[str, Any]:
    """Return the fields of a job.json that are set; fields in ``properties`` become top-level fields."""
    account = os.environ.get("AZURE_BATCHAI_STORAGE_ACCOUNT")
    text = path.read_text(encoding="utf-8-sig")
    content = json.loads(text.replace("<AZURE_BATCHAI_STORAGE_ACCOUNT>", account) if account else text)
    return {name: value for name, value in (content | content.pop("properties", {})).items() if value}


class _ImportedJob:
    """A job.json converted to a script with arguments, options of ``submit``, and each rank's variables and folders."""

    def __init__(self, fields: Mapping[str, Any], folder: Path, mounts: Mapping[str, str]) -> None:
        self._folder, self._mounts = folder, {name.strip("/"): str(address) for name, address in mounts.items()}
        self._containers = {
            volume["relativeMountPath"].strip("/"): f"blob://{volume['accountName']}/{volume['containerName']}"
            for volume in fields.get("mountVolumes", {}).get("azureBlobFileSystems", [])
        }
        self.variables, self.folders = dict(_VARIABLES), list[str]()
        self.environment: dict[str, str] = {}
        self._data: dict[str, str] = {}
        self.options: dict[str, Any] = {"data": self._data}
        command = self._set_command(fields)
        inputs = {f"AZ_BATCHAI_INPUT_{entry['id']}": entry["path"] for entry in fields.get("inputDirectories", [])}
        script = re.sub(r"\$\{?(\w+)\}?", lambda match: inputs.get(match[1], match[0]), command["script"])
        self.script = self._find_script(script)
        for name, text in inputs.items():
            self.variables[name] = (
                str(self.script.parent) if script.startswith(f"{text.rstrip('/')}/") else self._to_rank_path(text)
            )
        for output in fields.get("outputDirectories", []):
            self._add_output(output)
        for entry in fields.get("environmentVariables", []):
            target = self.variables if "AZ_BATCHAI_" in entry["value"] else self.environment
            target[entry["name"]] = self._to_rank_path(entry["value"])
        self.arguments = [self._to_rank_path(text) for text in shlex.split(command["arguments"])]

    def _set_command(self, fields: Mapping[str, Any]) -> re.Match[str]:
        """Set counts, backend and variables from the command line, and return its arguments. Raises InvalidSpec."""
        toolkit = next((name for name in _BACKENDS if name in fields), "")
        settings, nodes, backend = fields.get(toolkit, {}), fields.get("nodeCount", 1), _BACKENDS.get(toolkit)
        line = settings.get("commandLine", "").replace("\\\n", " ")
        script = f"python {settings.get('pythonScriptFilePath')} {settings.get('commandLineArgs', '')}"
        commands = list(_COMMAND_PATTERN.finditer(line or script))
        if len(commands) != 1 or _SHELL_PATTERN.search(commands[0][0]):
            raise InvalidSpec(
                "The command line of the job cannot be converted.",
                code="batchai-command-unsupported",
                field="job",
                hint="Write it in customToolkitSettings.commandLine as: mpirun -np COUNT python SCRIPT.py ARGUMENTS",
            )
        flags = commands[0]["flags"] or ""
        counts = {
            name: int(value) for name, value in re.findall(r"(?<!\S)--?(np|n|ppn|npernode|perhost|N)[=\s](\S+)", flags)
        }
        if line and not flags:
            nodes, backend = 1, "plain"  # Batch AI ran this command on the first node only
        requested = counts.pop("np", 0) or counts.pop("n", 0)
        total = requested or nodes * sum(counts.values()) or settings.get("processCount", nodes)
        self.options |= {"node_count": min(nodes, total), "np": total, "distributed_backend": backend}
        self.environment |= re.findall(r"(?<!\S)--?(?:x\s+(?=\w+=)|g?env\s+)(\w+)[=\s](\S+)", flags)
        return commands[0]

    def _find_script(self, text: str) -> Path:
        match = _MOUNT_PATH_PATTERN.fullmatch(text)
        name = match[1] if match else text
        paths: list[str | Path] = [self._locate(name), self._folder / name, self._folder / PurePosixPath(name).name]
        script = next((path for text in paths if (path := Path(text)).is_file()), None)
        if script is None:
            raise _make_missing_path_error(name)
        return script.resolve()

    def _to_rank_path(self, text: str) -> str:
        """Replace each path below the mount root by the variable of a data source. Raises InvalidSpec."""
        return _MOUNT_PATH_PATTERN.sub(self._add_data, text)

    def _add_data(self, match: re.Match[str]) -> str:
        address = self._locate(match[1])
        if not address:
            raise _make_missing_path_error(match[1])
        name = re.sub(r"[^A-Za-z0-9]", "_", match[1])[:40]
        self._data[name] = address
        return f"${VARIABLE_PREFIX}{name.upper()}"

    def _add_output(self, output: Mapping[str, str]) -> None:
        folder = f"$DISTDL_JOB_DIR/outputs/{output.get('pathSuffix', output['id'])}"
        self.folders.append(folder)
        self.variables[f"AZ_BATCHAI_OUTPUT_{output['id']}"] = folder
        match = _MOUNT_PATH_PATTERN.fullmatch(output["pathPrefix"])
        if match and self._locate(match[1]).startswith("blob:"):
            self.options["outputs"] = self._locate(match[1])

    def _locate(self, subpath: str) -> str:
        """Return the location of a path below the mount root: in a mount, in Blob, next to job.json, or ""."""
        for parent in (subpath, *map(str, PurePosixPath(subpath).parents)):
            if address := self._mounts.get(parent) or self._containers.get(parent):
                return address.rstrip("/") + subpath[len(parent) :]
        paths = [self._folder / part for part in (subpath, subpath.partition("/")[2]) if part]
        return next((str(path) for path in paths if path.exists()), "")


def _make_missing_path_error(subpath: str) -> InvalidSpec:
    return InvalidSpec(
        f"The job uses {subpath}, which is not available here.",
        code="batchai-path-missing",
        field="mounts",
        hint=f'Copy it to the folder of job.json, or set where it is: mounts={{"{subpath.partition("/")[0]}": "PATH"}}',
    )
