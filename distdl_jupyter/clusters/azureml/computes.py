"""The compute clusters of a workspace, asked for and changed at Azure's resource manager.

These are plain requests through ``azure.rest``. azure-ai-ml 1.35.2 (``MLClient.compute``) reads neither how many
nodes are up (``currentNodeCount``), nor whether that changes (``allocationState``), nor the words of an error, and it
scales by sending the whole cluster anew; it takes seconds to import, which a list in JupyterLab's sidebar cannot wait
for. Paths and bodies are those of the REST API's models (``AmlCompute``, ``ClusterUpdateParameters``).

A change is accepted first and goes on at Azure: ``provisioningState`` and its errors tell how. It knows no job.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from distdl_jupyter.azure.rest import Rest
from distdl_jupyter.clusters.azureml import refusals
from distdl_jupyter.core.errors import AzureRefused, InvalidSpec

API = "2024-10-01"
#: Seconds in which a change that Azure accepted is watched for an early failure, and between two looks.
WATCHED, STEP = 8.0, 0.5
_ML = "/providers/Microsoft.MachineLearningServices"


class Place(Protocol):
    """Where a compute cluster is: the options of a cluster of the kind azureml."""

    @property
    def subscription_id(self) -> str:
        """Id of a subscription, "" for that of the settings."""

    @property
    def resource_group(self) -> str:
        """The workspace's resource group."""

    @property
    def workspace(self) -> str:
        """The workspace."""

    @property
    def compute(self) -> str:
        """The compute cluster."""


@dataclass(frozen=True, slots=True)
class Compute:
    """A compute cluster as Azure tells it. ``state`` is Azure's provisioning state ("Succeeded", "Creating")."""

    name: str
    kind: str
    location: str
    state: str
    vm_size: str
    low_priority: bool
    min_nodes: int
    max_nodes: int
    idle: str
    nodes: int
    resizing: bool
    #: What Azure says of the last change, or of nodes that it could not get.
    errors: tuple[tuple[str, str], ...]


class Computes:
    """The compute clusters of one workspace. Methods raise NotSignedIn, AzureRefused and what ``refusals`` makes."""

    def __init__(self, place: Place, rest: Rest | None = None) -> None:
        from distdl_jupyter.azure import identity

        self._place = place
        self.subscription = subscription_of(place)
        self._rest = rest or identity.rest()
        group, name = _needed(place, "resource_group"), _needed(place, "workspace")
        self.workspace = (
            f"{_subscription(self.subscription)}/resourceGroups/{_part(group)}{_ML}/workspaces/{_part(name)}"
        )

    @property
    def name(self) -> str:
        """The compute cluster that the options name. Raises InvalidSpec when they name none."""
        return _needed(self._place, "compute")

    @property
    def _path(self) -> str:
        return f"{self.workspace}/computes/{_part(self.name)}"

    def all(self) -> Iterator[Compute]:
        """Yield the workspace's compute clusters; its single machines for notebooks (compute instances) are no such."""
        with refusals.translated(self._place):
            found = (read(one) for one in self._rest.pages(f"{self.workspace}/computes", API))
            yield from (one for one in found if one.kind == "AmlCompute")

    def get(self) -> Compute | None:
        """Return the compute cluster, None when there is none of this name."""
        with refusals.translated(self._place):
            try:
                return read(self._rest.get(self._path, API))
            except AzureRefused as error:
                if error.status == 404 and not refusals.is_elsewhere(error):
                    return None
                raise

    def location(self) -> str:
        """Return the region of the workspace."""
        with refusals.translated(self._place):
            return str(self._rest.get(self.workspace, API).get("location", ""))

    def sizes(self, location: str) -> list[dict[str, Any]]:
        """Return the VM sizes that compute clusters can have in a region, as Azure tells them."""
        with refusals.translated(self._place):
            path = f"{_subscription(self.subscription)}{_ML}/locations/{_part(location)}/vmSizes"
            found = self._rest.pages(path, API)
            return [one for one in found if "AMLCompute" in one.get("supportedComputeTypes", ["AMLCompute"])]

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that are up, come up or go down, as Azure tells them."""
        with refusals.translated(self._place):
            answer = self._rest.post(f"{self._path}/listNodes", API)
            found = list(answer.get("nodes") or ())
            while following := answer.get("nextLink"):
                answer = self._rest.get(following)
                found += answer.get("nodes") or ()
            return found

    def put(self, body: Mapping[str, Any]) -> None:
        """Ask for the compute cluster."""
        self._change("PUT", self._path, body)

    def scale(self, *, least: int, most: int, idle: str) -> None:
        """Change how many nodes there may be; ``idle`` is an ISO duration."""
        settings = {"minNodeCount": least, "maxNodeCount": most, "nodeIdleTimeBeforeScaleDown": idle}
        self._change("PATCH", self._path, {"properties": {"properties": {"scaleSettings": settings}}})

    def delete(self) -> None:
        """Ask for its end, with that of its machines (detaching would leave them behind)."""
        self._change("DELETE", self._path, None, {"underlyingResourceAction": "Delete"})

    def subnet_prefixes(self, id_: str) -> tuple[str, ...]:
        """Return the address ranges of a subnet; () when this account may not read it."""
        with refusals.translated(self._place):
            try:
                properties = self._rest.get(id_, "2023-09-01").get("properties", {})
            except AzureRefused as error:
                if error.status == 403:
                    return ()
                raise
            return tuple(properties.get("addressPrefixes") or filter(None, [properties.get("addressPrefix")]))

    def _change(
        self, method: str, path: str, body: Mapping[str, Any] | None, parameters: Mapping[str, str] | None = None
    ) -> None:
        with refusals.translated(self._place):
            response = self._rest.send(method, path, API, parameters, body)
            operation = response.headers.get("Azure-AsyncOperation")
            if operation:
                self._watch(operation)

    def _watch(self, operation: str) -> None:
        """Look for an early failure of what was accepted, as of a quota: later ones are told by the cluster itself."""
        until = time.monotonic() + WATCHED
        while True:
            answer = self._rest.get(operation)
            if answer.get("status") in ("Failed", "Canceled"):
                error = answer.get("error") or {}
                raise AzureRefused(
                    str(error.get("message") or "Azure stopped the request without a reason."),
                    code="azureml-compute-change-failed",
                    azure_code=str(error.get("code") or ""),
                )
            if answer.get("status") == "Succeeded" or time.monotonic() > until:
                return
            time.sleep(STEP)


def read(answer: Mapping[str, Any]) -> Compute:
    """Return a compute cluster from what the resource manager tells."""
    outer = answer.get("properties") or {}
    inner = outer.get("properties") or {}
    scale = inner.get("scaleSettings") or {}
    errors = [*(outer.get("provisioningErrors") or ()), *(inner.get("errors") or ())]
    return Compute(
        name=str(answer.get("name", "")),
        kind=str(outer.get("computeType", "")),
        location=str(answer.get("location") or outer.get("computeLocation") or ""),
        state=str(outer.get("provisioningState", "")),
        vm_size=str(inner.get("vmSize", "")),
        low_priority=inner.get("vmPriority") == "LowPriority",
        min_nodes=int(scale.get("minNodeCount") or 0),
        max_nodes=int(scale.get("maxNodeCount") or 0),
        idle=str(scale.get("nodeIdleTimeBeforeScaleDown") or ""),
        nodes=int(inner.get("currentNodeCount") or 0),
        resizing=inner.get("allocationState") == "Resizing",
        errors=tuple(_error(one) for one in errors),
    )


def _error(one: Mapping[str, Any]) -> tuple[str, str]:
    inner = one.get("error", one) or {}
    return str(inner.get("code") or ""), str(inner.get("message") or "")


def subscription_of(place: Place) -> str:
    """Return the subscription of the options, else that of the settings. Raises InvalidSpec when there is none."""
    from distdl_jupyter.azure import settings

    found = place.subscription_id or settings.read().subscription_id
    if not found:
        raise InvalidSpec("subscription_id is missing.", code="azureml-subscription-missing", field="subscription_id",
                          hint="Set the option subscription_id, or choose a subscription: %dist_config "
                          "azure")  # fmt: skip
    return found


def workspaces(rest: Rest, subscription: str) -> Iterator[dict[str, Any]]:
    """Yield the workspaces of a subscription, as Azure tells them."""
    yield from rest.pages(f"{_subscription(subscription)}{_ML}/workspaces", API)


def _subscription(id_: str) -> str:
    return f"/subscriptions/{_part(id_)}"


def _needed(place: Place, name: str) -> str:
    value = str(getattr(place, name) or "")
    if not value:
        raise InvalidSpec(
            f"{name} is missing.", code="azureml-option-missing", field=name, hint=f"Set the cluster option {name}."
        )
    return value


def _part(text: str) -> str:
    return quote(text, safe="")
