"""Sizes and quotas of a region: the Resource SKUs API, and the usages of machines and of Azure Machine Learning.

It checks token, api-version and the one filter there is, and gives its list in pages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.standin.login import Login
from tests.standin.server import Answer, Request, Server, refusal

SUBSCRIPTION = "11111111-0000-4000-8000-00000000000a"


def sku(name, family, region, restrictions=(), zones=("1", "2"), **capabilities):
    """Return one size as the API writes it; values of capabilities are text."""
    return {
        "resourceType": "virtualMachines", "name": f"Standard_{name}", "tier": "Standard", "size": name,
        "family": family, "locations": [region],
        "locationInfo": [{"location": region, "zones": list(zones), "zoneDetails": []}],
        "capabilities": [{"name": key, "value": str(value)} for key, value in capabilities.items()],
        "restrictions": list(restrictions),
    }  # fmt: skip


def barred(region, kind="Location", zones=(), reason="NotAvailableForSubscription"):
    return {
        "type": kind, "values": [region], "reasonCode": reason,
        "restrictionInfo": {"locations": [region], **({"zones": list(zones)} if zones else {})},
    }  # fmt: skip


def usage(family, used, limit, kind=""):
    return {"unit": "Count", "currentValue": used, "limit": limit, **({"type": kind} if kind else {}),
            "name": {"value": family, "localizedValue": family}}  # fmt: skip


@dataclass
class Skus:
    server: Server
    login: Login
    region: str = "westeurope"
    skus: list = field(default_factory=list)
    #: Usages of machines, and of Azure Machine Learning; None answers 403.
    compute: list | None = field(default_factory=list)
    learning: list | None = field(default_factory=list)
    #: Answered instead of everything: (status, code, text).
    refuses: tuple[int, str, str] | None = None

    def __post_init__(self) -> None:
        a100, region = "StandardNCADSA100v4Family", self.region
        self.skus = self.skus or [
            {"resourceType": "disks", "name": "Premium_LRS", "locations": [region], "capabilities": []},
            sku("D4s_v5", "standardDSv5Family", region, vCPUs=4, MemoryGB=16),
            sku("NC24ads_A100_v4", a100, region, vCPUs=24, MemoryGB=220, GPUs=1, RdmaEnabled=True),
            sku("NC48ads_A100_v4", a100, region, (barred(region, "Zone", ("2",)),), vCPUs=48, MemoryGB=440, GPUs=2),
            sku("NC4as_T4_v3", "Standard NCASv3_T4 Family", region, vCPUs=4, MemoryGB=28, GPUs=1, RdmaEnabled=False),
            sku("ND96isr_H100_v5", "standardNDSH100v5Family", region, (barred(region),), zones=(), vCPUs=96,
                MemoryGB=1900, GPUs=8, RdmaEnabled=True),
            sku("ND999isr_H200_v9", "standardNDv9Family", region, vCPUs=999, MemoryGB=3000.5, GPUs=8,
                RdmaEnabled=True, CpuArchitectureType="Arm64"),
        ]  # fmt: skip
        dedicated = "Microsoft.MachineLearningServices/vmFamily/dedicatedCores/usages"
        low = "Microsoft.MachineLearningServices/vmFamily/lowPriorityCores/usages"
        self.compute = [usage(a100.lower(), 24, 100), usage("standardNDSH100v5Family", 0, 0)]
        self.learning = [usage("standardNCADSA100v4Family", 0, 24, dedicated),
                         usage("standardNCADSA100v4Family", 0, -1, low)]  # fmt: skip
        provider = r"/subscriptions/(?P<subscription>[^/]+)/providers/(?P<provider>[^/]+)"
        self.server.route("GET", rf"{provider}/skus", self._skus)
        self.server.route("GET", rf"{provider}/locations/(?P<region>[^/]+)/usages", self._usages)
        self.server.route("GET", "/subscriptions", self._subscriptions)

    def _wrong(self, request: Request, version: str) -> Answer | None:
        if self.refuses:
            return refusal(*self.refuses)
        if self.login.bearer(request, self.server.address) is None:
            return refusal(401, "InvalidAuthenticationToken", "The access token is missing or wrong.")
        if request.query.get("api-version") != version:
            return refusal(400, "InvalidApiVersionParameter", f"not {request.query.get('api-version')}")
        return None

    def _subscriptions(self, request: Request) -> Answer:
        listed = [{"subscriptionId": SUBSCRIPTION, "displayName": "Research"}]
        return self._wrong(request, "2022-12-01") or Answer({"value": listed})

    def _skus(self, request: Request) -> Answer:
        if wrong := self._wrong(request, "2021-07-01"):
            return wrong
        if request.words["subscription"] != SUBSCRIPTION or request.words["provider"] != "Microsoft.Compute":
            return refusal(404, "SubscriptionNotFound", "There is no such subscription.")
        page = int(request.query.get("$skiptoken", "0"))
        asked = re.fullmatch(r"location eq '([a-z0-9]+)'", request.query.get("$filter", ""))
        if asked is None:
            return refusal(400, "InvalidFilterInQueryString", f"{request.query.get('$filter')} is no filter")
        found = self.skus if asked.group(1) == self.region else []
        shown = found[page * 4 : page * 4 + 4]
        more = (page + 1) * 4 < len(found)
        following = (f"{self.server.address}{request.path}?api-version=2021-07-01&$filter=location%20eq%20"
                     f"'{self.region}'&$skiptoken={page + 1}")  # fmt: skip
        return Answer({"value": shown, **({"nextLink": following} if more else {})})

    def _usages(self, request: Request) -> Answer:
        learning = request.words["provider"] == "Microsoft.MachineLearningServices"
        if wrong := self._wrong(request, "2023-04-01" if learning else "2023-09-01"):
            return wrong
        listed = self.learning if learning else self.compute
        if listed is None:
            return refusal(403, "AuthorizationFailed", "The client has no authorization to read usages.")
        return Answer({"value": listed})
