"""What a job's nodes cost in an hour: as the user says, else as the Retail Prices API was known to say, else nothing.

Asks nobody; what is not known costs no number. Only clusters that bill have a price of their own accord.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.azure import prices, settings
from distdl_jupyter.core.errors import InvalidSpec

OWN = "set by you"
_FORM = re.compile(r"(\d+(?:[.,]\d+)?)\s*([A-Za-z]{3})?")


@dataclass(frozen=True, slots=True)
class Rate:
    """One node's price in an hour, in ``currency``; ``source`` says who says so."""

    per_hour: float
    currency: str
    source: str


def of_node(given: Any, size: str | None, *, bills: bool, tier: str = "") -> Rate | None:
    """Return what one node costs. ``given`` is the user's own price (3.5, "3.5 EUR"), which goes before all others.

    ``size`` is the VM size, ``bills`` whether the cluster costs money, ``tier`` a word such as "Spot" where nodes are
    not the usual ones: then no price is known. Raises InvalidSpec for a price that is none.
    """
    if given not in (None, ""):
        return own(given)
    if not bills or not size or tier.lower() in ("spot", "basic"):
        return None
    price = prices.known(size)
    return Rate(price.per_hour, price.currency, price.source) if price else None


def own(given: Any) -> Rate:
    """Return the price that a user gives for a node and hour: a number in the settings' currency, or "3.5 EUR".

    Raises InvalidSpec.
    """
    found = None if isinstance(given, bool) else _FORM.fullmatch(str(given).strip())
    amount = float(found.group(1).replace(",", ".")) if found else 0.0
    if found is None or amount <= 0:
        raise InvalidSpec(
            f"price_per_hour is {given!r}, but must be the price of one node per hour.",
            code="price-invalid",
            field="price_per_hour",
            hint='Examples: 3.5, "3.5 EUR".',
        )
    return Rate(amount, (found.group(2) or settings.read().currency).upper(), OWN)
