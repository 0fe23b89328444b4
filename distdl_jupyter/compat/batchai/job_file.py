"""The job.json of a Batch AI job: its fields, each checked for its type where it is read.

Fields are those of the REST API 2018-05-01 (azure-mgmt-batchai 7.0.0, ``JobCreateParameters``). The output of
``az batchai job show`` is read too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.options import check_count

JobFile = str | os.PathLike[str] | Mapping[str, Any]
#: Each kind of toolkit settings, and the framework that it is for.
TOOLKITS = {
    "horovodSettings": "Horovod", "pyTorchSettings": "PyTorch", "tensorFlowSettings": "TensorFlow",
    "customMpiSettings": "an MPI program", "customToolkitSettings": "a command line", "chainerSettings": "Chainer",
    "cntkSettings": "CNTK", "caffe2Settings": "Caffe2", "caffeSettings": "Caffe",
}  # fmt: skip
_ACCOUNT = "AZURE_BATCHAI_STORAGE_ACCOUNT"


class Fields:
    """The fields of a JSON object without the empty ones. A name such as ``containerSettings.shmSize`` goes deeper."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, name: str) -> bool:
        return self._get(name) is not None

    def text(self, name: str) -> str:
        """Return a text, "" without the field; a number is text too, and an Azure resource is its name."""
        value = self._get(name)
        if isinstance(value, dict) and isinstance(value.get("id"), str):
            value = value["id"].rpartition("/")[2]
        if isinstance(value, dict | list):
            raise _wrong_type(name, "text")
        return "" if value is None else str(value)

    def count(self, name: str) -> int | None:
        """Return a whole number from 1, None without the field."""
        value = self._get(name)
        return None if value is None else check_count(value, name)

    def object(self, name: str) -> Fields:
        """Return the fields of an object, none without the field."""
        value = self._get(name)
        if not isinstance(value, dict | None):
            raise _wrong_type(name, "a JSON object")
        return Fields(value or {})

    def objects(self, name: str) -> list[Fields]:
        """Return the objects of a list, none without the field."""
        value = self._get(name) or []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise _wrong_type(name, "a list of JSON objects")
        return [Fields(item) for item in value]

    def _get(self, name: str) -> Any:
        outer, _, inner = name.rpartition(".")
        return (self.object(outer)._values if outer else self._values).get(inner)  # noqa: SLF001


def _wrong_type(name: str, wanted: str) -> InvalidSpec:
    return InvalidSpec(
        f"{name} of the Batch AI job must be {wanted}.",
        code="batchai-field-type",
        field=name,
        hint=f"Change {name} to {wanted}.",
    )


def read_job(job: JobFile) -> tuple[Fields, Path]:
    """Return a job's fields and the folder of its files. Raises InvalidSpec when it is no Batch AI job."""
    fields = Fields(_fields(job))
    if not any(name in fields for name in (*TOOLKITS, "nodeCount")):
        raise InvalidSpec(
            f"This is not a Batch AI job, because it has neither nodeCount nor one of {', '.join(TOOLKITS)}.",
            code="batchai-not-a-job",
            field="batchai_job",
            hint="Use the job.json of 'az batchai job create'.",
        )
    return fields, Path.cwd() if isinstance(job, Mapping) else Path(job).expanduser().resolve().parent


def read_cluster(cluster: JobFile | None, folder: Path) -> Fields:
    """Return the fields of a cluster; of ``cluster.json`` in ``folder`` without one, and none without that."""
    beside = folder / "cluster.json"
    return Fields(_fields(cluster if cluster is not None else beside if beside.is_file() else {}))


def _fields(source: JobFile) -> dict[str, Any]:
    """Return the fields of a file or a dict; those within ``properties`` count as fields of their own."""
    outer = dict(source) if isinstance(source, Mapping) else _parsed(Path(source).expanduser())
    inner = outer.pop("properties", {})
    fields: dict[str, Any] = _cleaned({**outer, **(inner if isinstance(inner, Mapping) else {})})
    return fields


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        try:
            content = json.loads(text)
        except ValueError:  # the recipes of that time have commas after the last item, which Batch AI took
            content = json.loads(re.sub(r",(\s*[}\]])", r"\1", text))
    except FileNotFoundError:
        raise InvalidSpec(
            f"The file {path} does not exist.",
            code="batchai-file-missing",
            field="batchai_job",
            hint="Set batchai_job to the path of job.json.",
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidSpec(
            f"{path.name} is not valid JSON: {error}.", code="batchai-file-not-json", field="batchai_job"
        ) from None
    if not isinstance(content, dict):
        raise InvalidSpec(
            f"{path.name} does not contain a JSON object.", code="batchai-file-not-an-object", field="batchai_job"
        )
    return content


def _cleaned(value: Any) -> Any:
    """Return the value without empty fields, and with the storage account in place of az's placeholder."""
    if isinstance(value, Mapping):
        return {str(name): kept for name, item in value.items() if (kept := _cleaned(item)) not in (None, "", [], {})}
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    account = os.environ.get(_ACCOUNT)
    return value.replace(f"<{_ACCOUNT}>", account) if account and isinstance(value, str) else value
