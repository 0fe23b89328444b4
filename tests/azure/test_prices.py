"""Prices are asked for in one question, kept with their day, and never guessed."""

from __future__ import annotations

import threading
import time

import pytest

from distdl_jupyter.azure import prices, settings
from distdl_jupyter.azure.rest import Rest
from distdl_jupyter.core.errors import AzureRefused, InvalidSpec
from tests.conftest import wait_for
from tests.standin.prices import Prices, meter


@pytest.fixture
def service(azure, tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
    prices._questions.clear()
    settings.change(region="West Europe")
    return Prices(azure.server)


def amounts(found):
    return {(price.size, price.tier): price.per_hour for price in found}


def test_one_size_has_its_linux_price_and_those_that_may_be_taken_away(service) -> None:
    found = amounts(prices.ask("Standard_NC24ads_A100_v4"))
    assert found == {
        ("NC24ads_A100_v4", "dedicated"): 3.5,
        ("NC24ads_A100_v4", "spot"): 0.75,
        ("NC24ads_A100_v4", "low_priority"): 0.875,
    }
    price = prices.known("NC24ads_A100_v4")
    assert price.source == f"Retail Prices API, westeurope, dedicated, {time.strftime('%Y-%m-%d')}"
    assert (price.currency, price.per_hour) == ("USD", 3.5)
    low = prices.known("Standard_NC24ads_A100_v4", low_priority=True)
    assert (low.per_hour, ", low priority," in low.source) == (0.875, True)


@pytest.mark.readme("prices")
def test_all_sizes_of_a_region_come_over_pages(service) -> None:
    found = amounts(prices.ask())
    assert found[("NC4as_T4_v3", "dedicated")] == 0.5
    assert len(service.server.asked("/api/retail/prices")) == 2
    assert ("NC48ads_A100_v4", "dedicated") not in found  # it costs nothing, so it is no price
    assert prices.known("ND96isr_H100_v5") is None  # another currency


@pytest.mark.parametrize(
    "change",
    [
        {"unitOfMeasure": "1 Day"},
        {"productName": "Virtual Machines NCads A100 v4 Series CloudServices"},
        {"productName": "NCadsA100v4 Dedicated Host"},
        {"tierMinimumUnits": 100.0},
        {"armRegionName": "northeurope"},
        {"currencyCode": "GBP"},
    ],
)
def test_what_is_not_plainly_the_hourly_price_is_none(change) -> None:
    items = [meter("NC24ads_A100_v4", 9.0, **change)]
    assert list(prices._prices(items, "westeurope", "USD", "2026-11-20")) == []


def test_two_meters_that_differ_give_no_price_and_the_newest_goes_first(service) -> None:
    service.items = [meter("NC4as_T4_v3", 0.5), meter("NC4as_T4_v3", 0.75)]
    assert prices.ask("NC4as_T4_v3") == []
    service.items = [meter("NC4as_T4_v3", 0.5), meter("NC4as_T4_v3", 0.75, effectiveStartDate="2026-10-01T00:00:00Z")]
    assert amounts(prices.ask("NC4as_T4_v3")) == {("NC4as_T4_v3", "dedicated"): 0.75}
    service.items.append(
        meter("NC4as_T4_v3", 0.9, isPrimaryMeterRegion=False, effectiveStartDate="2026-11-01T00:00:00Z")
    )
    assert amounts(prices.ask("NC4as_T4_v3")) == {("NC4as_T4_v3", "dedicated"): 0.75}


def test_a_new_answer_replaces_what_it_was_asked_for_and_leaves_the_rest(service) -> None:
    prices.ask()
    service.items = []
    prices.ask("NC4as_T4_v3")
    assert prices.known("NC4as_T4_v3") is None
    assert prices.known("NC24ads_A100_v4").per_hour == 3.5


def test_regions_and_currencies_are_kept_apart(service) -> None:
    prices.ask()
    assert prices.known("NC4as_T4_v3", "eastus") is None
    prices.ask("NC4as_T4_v3", "eastus")
    assert prices.known("NC4as_T4_v3", "eastus").per_hour == 0.25
    prices.ask(currency="eur")
    assert prices.known("ND96isr_H100_v5", currency="EUR").currency == "EUR"


def test_without_a_region_nothing_is_known_and_asking_says_what_to_set(service) -> None:
    settings.change(region="")
    assert prices.known("NC4as_T4_v3") is None
    with pytest.raises(InvalidSpec, match=r"No Azure region is set.*%dist_config azure region=westeurope"):
        prices.ask()
    assert "No Azure region is set" in prices.look("NC4as_T4_v3").problem
    settings.change(region="westeurope", currency="DOLLARS")
    with pytest.raises(InvalidSpec, match="currency"):
        prices.ask()


def test_a_look_waits_a_moment_and_knows_more_the_next_time(service) -> None:
    service.held = threading.Event()
    first = prices.look("NC4as_T4_v3", timeout=0.05)
    assert (first.price, first.looking, first.problem) == (None, True, "")
    service.held.set()
    found = wait_for(lambda: prices.look("NC4as_T4_v3").price)
    assert found.per_hour == 0.5
    prices.look("NC4as_T4_v3")
    assert len(service.server.asked("/api/retail/prices")) == 1


def test_a_price_that_nobody_tells_is_said_to_be_unknown_and_not_asked_for_again_at_once(service) -> None:
    for _ in range(2):
        look = prices.look("NC48ads_A100_v4", timeout=60)
        assert (look.price, look.looking) == (None, False)
        assert look.problem == "The Retail Prices API has no price for NC48ads_A100_v4 in westeurope."
    assert len(service.server.asked("/api/retail/prices")) == 1


def test_a_refusal_is_told_in_the_services_words(service) -> None:
    service.refuses = (400, "BadRequest", "Invalid filter.")
    with pytest.raises(AzureRefused, match=r"responded with 400 BadRequest: Invalid filter\."):
        prices.ask()
    assert "Invalid filter" in prices.look("NC4as_T4_v3", timeout=60).problem


def test_the_next_page_may_name_the_port_of_https() -> None:
    from distdl_jupyter.azure.rest import _host

    assert _host("https://prices.azure.com:443/api/retail/prices?$skip=100") == _host("https://prices.azure.com/x")
    with pytest.raises(AzureRefused, match="is not trusted with a token"):
        Rest("https://prices.azure.com", None).get("https://elsewhere.example/x")
