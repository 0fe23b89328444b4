"""What ranks left in a run's artifacts: values are downloaded to ``results``, files to ``outputs``.

The job's record names the datastore and the prefix of its artifacts. They are read from Blob with the user's account;
where that account has no role on the storage, with the short-lived signature that the workspace gives out.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import identity
from distdl_jupyter.clusters import returned
from distdl_jupyter.clusters.azureml.bootstrap import RESULTS
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.worker import owned
from distdl_jupyter.worker.secret_patterns import mask

if TYPE_CHECKING:
    from distdl_jupyter.clusters.azureml.client import Workspace
    from distdl_jupyter.core.store import JobFolder

_URI = re.compile(r"azureml://(?:.*/)?datastores/([^/]+)/(?:paths/)?(.*)")


def collect(workspace: Workspace, name: str, folder: JobFolder, ranks: int) -> list[str]:
    """Download a run's outputs to the job's folder; return why values were not copied.

    Raises LaunchFailed naming what could not be downloaded.
    """
    from azure.core.exceptions import AzureError

    outputs = workspace.job(name)["properties"].get("outputs") or {}
    match = _URI.fullmatch(str((outputs.get("default") or {}).get("uri") or ""))
    if match is None:
        return []
    try:
        return _download_all(workspace, match[1], f"{match[2].strip('/')}/outputs/", folder, range(ranks))
    except AzureError as error:
        text = mask(str(error).strip().split("\n", 1)[0])[:300].rstrip(".")
        raise LaunchFailed(
            f"Cannot download the outputs of the ranks: {text}.",
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


def _download_all(workspace: Workspace, datastore: str, prefix: str, folder: JobFolder, ranks: range) -> list[str]:
    skipped = []
    with _container(workspace, datastore) as container:
        for blob in container.list_blobs(name_starts_with=prefix):
            target = target_path(blob.name[len(prefix) :], folder)
            if target is None or (blob.metadata or {}).get("hdi_isfolder"):
                continue
            value = target.relative_to(folder.results) if target.is_relative_to(folder.results) else None
            reason = returned.refusal(value, blob.size, ranks) if value is not None else ""
            if not reason:
                _download(container.get_blob_client(blob.name), blob.size, target)
            elif not target.name.startswith("."):
                skipped.append(f"{reason}. The file was not copied; it is in the artifacts of the run.")
    return skipped


def _container(workspace: Workspace, name: str) -> Any:
    from azure.storage.blob import ContainerClient

    store = workspace.datastore(name)
    account, container = str(store["accountName"]), str(store["containerName"])
    credential = _signature(workspace, name, store) or identity.credential()
    return ContainerClient(identity.endpoints().blob_endpoint(account), container, credential=credential)


def _signature(workspace: Workspace, name: str, store: dict[str, Any]) -> str:
    """Return the signature with which the workspace lets its users read a datastore, "" where it uses identities.

    An account key is never used, because it allows everything.
    """
    if (store.get("credentials") or {}).get("credentialsType", "None") == "None":
        return ""
    try:
        return str(workspace.secrets(name).get("sasToken") or "")
    except DistDLError:
        return ""


def target_path(name: str, folder: JobFolder) -> Path | None:
    """Return where a file is stored, None for a name that leads out of the job's folder."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        return None
    if path.is_relative_to(RESULTS):
        return folder.results / path.relative_to(RESULTS)
    return folder.outputs / path


def _download(blob: Any, size: int, target: Path) -> None:
    """Download a blob that is not there yet. The library repeats requests that fail. Raises AzureError, OSError."""
    if target.exists() and target.stat().st_size == size:
        return
    part = target.with_name(f".{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "wb", opener=owned.private) as file:
        blob.download_blob(max_concurrency=4).readinto(file)
    part.replace(target)
