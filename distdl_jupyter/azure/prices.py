"""What machines cost in an hour, as the Retail Prices API says: for Linux, before tax and discounts, without a token.

Nothing is guessed: a meter that is not plainly the hourly one of a size, or two that differ, give no price. Every price
carries the region, the currency and the day on which it was asked for. Answers are kept in the user's cache.

The API: learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices. Filters are case sensitive;
Windows stands in ``productName``, "Spot" and "Low Priority" at the end of ``skuName`` and ``meterName``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from distdl_jupyter.azure import cache, settings
from distdl_jupyter.azure.rest import Rest
from distdl_jupyter.azure.vm_size import PREFIX
from distdl_jupyter.core.errors import AzureRefused, DistDLError, InvalidSpec

API_VERSION = "2023-01-01-preview"
SERVICE = "Retail Prices API"
#: Seconds after which a question without an answer is asked again.
_AGAIN = 300.0
Tier = Literal["dedicated", "low_priority", "spot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One node's price in an hour. ``size`` has no ``Standard_``; ``day`` is when it was asked for (ISO)."""

    size: str
    region: str
    tier: Tier
    per_hour: float
    currency: str
    day: str

    @property
    def source(self) -> str:
        """Who says so: ``Retail Prices API, westeurope, dedicated, 2026-11-20``."""
        kind = {"dedicated": "dedicated", "low_priority": "low priority", "spot": "Spot"}[self.tier]
        return f"{SERVICE}, {self.region}, {kind}, {self.day}"


def ask(size: str = "", region: str = "", currency: str = "") -> list[Price]:
    """Ask for the prices of one size, or of all GPU sizes, and keep them. Region and currency are else the settings'.

    Raises InvalidSpec without a region, AzureRefused.
    """
    region, currency = place(region, currency)
    address = settings.read().endpoints.prices
    if not address:
        raise AzureRefused(
            "This cloud has no Retail Prices API.",
            code="azure-no-retail-prices",
            hint="Set the price with price_per_hour.",
        )
    which = f"armSkuName eq '{_arm(size)}'" if size else f"contains(armSkuName, '{PREFIX}N')"
    wanted = (
        f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and priceType eq 'Consumption' and {which}"
    )
    service = Rest(address, None)
    items = list(service.pages("", API_VERSION, **{"currencyCode": f"'{currency}'", "$filter": wanted}))
    day = time.strftime("%Y-%m-%d")
    found = list(_prices(items, region, currency, day))
    _keep(found, region, currency, {_name(size)} if size else None)
    return found


def known(size: str, region: str = "", currency: str = "", *, low_priority: bool = False) -> Price | None:
    """Return the price of a size as it was last told, None when it was not, or no region is set. Asks nobody."""
    tier: Tier = "low_priority" if low_priority else "dedicated"
    try:
        found = _kept(*place(region, currency)).get(f"{_name(size)} {tier}".lower())
    except DistDLError:
        return None
    return Price(**found) if found else None


def place(region: str = "", currency: str = "") -> tuple[str, str]:
    """Return region and currency, from the settings where they are "". Raises InvalidSpec without a region."""
    own = settings.read()
    region, currency = (region or own.region).lower().replace(" ", ""), (currency or own.currency).upper()
    if not region.isalnum():
        raise InvalidSpec(
            "No Azure region is set, and prices depend on the region.",
            code="price-region-missing",
            field="region",
            hint="Example: %dist_config azure region=westeurope.",
        )
    if not (currency.isalpha() and len(currency) == 3):
        raise InvalidSpec(
            f"{currency!r} is not a currency code.",
            code="currency-invalid",
            field="currency",
            hint="Examples: USD, EUR, JPY.",
        )
    return region, currency


def _prices(items: Iterable[Mapping[str, Any]], region: str, currency: str, day: str) -> Iterator[Price]:
    found: dict[tuple[str, Tier], list[Mapping[str, Any]]] = {}
    for item in items:
        if _is_hourly(item, region, currency):
            found.setdefault((_name(str(item["armSkuName"])), _tier(item)), []).append(item)
    for (size, tier), meters in found.items():
        amount = _amount(meters)
        if amount is not None:
            yield Price(size=size, region=region, tier=tier, per_hour=amount, currency=currency, day=day)


def _is_hourly(item: Mapping[str, Any], region: str, currency: str) -> bool:
    """Say whether a meter is that of a Linux machine by the hour, for everybody, there and in that currency."""
    product = str(item.get("productName", "")).lower().replace(" ", "")
    return (
        item.get("unitOfMeasure") == "1 Hour"
        and item.get("type") == "Consumption"
        and item.get("armRegionName") == region
        and item.get("currencyCode") == currency
        and bool(item.get("armSkuName"))
        and not item.get("tierMinimumUnits")
        and not any(word in product for word in ("windows", "cloudservices", "dedicatedhost"))
    )


def _tier(item: Mapping[str, Any]) -> Tier:
    words = f"{item.get('skuName', '')} {item.get('meterName', '')}".lower()
    return "spot" if " spot" in words else "low_priority" if "low priority" in words else "dedicated"


def _amount(meters: list[Mapping[str, Any]]) -> float | None:
    """Return what the newest meters agree on; the primary ones go first. None when they differ, or cost nothing."""
    meters = [one for one in meters if one.get("isPrimaryMeterRegion", True)] or meters
    newest = max(str(one.get("effectiveStartDate", "")) for one in meters)
    amounts = {float(one["retailPrice"]) for one in meters if str(one.get("effectiveStartDate", "")) == newest}
    return amounts.pop() if len(amounts) == 1 and min(amounts) > 0 else None


def _keep(found: list[Price], region: str, currency: str, asked: set[str] | None) -> None:
    """Put new prices in the place of those that were asked for (None: all)."""
    before = {} if asked is None else dict(_kept(region, currency))
    now = {f"{price.size} {price.tier}".lower(): asdict(price) for price in found}
    dropped = {name.lower() for name in asked or ()}
    left = {key: value for key, value in before.items() if key.partition(" ")[0] not in dropped}
    cache.write("prices", _cloud(), region, currency, data={**left, **now})


def _kept(region: str, currency: str) -> Mapping[str, Any]:
    found = cache.read("prices", _cloud(), region, currency)
    return found.data if found else {}


def _cloud() -> str:
    return settings.read().endpoints.name


def _name(size: str) -> str:
    return size.removeprefix(PREFIX)


def _arm(size: str) -> str:
    return PREFIX + _name(size).replace("'", "")


@dataclass(slots=True)
class Look:
    """A price on its way: ``price`` when it is known, ``problem`` why it is not, ``looking`` while it is asked for."""

    price: Price | None = None
    problem: str = ""
    looking: bool = False


_lock = threading.Lock()
_questions: dict[tuple[str, str, str], tuple[float, threading.Thread, list[str]]] = {}


def look(size: str, region: str = "", *, low_priority: bool = False, timeout: float = 1.0) -> Look:
    """Return what is known of a size's price in a region (the settings' by default); ask in a thread when it is old.

    Waits ``timeout`` seconds at most. Without any region nothing is asked.
    """
    try:
        region, currency = place(region)
    except InvalidSpec as error:
        return Look(problem=str(error))
    thread, problems = _question(size, region, currency, low_priority=low_priority)
    if thread is not None:
        thread.join(timeout)
    price = known(size, region, currency, low_priority=low_priority)
    looking = thread is not None and thread.is_alive()
    return Look(price, "" if price or looking else " ".join(problems) or _none(size, region), looking)


def _none(size: str, region: str) -> str:
    return f"The {SERVICE} has no price for {_name(size)} in {region}."


def _question(
    size: str, region: str, currency: str, *, low_priority: bool
) -> tuple[threading.Thread | None, list[str]]:
    key = (_name(size), region, currency)
    price = known(size, region, currency, low_priority=low_priority)
    if price is not None and price.day == time.strftime("%Y-%m-%d"):
        return None, []
    with _lock:
        begun, thread, problems = _questions.get(key, (float("-inf"), None, []))
        if thread is None or (not thread.is_alive() and time.monotonic() - begun > _AGAIN):
            problems = []
            thread = threading.Thread(target=_ask, args=(*key, problems), name="distdl-price", daemon=True)
            _questions[key] = (time.monotonic(), thread, problems)
            thread.start()
    return thread, problems


def _ask(size: str, region: str, currency: str, problems: list[str]) -> None:
    try:
        ask(size, region, currency)
    except DistDLError as error:
        problems.append(str(error))
