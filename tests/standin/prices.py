"""The Retail Prices API: no token, one filter whose words it checks, pages whose address names the port.

The amounts are made up; no real price stands here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote

from tests.standin.server import Answer, Request, Server, refusal

_FILTER = re.compile(
    r"serviceName eq 'Virtual Machines' and armRegionName eq '(?P<region>[a-z0-9]+)' and priceType eq 'Consumption'"
    r" and (?:armSkuName eq '(?P<size>Standard_\w+)'|contains\(armSkuName, '(?P<part>Standard_N)'\))"
)


def meter(size, amount, region="westeurope", currency="USD", series="NC", suffix="", **more):
    """Return one item as the API writes it; ``suffix`` is " Spot" or " Low Priority"."""
    plain = size.replace("_", " ")
    return {
        "currencyCode": currency, "tierMinimumUnits": 0.0, "retailPrice": amount, "unitPrice": amount,
        "armRegionName": region, "location": "EU West", "effectiveStartDate": "2026-08-01T00:00:00Z",
        "meterId": "00000000-0000-4000-8000-000000000000", "meterName": f"{plain}{suffix}",
        "productId": "DZH318Z0BQ35", "skuId": "DZH318Z0BQ35/001L", "productName": f"Virtual Machines {series} Series",
        "skuName": f"{plain}{suffix}", "serviceName": "Virtual Machines", "serviceId": "DZH313Z7MMC8",
        "serviceFamily": "Compute", "unitOfMeasure": "1 Hour", "type": "Consumption", "isPrimaryMeterRegion": True,
        "armSkuName": f"Standard_{size}", **more,
    }  # fmt: skip


@dataclass
class Prices:
    server: Server
    items: list = field(default_factory=list)
    page: int = 3
    refuses: tuple[int, str, str] | None = None

    def __post_init__(self) -> None:
        self.items = self.items or [
            meter("NC24ads_A100_v4", 3.5),
            meter("NC24ads_A100_v4", 6.25, productName="Virtual Machines NCads A100 v4 Series Windows"),
            meter("NC24ads_A100_v4", 0.75, suffix=" Spot"),
            meter("NC24ads_A100_v4", 0.875, suffix=" Low Priority"),
            meter("NC24ads_A100_v4", 1.0, type="DevTestConsumption"),
            meter("NC4as_T4_v3", 0.5),
            meter("NC4as_T4_v3", 0.25, region="eastus"),
            meter("NC48ads_A100_v4", 0.0),
            meter("ND96isr_H100_v5", 98.0, currency="EUR"),
        ]
        self.server.route("GET", "/api/retail/prices", self._answer)

    def _answer(self, request: Request) -> Answer:
        if self.refuses:
            return refusal(*self.refuses)
        if "authorization" in request.headers:
            return refusal(400, "BadRequest", "This service takes no token.")
        asked = _FILTER.fullmatch(request.query.get("$filter", ""))
        currency = re.fullmatch(r"'([A-Z]{3})'", request.query.get("currencyCode", ""))
        if asked is None or currency is None or request.query.get("api-version") != "2023-01-01-preview":
            return refusal(400, "BadRequest", f"{request.query} is no question for prices")
        found = [item for item in self.items if self._fits(item, asked, currency.group(1))]
        skip = int(request.query.get("$skip", "0"))
        return Answer({
            "BillingCurrency": currency.group(1), "CustomerEntityId": "Default", "CustomerEntityType": "Retail",
            "Items": found[skip : skip + self.page], "Count": min(self.page, len(found) - skip),
            "NextPageLink": self._next(request, skip + self.page) if skip + self.page < len(found) else None,
        })  # fmt: skip

    @staticmethod
    def _fits(item: dict, asked: re.Match, currency: str) -> bool:
        name = asked["size"] == item["armSkuName"] if asked["size"] else asked["part"] in item["armSkuName"]
        there = item["armRegionName"] == asked["region"] and item["currencyCode"] == currency
        return name and there and item["type"] == "Consumption"

    def _next(self, request: Request, skip: int) -> str:
        words = {**request.query, "$skip": str(skip)}
        query = "&".join(f"{name}={quote(value)}" for name, value in words.items())
        return f"{self.server.address}{request.path}?{query}"
