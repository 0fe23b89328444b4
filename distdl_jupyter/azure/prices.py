"""The price of a machine per hour: set by the user, or from the Retail Prices API for Linux, before tax.

A size whose hourly meters differ has no price. Fetched prices are cached for the user with their region, currency and
day. Requests contain no token.

The API: learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices. Filters are case sensitive;
Windows is in ``productName``, "Spot" and "Low Priority" are in ``skuName`` or ``meterName``.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from distdl_jupyter.azure import settings
from distdl_jupyter.azure.rest import RestClient
from distdl_jupyter.core import files
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.node.data_cache import get_default_base

SIZE_PREFIX = "Standard_"
API_VERSION = "2023-01-01-preview"
SERVICE_NAME = "Retail Prices API"
#: Seconds before a request that returned no price is sent again.
_RETRY_SECONDS = 300.0
#: (size, region, currency) -> the time of the next request (monotonic), and the reason for the missing price.
_problems: dict[tuple[str, str, str], tuple[float, str]] = {}
_PRICE_PATTERN = re.compile(r"(\d+(?:[.,]\d+)?)\s*([A-Za-z]{3})?")
#: Fields of hourly meters, and the pattern of the names of meters that are not for regular Linux machines.
_HOURLY_FIELDS = {"unitOfMeasure": "1 Hour", "type": "Consumption"}
_EXCLUDED = re.compile(r"windows|cloud ?services|dedicated ?host| spot|low priority")


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one node per hour and its source; ``day`` is the day of the request (ISO)."""

    per_hour: float
    currency: str
    source: str
    day: str = ""


def parse_price(price: Any) -> Price:
    """Return a price set by the user: a number in the currency of the settings, or "3.5 EUR". Raises InvalidSpec."""
    match = None if isinstance(price, bool) else _PRICE_PATTERN.fullmatch(str(price).strip())
    amount = float(match.group(1).replace(",", ".")) if match else 0.0
    if match is None or amount <= 0:
        raise InvalidSpec(
            f"price_per_hour is {price!r}, but must be the price of one node per hour.",
            code="price-invalid",
            field="price_per_hour",
            hint='Use a number, with a currency if needed, for example 3.5 or "3.5 EUR".',
        )
    return Price(amount, (match.group(2) or settings.read().currency).upper(), "set by you")


def fetch(size: str = "", region: str = "", currency: str = "") -> dict[str, Price]:
    """Fetch and cache the price of one size, or of all GPU sizes. Region and currency default to the settings.

    Raises InvalidSpec if no region is set, and AzureRefused if a request fails.
    """
    region, currency = resolve_region(region, currency)
    name = size.removeprefix(SIZE_PREFIX).replace("'", "")
    sizes = f"armSkuName eq '{SIZE_PREFIX}{name}'" if size else f"contains(armSkuName, '{SIZE_PREFIX}N')"
    query = (
        f"serviceName eq 'Virtual Machines' and armRegionName eq '{region}' and priceType eq 'Consumption' and {sizes}"
    )
    service = RestClient(settings.read().endpoints.prices, None, retries=1)
    items = service.iter_items("", API_VERSION, **{"currencyCode": f"'{currency}'", "$filter": query})
    prices = select_prices(items, region, currency, time.strftime("%Y-%m-%d"))
    other_prices = {key: price for key, price in _load_cache(region, currency).items() if size and key != name.lower()}
    with contextlib.suppress(OSError):
        files.write_json(_get_cache_file(region, currency), msgspec.to_builtins({**other_prices, **prices}))
    return prices


def find_cached(size: str, region: str = "", currency: str = "") -> Price | None:
    """Return the cached price of a size, or None if it is not cached or no region is set. Sends no request."""
    with contextlib.suppress(DistDLError):
        return _load_cache(*resolve_region(region, currency)).get(size.removeprefix(SIZE_PREFIX).lower())
    return None


def look_up(size: str, region: str = "") -> tuple[Price | None, str]:
    """Return the price of a size in a region (default: from the settings) and "", or None and the reason.

    A price is fetched once a day. A request that returned none is repeated after ``_RETRY_SECONDS``.
    """
    try:
        key = (size, *resolve_region(region))
    except DistDLError as error:
        return None, str(error)
    price, (retry_at, problem) = find_cached(size, region), _problems.get(key, (0.0, ""))
    if (price is None or price.day != time.strftime("%Y-%m-%d")) and time.monotonic() > retry_at:
        problem = f"The {SERVICE_NAME} has no price for {size.removeprefix(SIZE_PREFIX)} in {key[1]}."
        try:
            fetch(*key)
        except DistDLError as error:
            problem = str(error)
        _problems[key] = time.monotonic() + _RETRY_SECONDS, problem
        price = find_cached(size, region)
    return price, "" if price else problem


def resolve_region(region: str = "", currency: str = "") -> tuple[str, str]:
    """Return region and currency, with the settings as defaults. Raises InvalidSpec if no region is set."""
    defaults = settings.read()
    region, currency = (region or defaults.region).lower().replace(" ", ""), (currency or defaults.currency).upper()
    if not (region.isalnum() and currency.isalpha() and len(currency) == 3):
        raise InvalidSpec(
            "Prices need a valid Azure region and currency.",
            code="price-region-missing",
            field="region",
            hint="Set them with: %dist_config azure region=westeurope currency=EUR",
        )
    return region, currency


def select_prices(items: Iterable[Mapping[str, Any]], region: str, currency: str, day: str) -> dict[str, Price]:
    """Return the prices by lower-case size name; a size whose newest Linux meters differ has none."""
    expected = {**_HOURLY_FIELDS, "armRegionName": region, "currencyCode": currency}
    #: The amounts of each size by the day from which they are valid.
    amounts: dict[str, dict[str, set[float]]] = {}
    for item in items:
        text = f"{item.get('productName')} {item.get('skuName')} {item.get('meterName')}".lower()
        is_other = _EXCLUDED.search(text) or item.get("tierMinimumUnits") or not item.get("isPrimaryMeterRegion", True)
        if (size := str(item.get("armSkuName", ""))) and not is_other and expected.items() <= item.items():
            amounts_by_day = amounts.setdefault(size.removeprefix(SIZE_PREFIX).lower(), {})
            amounts_by_day.setdefault(str(item.get("effectiveStartDate", "")), set()).add(float(item["retailPrice"]))
    newest = {size: amounts_by_day[max(amounts_by_day)] for size, amounts_by_day in amounts.items()}
    source = f"{SERVICE_NAME}, {region}, {day}"
    prices = {size: min(costs) for size, costs in newest.items() if len(costs) == 1}
    return {size: Price(amount, currency, source, day) for size, amount in prices.items() if amount}


def _get_cache_file(region: str, currency: str) -> Path:
    cloud = re.sub(r"\W+", "_", settings.read().endpoints.name)
    return get_default_base() / "azure" / f"prices-{cloud}-{region}-{currency}.json"


def _load_cache(region: str, currency: str) -> dict[str, Price]:
    try:
        return msgspec.json.decode(_get_cache_file(region, currency).read_bytes(), type=dict[str, Price])
    except (OSError, ValueError):
        return {}
