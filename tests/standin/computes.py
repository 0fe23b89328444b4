"""The resource manager's part for machines: subscriptions, workspaces, compute clusters and their nodes.

The shapes are those of the REST API's models (azure-ai-ml's arm_ml_service client) for AmlCompute. A change is accepted
at once and ends after ``seconds``, or when a test calls ``settle()``; ``bring_up`` sets the number of nodes.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.standin.server import Answer, Request, Server, refusal

API = "2024-10-01"
SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"
ML = "/providers/Microsoft.MachineLearningServices"
#: Resource groups and names of the workspaces, with their regions.
WORKSPACES = {("vision", "ws1"): "westeurope", ("vision", "ws2"): "eastus", ("speech", "talk"): "westeurope"}
WORKSPACE = rf"/subscriptions/(?P<sub>[^/]+)/resourceGroups/(?P<group>[^/]+){ML}/workspaces/(?P<ws>[^/]+)"
_COMPUTE = rf"{WORKSPACE}/computes/(?P<name>[^/]+)"
_SIZES = {"Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4", "Standard_DS3_v2", "Standard_ND96asr_v4"}
_SETTABLE = {"osType", "vmSize", "vmPriority", "scaleSettings", "remoteLoginPortPublicAccess", "enableNodePublicIp"}
_SCALE = {"minNodeCount", "maxNodeCount", "nodeIdleTimeBeforeScaleDown"}
_CHANGES = ("Creating", "Updating", "Deleting")
_NO_QUOTA = {
    "code": "ClusterCoreQuotaReached",
    "message": "The specified subscription has a Standard NCASv3_T4 family vCPU quota of 0 and cannot accomodate for "
    "at least 1 requested managed compute nodes which maps to 4 vCPUs.",
}
_INSTANCE = {
    "id": "x",
    "name": "my-laptop",
    "location": "westeurope",
    "properties": {
        "computeType": "ComputeInstance",
        "provisioningState": "Succeeded",
        "properties": {"vmSize": "STANDARD_DS3_V2"},
    },
}


@dataclass
class Compute:
    body: dict[str, Any]
    state: str = "Creating"
    since: float = field(default_factory=time.monotonic)
    errors: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def inner(self) -> dict[str, Any]:
        return self.body["properties"]["properties"]


class Computes:
    """``refuse`` holds (method, answer) pairs that are used up one by one."""

    def __init__(self, server: Server, login: Any, *, seconds: float = 0.0) -> None:
        self.server, self.login, self.seconds = server, login, seconds
        self.subscriptions = {SUBSCRIPTION: "Research"}
        self.computes: dict[tuple[str, str, str], Compute] = {}
        self.refuse: list[tuple[str, Answer]] = []
        #: Sizes whose family has no quota: a request for one is accepted, and fails afterwards.
        self.without_quota: set[str] = set()
        self._operations: dict[str, Compute] = {}
        self._lock = threading.RLock()
        operation = rf"/subscriptions/(?P<sub>[^/]+){ML}/locations/[^/]+/computeOperationsStatus/(?P<op>[^/]+)"
        for method, pattern, handler in (
            ("GET", "/subscriptions", self._subscriptions),
            ("GET", rf"/subscriptions/(?P<sub>[^/]+){ML}/workspaces", self._workspaces),
            ("GET", operation, self._operation),
            ("GET", WORKSPACE, self._workspace),
            ("GET", rf"{WORKSPACE}/computes", self._list),
            ("GET", _COMPUTE, self._body),
            ("PUT", _COMPUTE, self._put),
            ("DELETE", _COMPUTE, self._delete),
            ("POST", rf"{_COMPUTE}/listNodes", self._nodes),
            ("GET", rf"{_COMPUTE}/listNodes", self._nodes),  # the pages after the first, as the service's SDK asks
        ):
            server.route(method, pattern, self._checked(handler))

    def _checked(self, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        def answer(request: Request) -> Any:
            with self._lock:
                self._finish(self.seconds)
                return self._refused(request) or handler(request)

        return answer

    def _refused(self, request: Request) -> Answer | None:
        if not self.login.bearer(request, self.server.address):
            return refusal(401, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
        if "api-version" not in request.query:
            return refusal(400, "MissingApiVersionParameter", "The query parameter api-version is required.")
        for at, (method, answer) in enumerate(self.refuse):
            if method == request.method:
                del self.refuse[at]
                return answer
        if refused := missing(request):
            return refused
        name = request.words.get("name")
        if name and request.method in ("GET", "POST") and self._key(request) not in self.computes:
            return refusal(404, "ResourceNotFound", f"Resource {name} of type computes not found.")
        return None

    # subscriptions and workspaces -------------------------------------------------------------------

    def _subscriptions(self, _request: Request) -> Any:
        rows = [
            {"id": f"/subscriptions/{id_}", "subscriptionId": id_, "displayName": name, "state": "Enabled"}
            for id_, name in self.subscriptions.items()
        ]
        return {"value": rows}

    def _workspaces(self, request: Request) -> Any:
        rows = [self._workspace_body(request.words["sub"], *key) for key in WORKSPACES]
        return self._page(request, "value", rows)

    def _page(self, request: Request, name: str, rows: list[Any]) -> dict[str, Any]:
        """Return two of the rows, so that a reader that takes the first page for all fails."""
        at = int(request.query.get("$skip", 0))
        link = f"{self.server.address}{request.path}?api-version={API}&$skip={at + 2}"
        return {name: rows[at : at + 2], **({"nextLink": link} if len(rows) > at + 2 else {})}

    def _workspace(self, request: Request) -> Any:
        return self._workspace_body(*(request.words[name] for name in ("sub", "group", "ws")))

    def _workspace_body(self, sub: str, group: str, name: str) -> dict[str, Any]:
        return {
            "id": f"/subscriptions/{sub}/resourceGroups/{group}{ML}/workspaces/{name}",
            "name": name,
            "location": WORKSPACES[group, name],
            "type": "Microsoft.MachineLearningServices/workspaces",
            "kind": "Default",
            "properties": {
                "friendlyName": name,
                "provisioningState": "Succeeded",
                "discoveryUrl": f"{self.server.address}/discovery/{uuid.uuid4()}",
            },
        }

    # computes -------------------------------------------------------------------------------------

    def _key(self, request: Request, name: str = "") -> tuple[str, str, str]:
        return request.words["group"], request.words["ws"], name or request.words["name"]

    def _list(self, request: Request) -> Any:
        mine = (request.words["group"], request.words["ws"])
        return {"value": [*(self._body(request, key[2]) for key in self.computes if key[:2] == mine), _INSTANCE]}

    def _body(self, request: Request, name: str = "") -> dict[str, Any]:
        group, workspace, name = key = self._key(request, name)
        compute = self.computes[key]
        inner = {"vmSize": compute.inner["vmSize"].upper(), "allocationState": "Steady", "errors": []}
        parent = self._workspace_body(request.words["sub"], group, workspace)["id"]
        return {
            "id": f"{parent}/computes/{name}",
            "name": name,
            "location": compute.body["location"],
            "properties": {
                "computeType": "AmlCompute",
                "provisioningState": compute.state,
                "provisioningErrors": compute.errors or None,
                "properties": {**compute.inner, **inner},
            },
        }

    def _put(self, request: Request) -> Any:
        if wrong := self._wrong(request):
            return refusal(400, "BadRequest", wrong)
        compute, old = Compute(request.json), self.computes.get(self._key(request))
        if old is not None:
            compute.state, compute.nodes = "Updating", old.nodes
        if compute.inner["vmSize"] in self.without_quota:
            compute.errors = [{"error": _NO_QUOTA}]
        self.computes[self._key(request)] = compute
        return self._accepted(request, compute, self._body(request), 201)

    def _wrong(self, request: Request) -> str:
        """Return what is wrong with the description of a compute, "" for nothing."""
        body, region = request.json, WORKSPACES[request.words["group"], request.words["ws"]]
        inner = body["properties"]["properties"]
        if set(body) - {"location", "identity", "properties", "tags"} or set(inner) - _SETTABLE:
            return f"Could not find member in {sorted(inner)}."
        if body["properties"].get("computeType") != "AmlCompute" or not 3 <= len(request.words["name"]) <= 24:
            return "The type or the name of the compute is invalid."
        if body.get("location") != region:
            return f"Location {body.get('location')} is not {region}."
        if inner["vmSize"].lower() not in map(str.lower, _SIZES):
            return f"The specified Azure ML Compute VM size {inner['vmSize']} is not supported in {region}."
        return "" if set(inner["scaleSettings"]) == _SCALE else f"scaleSettings has {sorted(inner['scaleSettings'])}"

    def _delete(self, request: Request) -> Any:
        compute = self.computes.get(self._key(request))
        if compute is None:
            return Answer(status=204)
        if request.query.get("underlyingResourceAction") != "Delete":
            return refusal(400, "BadRequest", "underlyingResourceAction must be Delete or Detach.")
        compute.state, compute.since = "Deleting", time.monotonic()
        return self._accepted(request, compute, b"", 202)

    def _accepted(self, request: Request, compute: Compute, body: Any, status: int) -> Answer:
        id_ = uuid.uuid4().hex
        self._operations[id_] = compute
        url = (
            f"{self.server.address}/subscriptions/{request.words['sub']}{ML}/locations/westeurope/"
            f"computeOperationsStatus/{id_}?api-version={API}"
        )
        return Answer(body, status, {"Azure-AsyncOperation": url, "Retry-After": "1"})

    def _operation(self, request: Request) -> Any:
        compute = self._operations[request.words["op"]]
        if compute.state == "Failed":
            return {"id": request.path, "status": "Failed", **compute.errors[0]}
        return {"id": request.path, "status": "InProgress" if compute.state in _CHANGES else "Succeeded"}

    def settle(self) -> None:
        """End every change."""
        with self._lock:
            self._finish(0.0)

    def _finish(self, seconds: float) -> None:
        """End the changes that began so many seconds ago."""
        for key, compute in list(self.computes.items()):
            if compute.state not in _CHANGES or time.monotonic() - compute.since < seconds:
                continue
            if compute.state == "Deleting":
                del self.computes[key]
            compute.state = "Failed" if compute.errors else "Succeeded"
            if not compute.errors:
                self._set_nodes(compute, max(len(compute.nodes), compute.inner["scaleSettings"]["minNodeCount"]))

    # nodes ----------------------------------------------------------------------------------------

    def bring_up(self, name: str, count: int) -> None:
        """Let a compute have so many nodes."""
        with self._lock:
            self._set_nodes(next(compute for key, compute in self.computes.items() if key[2] == name), count)

    def _set_nodes(self, compute: Compute, count: int) -> None:
        compute.nodes = [
            {"nodeId": f"tvmps_{at:02d}_d", "port": 50000, "nodeState": "idle", "runId": None} for at in range(count)
        ]

    def _nodes(self, request: Request) -> Any:
        if (request.method == "GET") != ("$skip" in request.query):
            return refusal(405, "MethodNotAllowed", "listNodes takes POST; its next pages take GET.")
        return self._page(request, "nodes", self.computes[self._key(request)].nodes)


def missing(request: Request) -> Answer | None:
    """Return the error for a subscription, resource group or workspace that does not exist."""
    sub, group, ws = (request.words.get(name) for name in ("sub", "group", "ws"))
    if sub not in (None, SUBSCRIPTION):
        return refusal(404, "SubscriptionNotFound", f"The subscription '{sub}' could not be found.")
    if group is not None and group not in {group for group, _ in WORKSPACES}:
        return refusal(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")
    if ws is not None and (group, ws) not in WORKSPACES:
        path = f"Microsoft.MachineLearningServices/workspaces/{ws}"
        return refusal(404, "ResourceNotFound", f"The Resource '{path}' under resource group '{group}' was not found.")
    return None
