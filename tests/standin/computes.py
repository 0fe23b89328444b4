"""The resource manager's part for machines: subscriptions, workspaces, compute clusters and their nodes.

The shapes are those of the REST API's models (azure-ai-ml's arm_ml_service client) for AmlCompute. A change goes on
after it was accepted until ``settle()``, or by itself after ``seconds``; nodes come up when ``bring_up`` says so.
"""

from __future__ import annotations

import threading
import time
import uuid
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
_SETTABLE = {"osType", "vmSize", "vmPriority", "scaleSettings", "remoteLoginPortPublicAccess", "enableNodePublicIp"}


@dataclass
class Compute:
    body: dict[str, Any]
    state: str = "Creating"
    since: float = field(default_factory=time.monotonic)
    errors: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    operation: str = ""

    @property
    def inner(self) -> dict[str, Any]:
        return self.body["properties"]["properties"]


class Computes:
    """``refuse`` holds (method, answer) pairs that are used up one by one; ``quota`` are vCPUs by VM family."""

    def __init__(self, server: Server, login: Any, *, seconds: float = 0.0) -> None:
        self.server, self.login, self.seconds = server, login, seconds
        self.subscriptions = {SUBSCRIPTION: "Research"}
        self.sizes = {"Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4", "Standard_DS3_v2", "Standard_ND96asr_v4"}
        self.computes: dict[tuple[str, str, str], Compute] = {}
        self.refuse: list[tuple[str, Answer]] = []
        #: The size whose family has no quota: making it is accepted, and fails afterwards as Azure does it.
        self.without_quota: set[str] = set()
        self.operations: dict[str, tuple[str, Compute | None]] = {}
        self._lock = threading.RLock()
        for method, pattern, handler in (
            ("GET", "/subscriptions", self._subscriptions),
            ("GET", rf"/subscriptions/(?P<sub>[^/]+){ML}/workspaces", self._all_workspaces),
            ("GET", rf"/subscriptions/(?P<sub>[^/]+){ML}/locations/[^/]+/computeOperationsStatus/(?P<op>[^/]+)",
             self._operation),
            ("GET", WORKSPACE, self._workspace),
            ("GET", rf"{WORKSPACE}/computes", self._list),
            ("GET", _COMPUTE, self._get),
            ("PUT", _COMPUTE, self._put),
            ("DELETE", _COMPUTE, self._delete),
            ("POST", rf"{_COMPUTE}/listNodes", self._nodes),
            ("GET", rf"{_COMPUTE}/listNodes", self._nodes),  # the pages after the first, as the service's SDK asks
        ):  # fmt: skip
            server.route(method, pattern, self._locked(handler))

    def _locked(self, handler: Any) -> Any:
        def answer(request: Request) -> Any:
            with self._lock:
                self._pass_time()
                return self._refused(request) or handler(request)

        return answer

    def _refused(self, request: Request) -> Answer | None:
        if not self.login.bearer(request, self.server.address):
            return refusal(401, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
        if "api-version" not in request.query:
            return refusal(
                400, "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required."
            )
        for at, (method, answer) in enumerate(self.refuse):
            if method == request.method:
                del self.refuse[at]
                return answer
        return None

    # what there is --------------------------------------------------------------------------------

    def _subscriptions(self, _request: Request) -> Any:
        found = self.subscriptions.items()
        return {"value": [{"id": f"/subscriptions/{id_}", "subscriptionId": id_, "displayName": name,
                           "state": "Enabled"} for id_, name in found]}  # fmt: skip

    def _all_workspaces(self, request: Request) -> Any:
        sub = request.words["sub"]
        if refused := missing(request):
            return refused
        found = [self._workspace_body(sub, *key) for key in WORKSPACES]
        at = int(request.query.get("$skip", 0))
        # Pages of two: a reader that takes the first page for all is found out.
        more = {"nextLink": f"{self.server.address}{request.path}?api-version={API}&$skip={at + 2}"}
        return {"value": found[at : at + 2], **(more if len(found) > at + 2 else {})}

    def _workspace_body(self, sub: str, group: str, name: str) -> dict[str, Any]:
        properties = {"friendlyName": name, "provisioningState": "Succeeded",
                      "discoveryUrl": f"{self.server.address}/discovery/{uuid.uuid4()}"}  # fmt: skip
        return {"id": f"/subscriptions/{sub}/resourceGroups/{group}{ML}/workspaces/{name}", "name": name,
                "location": WORKSPACES[group, name], "type": "Microsoft.MachineLearningServices/workspaces",
                "kind": "Default", "properties": properties}  # fmt: skip

    def _workspace(self, request: Request) -> Any:
        return missing(request) or self._workspace_body(*(request.words[name] for name in ("sub", "group", "ws")))

    # computes -------------------------------------------------------------------------------------

    def _key(self, request: Request) -> tuple[str, str, str]:
        return request.words["group"], request.words["ws"], request.words["name"]

    def _list(self, request: Request) -> Any:
        if refused := missing(request):
            return refused
        mine = (request.words["group"], request.words["ws"])
        found = [self._body(request, key) for key in self.computes if key[:2] == mine]
        instance = {"id": "x", "name": "my-laptop", "location": "westeurope",
                    "properties": {"computeType": "ComputeInstance", "provisioningState": "Succeeded",
                                   "properties": {"vmSize": "STANDARD_DS3_V2"}}}  # fmt: skip
        return {"value": [*found, instance]}

    def _get(self, request: Request) -> Any:
        return missing(request) or self._gone(request) or self._body(request, self._key(request))

    def _gone(self, request: Request) -> Answer | None:
        if self._key(request) in self.computes:
            return None
        return refusal(404, "ResourceNotFound", f"Resource {request.words['name']} of type computes not found.")

    def _body(self, request: Request, key: tuple[str, str, str]) -> dict[str, Any]:
        one = self.computes[key]
        inner = {**one.inner, "vmSize": one.inner["vmSize"].upper(), "allocationState": "Steady", "errors": []}
        sub = request.words["sub"]
        return {"id": f"/subscriptions/{sub}/resourceGroups/{key[0]}{ML}/workspaces/{key[1]}/computes/{key[2]}",
                "name": key[2], "location": one.body["location"],
                "properties": {"computeType": "AmlCompute", "provisioningState": one.state,
                               "provisioningErrors": one.errors or None, "properties": inner}}  # fmt: skip

    def _put(self, request: Request) -> Any:
        if refused := missing(request):
            return refused
        if wrong := self._wrong(request):
            return wrong
        one, old = Compute(request.json), self.computes.get(self._key(request))
        if old is not None:
            one.state, one.nodes = "Updating", old.nodes
        self.computes[self._key(request)] = one
        if one.inner["vmSize"] in self.without_quota:
            one.errors = [{"error": {
                "code": "ClusterCoreQuotaReached",
                "message": "The specified subscription has a Standard NCASv3_T4 family vCPU quota of 0 and cannot "
                "accomodate for at least 1 requested managed compute nodes which maps to 4 vCPUs.",
            }}]  # fmt: skip
        return self._accepted(request, one, self._body(request, self._key(request)), 201)

    def _wrong(self, request: Request) -> Answer | None:
        body, name = request.json, request.words["name"]
        inner = body["properties"]["properties"]
        where = WORKSPACES[request.words["group"], request.words["ws"]]
        if set(body) - {"location", "identity", "properties", "tags"} or set(inner) - _SETTABLE:
            return refusal(400, "BadRequest", f"Could not find member in {sorted(inner)}.")
        if body["properties"].get("computeType") != "AmlCompute":
            return refusal(400, "BadRequest", "computeType is missing")
        if not 3 <= len(name) <= 24:
            return refusal(400, "BadArgument", "Compute name is invalid. It can include letters, digits and dashes.")
        if body.get("location") != where:
            return refusal(400, "BadRequest", f"Location {body.get('location')} is not {where}.")
        if inner["vmSize"].lower() not in map(str.lower, self.sizes):
            return refusal(400, "BadRequest", f"The specified Azure ML Compute VM size {inner['vmSize']} is not "
                           f"supported in {where}.")  # fmt: skip
        scale = inner["scaleSettings"]
        if set(scale) != {"minNodeCount", "maxNodeCount", "nodeIdleTimeBeforeScaleDown"}:
            return refusal(400, "BadRequest", f"scaleSettings has {sorted(scale)}")
        return None

    def _delete(self, request: Request) -> Any:
        if missing(request) or self._gone(request):
            return Answer(status=204)
        if request.query.get("underlyingResourceAction") != "Delete":
            return refusal(400, "BadRequest", "underlyingResourceAction must be Delete or Detach.")
        one = self.computes[self._key(request)]
        one.state, one.since = "Deleting", time.monotonic()
        return self._accepted(request, one, b"", 202)

    def _accepted(self, request: Request, one: Compute, body: Any, status: int) -> Answer:
        id_ = one.operation = uuid.uuid4().hex
        self.operations[id_] = ("InProgress", one)
        url = (f"{self.server.address}/subscriptions/{request.words['sub']}{ML}/locations/westeurope/"
               f"computeOperationsStatus/{id_}?api-version={API}")  # fmt: skip
        return Answer(body, status, {"Azure-AsyncOperation": url, "Retry-After": "1"})

    def _operation(self, request: Request) -> Any:
        status, one = self.operations[request.words["op"]]
        found = {"id": request.path, "status": status}
        return {**found, "error": one.errors[0]["error"]} if status == "Failed" and one is not None else found

    def _pass_time(self) -> None:
        for one in self.computes.values():
            if one.state in ("Creating", "Updating", "Deleting") and time.monotonic() - one.since >= self.seconds:
                self._end(one)
        self.computes = {key: one for key, one in self.computes.items() if one.state != "Deleted"}

    def settle(self) -> None:
        """Bring every change to its end."""
        with self._lock:
            for one in self.computes.values():
                self._end(one)
            self.computes = {key: one for key, one in self.computes.items() if one.state != "Deleted"}

    def _end(self, one: Compute) -> None:
        words = {"Creating": "Failed" if one.errors else "Succeeded", "Updating": "Succeeded", "Deleting": "Deleted"}
        one.state = words.get(one.state, one.state)
        self.operations[one.operation] = ("Failed" if one.state == "Failed" else "Succeeded", one)
        if one.state == "Succeeded":
            self.bring_up(one, max(len(one.nodes), one.inner["scaleSettings"]["minNodeCount"]))

    # nodes ----------------------------------------------------------------------------------------

    def bring_up(self, one: Compute | str, count: int, state: str = "idle") -> None:
        """Let a compute have so many nodes, new ones in this state."""
        with self._lock:
            if isinstance(one, str):
                one = next(found for key, found in self.computes.items() if key[2] == one)
            del one.nodes[count:]
            while len(one.nodes) < count:
                at = len(one.nodes)
                one.nodes.append({"nodeId": f"tvmps_{at:02d}_d", "privateIpAddress": f"10.0.0.{4 + at}",
                                  "publicIpAddress": "", "port": 50000, "nodeState": state, "runId": None})  # fmt: skip

    def _nodes(self, request: Request) -> Any:
        if gone := missing(request) or self._gone(request):
            return gone
        if (request.method == "GET") != ("$skip" in request.query):
            return refusal(405, "MethodNotAllowed", "listNodes takes POST; its next pages take GET.")
        nodes = self.computes[self._key(request)].nodes
        at = int(request.query.get("$skip", 0))
        more = {"nextLink": f"{self.server.address}{request.path}?api-version={API}&$skip={at + 2}"}
        return {"nodes": nodes[at : at + 2], **(more if len(nodes) > at + 2 else {})}


def missing(request: Request) -> Answer | None:
    """Return the error for a subscription, resource group or workspace that does not exist."""
    sub, group, ws = (request.words.get(name) for name in ("sub", "group", "ws"))
    if sub not in (None, SUBSCRIPTION):
        return refusal(404, "SubscriptionNotFound", f"The subscription '{sub}' could not be found.")
    if group is not None and group not in {group for group, _ in WORKSPACES}:
        return refusal(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")
    if ws is not None and (group, ws) not in WORKSPACES:
        return refusal(404, "ResourceNotFound", f"The Resource 'Microsoft.MachineLearningServices/workspaces/{ws}' "
                       f"under resource group '{group}' was not found.")  # fmt: skip
    return None
