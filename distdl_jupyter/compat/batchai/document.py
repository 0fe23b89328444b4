"""The file of a Batch AI job: which fields there are, and the value of each.

Fields are those of the REST API 2018-05-01 (azure-mgmt-batchai 7.0.0, ``JobCreateParameters``) with the few that the
preview of 2017-09-01 called otherwise. What ``az batchai job show`` printed of a job that ran is read too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.core.errors import InvalidSpec

JobFile = str | os.PathLike[str] | Mapping[str, Any]

#: Each kind of settings, and the framework that it is for.
TOOLKITS = {
    "horovodSettings": "Horovod",
    "pyTorchSettings": "PyTorch",
    "tensorFlowSettings": "TensorFlow",
    "customMpiSettings": "an MPI program",
    "customToolkitSettings": "a command line",
    "chainerSettings": "Chainer",
    "cntkSettings": "CNTK",
    "caffe2Settings": "Caffe2",
    "caffeSettings": "Caffe",
}
#: What Batch AI said of a job that it had taken; it asks for nothing.
REPORTED = (
    "id", "type", "creationTime", "executionInfo", "executionState", "executionStateTransitionTime",
    "provisioningState", "provisioningStateTransitionTime", "toolType", "jobOutputDirectoryPathSegment",
    "resourceGroup", "location", "tags", "experimentName", "workspaceName",
)  # fmt: skip
_ACCOUNT = "AZURE_BATCHAI_STORAGE_ACCOUNT"


def read(given: JobFile) -> tuple[dict[str, Any], Path]:
    """Return a job's fields without the empty ones, and the folder from which its files are looked for.

    Raises InvalidSpec when the file is missing, no JSON, or no Batch AI job.
    """
    if isinstance(given, Mapping):
        return _fields(dict(given), "The job"), Path.cwd()
    path = Path(given).expanduser().resolve()
    found = _fields(_parsed(path), path.name)
    return found, path.parent


def cluster(given: JobFile | None, folder: Path) -> dict[str, Any]:
    """Return the fields of a cluster's file; of ``cluster.json`` in ``folder`` when none is given, {} without one."""
    if given is None:
        path = folder / "cluster.json"
        given = path if path.is_file() else {}
    told = dict(given) if isinstance(given, Mapping) else _parsed(Path(given).expanduser())
    found: dict[str, Any] = _whole(told.get("properties", told))
    return found


def _parsed(path: Path) -> dict[str, Any]:
    try:
        told = _decoded(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InvalidSpec(f"There is no file {path}.", field="batchai_job", hint="Give the path of job.json.") from None
    except (OSError, ValueError) as error:
        raise InvalidSpec(f"{path.name} cannot be read as JSON: {error}.", field="batchai_job") from None
    if not isinstance(told, dict):
        raise InvalidSpec(f"{path.name} holds no JSON object.", field="batchai_job")
    return told


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        # The examples of that time have commas after the last item, which Batch AI's own reader took.
        return json.loads(re.sub(r",(\s*[}\]])", r"\1", text))


def _fields(told: dict[str, Any], what: str) -> dict[str, Any]:
    inner = told.get("properties", told)
    outer = {name: value for name, value in told.items() if name != "properties"}
    found: dict[str, Any] = _whole({**outer, **inner} if isinstance(inner, dict) else outer)
    if not any(name in found for name in (*TOOLKITS, "nodeCount")):
        raise InvalidSpec(f"{what} is no job of Batch AI: it has neither nodeCount nor one of {', '.join(TOOLKITS)}.",
                          field="batchai_job", hint="Give the job.json of az batchai job create.")  # fmt: skip
    return found


def _whole(value: Any) -> Any:
    """Return the value without empty parts; az's placeholder of the storage account is filled in where it is known."""
    if isinstance(value, Mapping):
        return {str(k): whole for k, v in value.items() if (whole := _whole(v)) not in (None, "", [], {})}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, str) and (account := os.environ.get(_ACCOUNT)):
        return value.replace(f"<{_ACCOUNT}>", account)
    return value
