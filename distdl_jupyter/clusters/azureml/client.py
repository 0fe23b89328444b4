"""Requests to a workspace of Azure ML: azure-ai-ml to submit, plain requests to follow a job.

azure-ai-ml takes about two seconds to import and is imported when a job is submitted, in its supervisor, or when a
compute cluster is requested. Its telemetry is off. It reads the log of the first process only, and the whole file at
each request, so a run's details, logs and cancellation go through ``azure.rest``.

Addresses and api-versions are those that azure-ai-ml 1.35.2 uses itself.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import threading
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from distdl_jupyter.azure import identity, settings
from distdl_jupyter.azure.rest import Rest
from distdl_jupyter.azure.settings import CLOUDS
from distdl_jupyter.core.errors import AzureRefused, InvalidSpec, LaunchFailed

if TYPE_CHECKING:
    from distdl_jupyter.azure.settings import Cloud

API_WORKSPACE = API_DATASTORE = "2024-10-01-preview"
API_ENVIRONMENT = "2023-04-01-preview"
API_JOB, API_CANCEL = "2024-01-01-preview", "2023-04-01-preview"
_ML = "/providers/Microsoft.MachineLearningServices"
_GIT = tuple(f"AZUREML_GIT_{name}" for name in ("REPOSITORY_URI", "BRANCH", "COMMIT", "DIRTY", "BUILD_ID", "BUILD_URI"))
_environ = threading.Lock()


@dataclass(frozen=True, slots=True)
class Address:
    """The three names of a workspace."""

    subscription_id: str
    resource_group: str
    workspace: str

    @property
    def path(self) -> str:
        """The workspace at the resource manager."""
        group, name = quote(self.resource_group), quote(self.workspace)
        return f"/subscriptions/{self.subscription_id}/resourceGroups/{group}{_ML}/workspaces/{name}"

    def to_json(self) -> dict[str, str]:
        """Return it as plain data."""
        return asdict(self)

    @classmethod
    def of(cls, options: Any) -> Address:
        """Return the workspace of a cluster's options. Raises InvalidSpec naming what is missing."""
        for name in ("resource_group", "workspace"):
            if not getattr(options, name):
                raise InvalidSpec(
                    f"{name} is missing.",
                    code="azureml-option-missing",
                    field=name,
                    hint=f"Set the cluster option {name}.",
                )
        return cls(subscription_of(options), options.resource_group, options.workspace)


def subscription_of(options: Any) -> str:
    """Return the subscription of a cluster's options, else that of the settings. Raises InvalidSpec without one."""
    subscription = options.subscription_id or settings.read().subscription_id
    if not subscription:
        raise InvalidSpec(
            "subscription_id is missing.",
            code="azureml-subscription-missing",
            field="subscription_id",
            hint="Set the option subscription_id, or choose a subscription: %dist_config azure",
        )
    return str(subscription)


class Workspace:
    """One workspace, with the account that is signed in. No request is sent before the first method is called."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._hosts: dict[str, Rest] = {}

    @functools.cached_property
    def manager(self) -> Rest:
        """The resource manager. Raises NotSignedIn."""
        return identity.rest()

    @functools.cached_property
    def _history(self) -> Rest:
        """The workspace's run history, at the address that its discovery document names."""
        discovery = str(self.info()["properties"]["discoveryUrl"])
        api = str(self.without_token(discovery).get(discovery)["api"])
        cloud = settings.read().endpoints
        return Rest(api, identity.credential(), cloud.scope(cloud.resource_manager))

    def without_token(self, url: str) -> Rest:
        """Return the host of an address that contains its own signature, as those of logs do."""
        split = urlsplit(url)
        host = f"{split.scheme}://{split.netloc}"
        if host not in self._hosts:
            self._hosts[host] = Rest(host, None, retries=1)
        return self._hosts[host]

    def _get(self, path: str, api_version: str) -> dict[str, Any]:
        return dict(self.manager.get(self.address.path + path, api_version))

    def info(self) -> dict[str, Any]:
        """Return the workspace's record. Raises AzureRefused."""
        return self._get("", API_WORKSPACE)

    def job(self, name: str) -> dict[str, Any]:
        """Return a job's record. Raises AzureRefused."""
        return self._get(f"/jobs/{quote(name)}", API_JOB)

    def details(self, name: str) -> dict[str, Any]:
        """Return a run's status, error and log files ({name: address with a signature})."""
        history = self._history
        path = f"{history.address}/history/v1.0{self.address.path}/runs/{quote(name)}/details"
        return dict(history.get(path, "v1.0"))

    def cancel(self, name: str) -> None:
        """Request a job's end."""
        self.manager.post(f"{self.address.path}/jobs/{quote(name)}/cancel", API_CANCEL)

    def has_environment(self, name: str, version: str) -> bool:
        """Return whether the workspace has this version of an image. Raises AzureRefused for anything but 404."""
        try:
            self._get(f"/environments/{quote(name)}/versions/{quote(version)}", API_ENVIRONMENT)
        except AzureRefused as error:
            if error.status != 404:
                raise
            return False
        return True

    def datastore(self, name: str) -> dict[str, Any]:
        """Return the properties of a datastore."""
        return dict(self._get(f"/datastores/{quote(name)}", API_DATASTORE)["properties"])

    def secrets(self, name: str) -> dict[str, Any]:
        """Return the short-lived signature of a datastore that uses no identities."""
        path = f"{self.address.path}/datastores/{quote(name)}/listSecrets"
        return dict(self.manager.post(path, API_DATASTORE, {"expirableSecret": True}))


@contextlib.contextmanager
def submitting(address: Address) -> Iterator[Any]:
    """Yield azure-ai-ml's client for a workspace, valid inside only. Raises LaunchFailed, NotSignedIn.

    Git finds no repository inside: azure-ai-ml would put the remote address and the branch of the current folder into
    the job's record, which everybody in the workspace can read.
    """
    with _quiet({"GIT_DIR": os.devnull, **dict.fromkeys(_GIT)}), contextlib.redirect_stderr(io.StringIO()):
        yield _client(address)


def compute_operations(address: Address) -> Any:
    """Return azure-ai-ml's operations on the compute targets of a workspace. Raises LaunchFailed, NotSignedIn."""
    return _compute_operations(address, settings.read().endpoints)


@functools.lru_cache(maxsize=8)
def _compute_operations(address: Address, _cloud: Cloud) -> Any:
    with _quiet({}):
        return _client(address).compute


def _client(address: Address) -> Any:
    try:
        from azure.ai.ml import MLClient
    except ImportError as error:
        raise LaunchFailed(
            "azure-ai-ml is not installed.",
            code="azure-ai-ml-missing",
            hint="Run: pip install 'distdl-jupyter[azure]'.",
        ) from error
    return MLClient(
        identity.credential(),
        address.subscription_id,
        address.resource_group,
        address.workspace,
        **_cloud_options(),
        enable_telemetry=False,
        show_progress=False,
    )


def _cloud_options() -> dict[str, Any]:
    """Return the cloud for azure-ai-ml: by name where it knows it, else by name and addresses."""
    cloud = settings.read().endpoints
    if CLOUDS.get(cloud.name) == cloud:
        return {"cloud": cloud.name}
    metadata = {
        "azure_portal": cloud.portal,
        "resource_manager": cloud.resource_manager,
        "active_directory": cloud.authority,
        "aml_resource_id": cloud.ml_audience,
        "storage_endpoint": urlsplit(cloud.blob.format(account="x")).netloc.removeprefix("x.blob."),
        "registry_discovery_endpoint": f"{cloud.ml_audience}/",
    }
    # azure-ai-ml caches the addresses of a name for as long as the process lives.
    return {"cloud": f"{cloud.name}-{zlib.crc32(json.dumps(metadata).encode()):x}", "cloud_metadata": metadata}


@contextlib.contextmanager
def _quiet(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables (None: unset), restore them and the SDK's own afterwards, and ignore its warnings."""
    names = (*variables, "AZUREML_CURRENT_CLOUD")
    with _environ, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = {name: os.environ.get(name) for name in names}
        _set(variables)
        try:
            yield
        finally:
            _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
