"""What Azure itself says of its GPU sizes in one region for one subscription: the Resource SKUs API, and quotas.

``refresh`` asks and keeps the answer in the user's cache; ``known`` reads what is kept. The list is read from the REST
interface, because tools leave out what a subscription may not rent, and that is what people need to see.

The API: learn.microsoft.com/rest/api/compute/resource-skus/list. Only ``location`` can be filtered by. A restriction of
type Location keeps a size from being rented in the region, one of type Zone only from being placed in some zones.
Quotas of Azure Machine Learning and of virtual machines are separate; a limit of -1 means none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from distdl_jupyter.azure import cache, identity, settings
from distdl_jupyter.azure.rest import Rest
from distdl_jupyter.azure.vm_size import ML_QUOTA, PREFIX, VM_QUOTA, Quota
from distdl_jupyter.core.errors import AzureRefused, DistDLError, InvalidSpec, NotSignedIn

API_VERSION = "2021-07-01"
SERVICE = "Resource SKUs API"
#: (service, provider, api-version) of the two lists of quotas.
_USAGES = (
    (ML_QUOTA, "Microsoft.MachineLearningServices", "2023-04-01"),
    (VM_QUOTA, "Microsoft.Compute", "2023-09-01"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """One GPU size as the API tells it; None means that it does not say. ``gpus`` is text: "4", perhaps "0.5".

    ``restriction`` is the reason's code ("NotAvailableForSubscription") where the whole region is barred.
    """

    name: str
    family: str
    vcpus: int | None
    ram_gib: int | None
    gpus: str
    rdma: bool | None
    arm_host: bool
    zones: tuple[str, ...]
    restriction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region's GPU sizes on one day (ISO) for one subscription; quotas by the family's name in small letters."""

    name: str
    day: str
    subscription: str
    skus: Mapping[str, Sku]
    quotas: Mapping[str, tuple[Quota, ...]]

    @property
    def source(self) -> str:
        """Who says so: ``Resource SKUs API, westeurope, 2026-11-20``."""
        return f"{SERVICE}, {self.name}, {self.day}"


def refresh(region: str = "") -> Region:
    """Ask Azure for the GPU sizes and quotas of a region (else that of the settings) and keep the answer.

    Raises InvalidSpec without a region, NotSignedIn, AzureRefused.
    """
    region = _region(region)
    subscription = _subscription()
    service = identity.rest()
    listed = service.pages(
        f"/subscriptions/{subscription}/providers/Microsoft.Compute/skus",
        API_VERSION,
        **{"$filter": f"location eq '{region}'"},
    )
    skus = [asdict(sku) for sku in _skus(listed, region)]
    if not skus:
        raise AzureRefused(
            f"Azure lists no GPU sizes for the region {region!r}.",
            code="azure-no-gpu-sizes",
            hint="Check the name of the region. To list all regions, run: az account list-locations",
        )
    data = {"subscription": subscription, "skus": skus, "quotas": _quotas(service, subscription, region)}
    return _region_of(region, cache.write("skus", region, data=data))


def known(region: str = "") -> Region | None:
    """Return what a region's answer was when it was last asked for, None when it was not. Asks nobody.

    None too when the settings name another subscription since or cannot be read, and when there is no region.
    """
    try:
        own = settings.read()
    except DistDLError:
        return None
    region = (region or own.region).lower().replace(" ", "")
    found = cache.read("skus", region) if region else None
    if found is None or (own.subscription_id and own.subscription_id != found.data["subscription"]):
        return None
    return _region_of(region, found)


def _region(region: str) -> str:
    region = (region or settings.read().region).lower().replace(" ", "")
    if not region.isalnum():
        raise InvalidSpec(
            "No Azure region is set.",
            code="sku-region-missing",
            field="region",
            hint="Example: %dist_config azure region=westeurope.",
        )
    return region


def _subscription() -> str:
    if own := settings.read().subscription_id:
        return own
    account = identity.account()
    if account is None:
        identity.credential()
        raise NotSignedIn("Azure did not issue a token.", code="azure-no-account", hint=identity.HOW)
    if account.subscription:
        return account.subscription
    first = next(iter(identity.rest().pages("/subscriptions", "2022-12-01")), None)
    if first is None:
        raise AzureRefused(
            "Your account has no subscription in this tenant.",
            code="azure-no-subscription",
            hint="Sign in to another tenant, or set subscription_id.",
        )
    return str(first["subscriptionId"])


def _skus(listed: Iterable[Mapping[str, Any]], region: str) -> Iterator[Sku]:
    for item in listed:
        can = {one["name"]: one["value"] for one in item.get("capabilities") or ()}
        if item.get("resourceType") != "virtualMachines" or float(can.get("GPUs") or 0) <= 0:
            continue
        yield Sku(
            name=str(item["name"]).removeprefix(PREFIX),
            family=str(item.get("family") or ""),
            vcpus=_whole(can.get("vCPUs")),
            ram_gib=_whole(can.get("MemoryGB")),
            gpus=str(can["GPUs"]),
            rdma={"true": True, "false": False}.get(str(can.get("RdmaEnabled")).lower()),
            arm_host=str(can.get("CpuArchitectureType")).lower() == "arm64",
            zones=_zones(item, region),
            restriction=_restriction(item, region),
        )


def _whole(text: str | None) -> int | None:
    return None if text is None else round(float(text))


def _zones(item: Mapping[str, Any], region: str) -> tuple[str, ...]:
    """Return the availability zones that have it, without those that are barred."""
    there = {zone for one in item.get("locationInfo") or () for zone in one.get("zones") or () if _is(one, region)}
    barred = {zone for one in item.get("restrictions") or () if one.get("type") == "Zone"
              for zone in (one.get("restrictionInfo") or {}).get("zones") or ()}  # fmt: skip
    return tuple(sorted(there - barred))


def _is(info: Mapping[str, Any], region: str) -> bool:
    return str(info.get("location", "")).lower() == region


def _restriction(item: Mapping[str, Any], region: str) -> str:
    for one in item.get("restrictions") or ():
        places = {*(one.get("values") or ()), *((one.get("restrictionInfo") or {}).get("locations") or ())}
        if one.get("type") == "Location" and region in {place.lower() for place in places}:
            return str(one.get("reasonCode") or "restricted")
    return ""


def _quotas(service: Rest, subscription: str, region: str) -> dict[str, list[dict[str, Any]]]:
    """Return quotas by family; a service that does not tell them leaves its own out."""
    found: dict[str, list[dict[str, Any]]] = {}
    for owner, provider, version in _USAGES:
        path = f"/subscriptions/{subscription}/providers/{provider}/locations/{region}/usages"
        with contextlib.suppress(AzureRefused):
            for one in service.pages(path, version):
                family = str((one.get("name") or {}).get("value", "")).lower()
                found.setdefault(family, []).append(asdict(_quota(owner, one)))
    return found


def _quota(owner: str, item: Mapping[str, Any]) -> Quota:
    limit = int(item.get("limit") or 0)
    low = "lowpriority" in str(item.get("type", "")).lower()
    return Quota(service=owner, used=int(item.get("currentValue") or 0), limit=None if limit < 0 else limit,
                 low_priority=low)  # fmt: skip


def _region_of(region: str, found: cache.Kept) -> Region:
    skus = [Sku(**{**one, "zones": tuple(one["zones"])}) for one in found.data["skus"]]
    return Region(
        name=region,
        day=found.day,
        subscription=found.data["subscription"],
        skus={sku.name.lower(): sku for sku in skus},
        quotas={family: tuple(Quota(**one) for one in many) for family, many in found.data["quotas"].items()},
    )
