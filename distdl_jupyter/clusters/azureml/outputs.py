"""What ranks have left in a run's artifacts, brought home: values to ``results``, files to ``outputs``.

The job's record says where its artifacts lie: a datastore and a prefix in it. They are read from Blob as whoever is
signed in; where that account has no role on the storage, with the short-lived signature that the workspace gives out.
A file that broke off goes on where it was, unless its ETag has changed.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import identity
from distdl_jupyter.azure.rest import masked
from distdl_jupyter.clusters import returned
from distdl_jupyter.clusters.azureml.node.rank import RESULTS
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.worker import owned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.clusters.azureml.client import Workspace
    from distdl_jupyter.core.store import JobFolder

_URI = re.compile(r"azureml://(?:.*/)?datastores/([^/]+)/(?:paths/)?(.*)")
_PIECE = 8 * 1024 * 1024
_TRIES = 4


def collect(workspace: Workspace, name: str, folder: JobFolder, ranks: int) -> list[str]:
    """Bring a run's outputs into the job's folder; return why values stayed there.

    Raises LaunchFailed naming what could not be brought.
    """
    from azure.core.exceptions import AzureError

    found = _URI.fullmatch(_default_output(workspace, name))
    if found is None:
        return []
    datastore, prefix = found[1], f"{found[2].strip('/')}/outputs/"
    try:
        return _bring(workspace, datastore, prefix, folder, range(ranks))
    except AzureError as error:
        said = masked(str(error).strip().split("\n", 1)[0])[:300].rstrip(".")
        raise LaunchFailed(
            f"Cannot download the outputs of the ranks: {said}.",
            code="azureml-outputs-not-downloaded",
            hint="Ask for the role Storage Blob Data Reader on the workspace's storage account. The files are in the "
            "outputs of the job in Azure ML.",
        ) from None
    except OSError as error:
        raise LaunchFailed(
            f"Cannot store the outputs of the ranks in {folder.path}: {error.strerror}.",
            code="azureml-outputs-not-stored",
            hint="Free disk space, or check the permissions of that folder.",
        ) from error


def _default_output(workspace: Workspace, name: str) -> str:
    outputs = workspace.job(name)["properties"].get("outputs") or {}
    return str((outputs.get("default") or {}).get("uri") or "")


def _bring(workspace: Workspace, datastore: str, prefix: str, folder: JobFolder, ranks: range) -> list[str]:
    stayed = []
    with _container(workspace, datastore) as container:
        for blob in container.list_blobs(name_starts_with=prefix):
            target = _target(blob.name[len(prefix) :], folder)
            if target is None or (blob.metadata or {}).get("hdi_isfolder"):
                continue
            value = target.relative_to(folder.results) if target.is_relative_to(folder.results) else None
            why = returned.refusal(value, blob.size, ranks) if value is not None else ""
            if not why:
                _fetch(container.get_blob_client(blob.name), blob.size, blob.etag, target)
            elif not target.name.startswith("."):
                stayed.append(f"{why}. The file was not copied; it is in the artifacts of the run.")
    return stayed


def _container(workspace: Workspace, name: str) -> Any:
    from azure.storage.blob import ContainerClient

    store = workspace.datastore(name)
    account, container = str(store["accountName"]), str(store["containerName"])
    credential = _signature(workspace, name, store) or identity.credential()
    return ContainerClient(identity.endpoints().blob_endpoint(account), container, credential=credential)


def _signature(workspace: Workspace, name: str, store: dict[str, Any]) -> str:
    """Return the signature with which the workspace lets its users read a datastore, "" where it uses identities.

    An account key is never taken: whoever holds one may do everything.
    """
    if (store.get("credentials") or {}).get("credentialsType", "None") == "None":
        return ""
    try:
        return str(workspace.secrets(name).get("sasToken") or "")
    except DistDLError:
        return ""


def _target(name: str, folder: JobFolder) -> Path | None:
    """Return where a file goes, None for a name that leads out of the job's folder."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        return None
    if path.is_relative_to(RESULTS):
        return folder.results / path.relative_to(RESULTS)
    return folder.outputs / path


def _fetch(blob: Any, size: int, etag: str, target: Path) -> None:
    """Download a blob by ranges; what is there of it already is not fetched again. Raises AzureError, OSError."""
    part = target.with_name(f".{target.name}.{re.sub(r'[^0-9A-Za-z]', '', etag)}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "ab", opener=owned.private) as file:
        file.writelines(_pieces(blob, file.tell(), size, etag))
    part.replace(target)


def _pieces(blob: Any, start: int, size: int, etag: str) -> Iterator[bytes]:
    from azure.core import MatchConditions
    from azure.core.exceptions import IncompleteReadError, ServiceRequestError, ServiceResponseError

    tries = _TRIES
    while start < size:
        length = min(_PIECE, size - start)
        try:
            stream = blob.download_blob(offset=start, length=length, etag=etag,
                                        match_condition=MatchConditions.IfNotModified)  # fmt: skip
            piece = stream.readall()
        except (IncompleteReadError, ServiceRequestError, ServiceResponseError):
            tries -= 1
            if not tries:
                raise
            continue
        start += len(piece)
        tries = _TRIES
        yield piece
