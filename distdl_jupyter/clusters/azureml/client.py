"""Client of an Azure ML workspace: azure-ai-ml submits jobs, and plain REST requests follow and cancel them.

azure-ai-ml takes about two seconds to import, so it is imported only to submit a job or to manage compute clusters. It
can only read the log of the first process, and downloads the whole file each time, so ``azure.rest`` is used for the
details, the logs and the cancellation of a run. Paths and API versions are those of azure-ai-ml 1.35.2.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import threading
import warnings
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

from distdl_jupyter.azure import identity, settings
from distdl_jupyter.azure.rest import RestClient
from distdl_jupyter.core.errors import AzureRefused, ClusterRefused, DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.worker.secret_patterns import mask

#: API versions of the resource manager, by type of resource.
API_WORKSPACE = API_DATASTORE = "2024-10-01-preview"
API_ENVIRONMENT = "2023-04-01-preview"
API_JOB, API_CANCEL = "2024-01-01-preview", "2023-04-01-preview"
#: The states of a job that has ended.
ENDED_STATES = frozenset({"Completed", "Failed", "Canceled"})
#: Held while the environment of this process is changed.
_environment_lock = threading.Lock()


class Workspace:
    """One workspace, accessed as the signed-in user."""

    def __init__(self, subscription_id: str, resource_group: str, workspace: str) -> None:
        self.names = {"subscription_id": subscription_id, "resource_group": resource_group, "workspace": workspace}
        subscription, group, name = (quote(text, safe="") for text in self.names.values())
        #: The path of the workspace in the resource manager.
        self.path = f"/subscriptions/{subscription}/resourceGroups/{group}"
        self.path += f"/providers/Microsoft.MachineLearningServices/workspaces/{name}"
        self._clients: dict[str, RestClient] = {}

    @classmethod
    def from_options(cls, options: Any) -> Workspace:
        """Return the workspace of a cluster. Raises InvalidSpec if an option is missing."""
        for name in ("resource_group", "workspace"):
            if not getattr(options, name):
                raise make_missing_error(name)
        return cls(get_subscription(options), options.resource_group, options.workspace)

    @functools.cached_property
    def _manager(self) -> RestClient:
        """The client of the resource manager. Raises NotSignedIn."""
        return identity.create_client()

    @functools.cached_property
    def _history(self) -> RestClient:
        """The client of the run history, whose address is in the workspace's discovery document."""
        discovery = str(self.get()["properties"]["discoveryUrl"])
        api = str(self.get_anonymous_client(discovery).get(discovery)["api"])
        cloud = settings.read().endpoints
        return RestClient(api, identity.get_credential(), cloud.get_scope(cloud.resource_manager))

    def get_anonymous_client(self, url: str) -> RestClient:
        """Return a client without credentials for the host of a signed URL, such as the URL of a log."""
        parts = urlsplit(url)
        host = f"{parts.scheme}://{parts.netloc}"
        if host not in self._clients:
            self._clients[host] = RestClient(host, None, retries=1)
        return self._clients[host]

    def get(self, path: str = "", api_version: str = API_WORKSPACE) -> dict[str, Any]:
        """Return the record of the workspace, or of something in it. Raises AzureRefused."""
        return dict(self._manager.get(self.path + path, api_version))

    def get_job(self, name: str) -> dict[str, Any]:
        """Return the properties of a job. Raises AzureRefused."""
        return dict(self.get(f"/jobs/{quote(name)}", API_JOB)["properties"])

    def get_details(self, name: str) -> dict[str, Any]:
        """Return the status, the error and the log files (``{name: signed URL}``) of a job."""
        path = f"{self._history.address}/history/v1.0{self.path}/runs/{quote(name)}/details"
        return dict(self._history.get(path, "v1.0"))

    def cancel(self, name: str) -> bool:
        """Cancel a job; return False if it has ended or does not exist. Raises DistDLError."""
        try:
            if self.get_job(name).get("status") in ENDED_STATES:
                return False
            self._manager.post(f"{self.path}/jobs/{quote(name)}/cancel", API_CANCEL)
        except AzureRefused as error:
            if error.status not in (400, 404, 409):
                raise
            return False
        return True

    def get_datastore(self, name: str) -> dict[str, Any]:
        """Return the properties of a datastore, with a short-lived SAS token as ``sasToken`` if one can be requested.

        An account key is never requested, because it grants full access. Raises AzureRefused.
        """
        path = f"/datastores/{quote(name)}"
        store = dict(self.get(path, API_DATASTORE)["properties"])
        if (store.get("credentials") or {}).get("credentialsType", "None") != "None":
            with contextlib.suppress(DistDLError):  # the user's account may have access
                store |= self._manager.post(f"{self.path}{path}/listSecrets", API_DATASTORE, {"expirableSecret": True})
        return store


def get_subscription(options: Any) -> str:
    """Return the subscription in a cluster's options, else in the settings. Raises InvalidSpec if neither has one."""
    subscription = options.subscription_id or settings.read().subscription_id
    if not subscription:
        raise make_missing_error("subscription_id")
    return str(subscription)


def make_missing_error(option: str) -> InvalidSpec:
    """Return the error for a missing required option."""
    suffix = ", or choose a subscription: %dist_config azure" if option == "subscription_id" else "."
    hint = f"Set the cluster option {option}{suffix}"
    message = f"The Azure ML cluster has no {option}."
    return InvalidSpec(message, code="azureml-option-missing", field=option, hint=hint)


@contextlib.contextmanager
def open_ml_client(workspace: Workspace, **variables: str) -> Iterator[Any]:
    """Yield azure-ai-ml's client for a workspace, without warnings and telemetry. Raises LaunchFailed, NotSignedIn.

    ``variables`` are environment variables for the block; the variable that azure-ai-ml sets is restored too.
    """
    names = workspace.names.values()
    with _environment_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from azure.ai.ml import MLClient
        except ImportError as error:
            message, hint = "azure-ai-ml is not installed.", "Run: pip install 'distdl-jupyter[azure]'."
            raise LaunchFailed(message, code="azure-ai-ml-missing", hint=hint) from error
        previous = {name: os.environ.get(name) for name in (*variables, "AZUREML_CURRENT_CLOUD")}
        os.environ.update(variables)
        try:
            cloud = _get_cloud_options()
            yield MLClient(identity.get_credential(), *names, **cloud, enable_telemetry=False, show_progress=False)
        finally:
            for name, value in previous.items():
                os.environ.pop(name, None)
                os.environ.update({name: value} if value is not None else {})


@contextlib.contextmanager
def open_computes(options: Any) -> Iterator[Any]:
    """Yield azure-ai-ml's operations on the compute targets of a workspace, and translate Azure's errors."""
    with translate_azure_errors(options):
        with open_ml_client(Workspace.from_options(options)) as client:
            operations = client.compute
        yield operations


def _get_cloud_options() -> dict[str, Any]:
    """Return azure-ai-ml's arguments for the cloud: its name, and its addresses if azure-ai-ml does not know them."""
    cloud = settings.read().endpoints
    if settings.CLOUDS.get(cloud.name) == cloud:
        return {"cloud": cloud.name}
    metadata = {
        "azure_portal": cloud.portal,
        "resource_manager": cloud.resource_manager,
        "active_directory": cloud.authority,
        "aml_resource_id": cloud.ml_audience,
        "storage_endpoint": urlsplit(cloud.blob.format(account="x")).netloc.removeprefix("x.blob."),
        "registry_discovery_endpoint": f"{cloud.ml_audience}/",
    }
    # The name depends on the addresses, because azure-ai-ml caches the addresses of a name while the process runs.
    return {"cloud": f"{cloud.name}-{zlib.crc32(json.dumps(metadata).encode()):x}", "cloud_metadata": metadata}


# Error codes differ between services, so error texts are matched too. The texts come from public issues and from the
# pages on quotas (learn.microsoft.com, how-to-manage-quotas) and roles (how-to-assign-roles).
CHECK_HINT = "Check the options 'subscription_id', 'resource_group' and 'workspace'."
#: Pattern of an error text: remedy. The first match is used.
_REMEDIES = {
    r"preempt|evict|low.?priority": "Submit the job again from a checkpoint, or use dedicated nodes.",
    r"image build|build.*image|docker": "Check the build log above and the option 'environment'.",
    r"quota|cores? limit": "Use fewer nodes or another size, or request more quota for this VM family: Azure Machine "
    "Learning has its own quota (ml.azure.com, Quota).",
    r"AllocationFailed|capacity|SkuNotAvailable": "Azure has no capacity for this size in the region now. Try again "
    "later, or use another size or region.",
    r"(vm ?size|sku)\b.*(not (supported|available|valid|found)|invalid)": "Choose a size that the region offers: "
    "az ml compute list-sizes",
    r"ScopeLocked": "Ask for the lock on the resource group to be removed, because it prevents changes.",
    r"compute target|compute .*not found": "Set the option 'compute' to a compute target of the workspace.",
    r"out of memory|oom|exit(ed)? .*137": "Use a VM size with more memory, or smaller batches.",
    r"environment": "Set the option 'environment' to an image, or to an environment of the workspace.",
}
#: Azure's error code for an unknown name -> the option with the name.
_NOT_FOUND_FIELDS = {
    "SubscriptionNotFound": "subscription_id",
    "InvalidSubscriptionId": "subscription_id",
    "ResourceGroupNotFound": "resource_group",
}


def find_remedy(text: str, role: str = "AzureML Data Scientist in the workspace") -> str:
    """Return the remedy for an Azure error, or "" if it is unknown; ``role`` is the role that the request needs."""
    for pattern, hint in _REMEDIES.items():
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return hint
    if re.search(r"authoriz|permission|\b403\b", text, re.IGNORECASE):
        return f"Ask for the role {role}."
    return CHECK_HINT if re.search(r"workspaces/|resource group|subscription", text, re.IGNORECASE) else ""


@contextlib.contextmanager
def translate_azure_errors(options: Any) -> Iterator[None]:
    """Translate Azure errors in the block into errors with a remedy."""
    from azure.core.exceptions import AzureError, HttpResponseError

    try:
        yield
    except AzureRefused as error:
        raise _translate(error, options) from None
    except HttpResponseError as error:
        message, azure_code = (getattr(error.error, name, None) or "" for name in ("message", "code"))
        code, status = "azure-request-refused", error.status_code or 0
        refusal = AzureRefused(mask(message or error.message), code=code, status=status, azure_code=azure_code)
        raise _translate(refusal, options) from None
    except AzureError as error:
        message = f"Azure cannot be reached: {mask(str(error))[:300]}"
        hint = "Check the network connection of this machine. Behind a proxy, set HTTPS_PROXY."
        raise AzureRefused(message, code="azure-unreachable", hint=hint) from None


def _translate(error: AzureRefused, options: Any) -> DistDLError:
    """Return the error with its remedy, or the same error if no remedy is known."""
    field = _NOT_FOUND_FIELDS.get(error.azure_code, "")
    if error.status == 404 and not field:
        if "workspaces/" not in error.message or "/computes" in error.message:
            return error  # a compute target that does not exist
        field = "workspace"
    if field:
        subject = f"{field.removesuffix('_id').replace('_', ' ')} {getattr(options, field)}"
        message = f"The {subject} does not exist, or this account cannot access it."
        return InvalidSpec(message, code=f"azureml-{field.replace('_', '-')}-not-found", field=field, hint=CHECK_HINT)
    text = re.sub(r"^\S+ responded with \d+(?: \w+)?: ", "", error.message).strip().split("\n", 1)[0]
    role = "AzureML Compute Operator in the workspace"
    hint = find_remedy(f"{error.status} {error.azure_code} {error.message}", role)
    return ClusterRefused(f"{text.rstrip('.')}.", code="azureml-compute-refused", hint=hint) if hint else error


def make_rejection(error: Exception) -> LaunchFailed:
    """Return the error for a rejected job: one sentence without signatures of URLs, and a remedy."""
    message = getattr(getattr(error, "error", None), "message", None) or getattr(error, "message", None) or str(error)
    text = mask(" ".join(str(message).split("\n", 1)[0].split()))[:400].rstrip(".") or type(error).__name__
    hint = getattr(error, "hint", "") or find_remedy(f"{getattr(error, 'status_code', '')} {text}")
    return LaunchFailed(f"Azure ML rejected the job: {text}.", code="azureml-job-rejected", hint=hint)
