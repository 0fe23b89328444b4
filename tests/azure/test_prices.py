"""Prices are asked for in one question, kept with their day, and never guessed."""

from __future__ import annotations

import time

import pytest

from distdl_jupyter.azure import prices, settings
from distdl_jupyter.azure.rest import RestClient
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import AzureRefused, InvalidSpec
from distdl_jupyter.jobs import jobspec
from tests.standin.prices import Prices, meter


@pytest.fixture
def service(azure, tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
    prices._problems.clear()
    settings.change(region="West Europe")
    return Prices(azure.server)


def amounts(found):
    return {size: price.per_hour for size, price in found.items()}


def test_one_size_has_its_linux_price_of_nodes_that_stay(service) -> None:
    assert amounts(prices.fetch("Standard_NC24ads_A100_v4")) == {"nc24ads_a100_v4": 3.5}
    price = prices.find_cached("NC24ads_A100_v4")
    assert price.source == f"Retail Prices API, westeurope, {time.strftime('%Y-%m-%d')}"
    assert (price.currency, price.per_hour) == ("USD", 3.5)


@pytest.mark.readme("prices")
def test_all_sizes_of_a_region_come_over_pages(service) -> None:
    found = amounts(prices.fetch())
    assert found["nc4as_t4_v3"] == 0.5
    assert len(service.server.asked("/api/retail/prices")) >= 2
    assert "nc48ads_a100_v4" not in found  # it costs nothing, so it is no price
    assert prices.find_cached("ND96isr_H100_v5") is None  # another currency


@pytest.mark.parametrize(
    "change",
    [
        {"unitOfMeasure": "1 Day"},
        {"productName": "Virtual Machines NCads A100 v4 Series CloudServices"},
        {"productName": "NCadsA100v4 Dedicated Host"},
        {"tierMinimumUnits": 100.0},
        {"armRegionName": "northeurope"},
        {"currencyCode": "GBP"},
        {"isPrimaryMeterRegion": False},
    ],
)
def test_what_is_not_plainly_the_hourly_price_is_none(change) -> None:
    items = [meter("NC24ads_A100_v4", 9.0, **change)]
    assert prices.select_prices(items, "westeurope", "USD", "2026-11-20") == {}


def test_two_meters_that_differ_give_no_price_and_the_newest_goes_first(service) -> None:
    service.items = [meter("NC4as_T4_v3", 0.5), meter("NC4as_T4_v3", 0.75)]
    assert prices.fetch("NC4as_T4_v3") == {}
    service.items = [meter("NC4as_T4_v3", 0.5), meter("NC4as_T4_v3", 0.75, effectiveStartDate="2026-10-01T00:00:00Z")]
    assert amounts(prices.fetch("NC4as_T4_v3")) == {"nc4as_t4_v3": 0.75}


def test_a_new_answer_replaces_what_it_was_asked_for_and_leaves_the_rest(service) -> None:
    prices.fetch()
    service.items = []
    prices.fetch("NC4as_T4_v3")
    assert prices.find_cached("NC4as_T4_v3") is None
    assert prices.find_cached("NC24ads_A100_v4").per_hour == 3.5


def test_regions_and_currencies_are_kept_apart(service) -> None:
    prices.fetch()
    assert prices.find_cached("NC4as_T4_v3", "eastus") is None
    prices.fetch("NC4as_T4_v3", "eastus")
    assert prices.find_cached("NC4as_T4_v3", "eastus").per_hour == 0.25
    prices.fetch(currency="eur")
    assert prices.find_cached("ND96isr_H100_v5", currency="EUR").currency == "EUR"


def test_without_a_region_nothing_is_known_and_asking_says_what_to_set(service) -> None:
    settings.change(region="")
    assert prices.find_cached("NC4as_T4_v3") is None
    with pytest.raises(InvalidSpec, match=r"Prices need a valid Azure region.*%dist_config azure region=westeurope"):
        prices.fetch()
    assert "Prices need a valid Azure region" in prices.look_up("NC4as_T4_v3")[1]
    settings.change(region="westeurope", currency="DOLLARS")
    with pytest.raises(InvalidSpec, match="currency"):
        prices.fetch()


def test_a_lookup_fetches_once_a_day(service) -> None:
    for _ in range(2):
        price, problem = prices.look_up("NC4as_T4_v3")
        assert (price.per_hour, problem) == (0.5, "")
    assert len(service.server.asked("/api/retail/prices")) == 1


def test_an_old_price_serves_where_no_new_one_comes(service, monkeypatch) -> None:
    with monkeypatch.context() as past:
        past.setattr(time, "strftime", lambda _: "2026-11-01")
        prices.fetch("NC4as_T4_v3")
    service.refuses = (400, "BadRequest", "Invalid filter.")
    price, problem = prices.look_up("NC4as_T4_v3")
    assert (price.per_hour, price.day, problem) == (0.5, "2026-11-01", "")


def test_a_missing_price_is_reported_and_not_requested_again_at_once(service) -> None:
    for _ in range(2):
        assert prices.look_up("NC48ads_A100_v4") == (
            None,
            "The Retail Prices API has no price for NC48ads_A100_v4 in westeurope.",
        )
    assert len(service.server.asked("/api/retail/prices")) == 1


def test_a_refusal_is_told_in_the_services_words(service) -> None:
    service.refuses = (400, "BadRequest", "Invalid filter.")
    with pytest.raises(AzureRefused, match=r"responded with 400 BadRequest: Invalid filter\."):
        prices.fetch()
    assert "Invalid filter" in prices.look_up("NC4as_T4_v3")[1]


def test_the_next_page_may_name_the_port_of_https() -> None:
    from distdl_jupyter.azure.rest import _get_host

    assert _get_host("https://prices.azure.com:443/api/retail/prices") == _get_host("https://prices.azure.com/x")
    with pytest.raises(AzureRefused, match="is not trusted with a token"):
        RestClient("https://prices.azure.com", None).get("https://elsewhere.example/x")


# what a node costs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "amount", "currency"),
    [(3.5, 3.5, "USD"), ("3.5 EUR", 3.5, "EUR"), ("3,5eur", 3.5, "EUR"), (" 12 ", 12.0, "USD")],
)
def test_an_own_price_is_a_number_or_a_number_with_a_currency(given, amount, currency):
    rate = prices.parse_price(given)
    assert (rate.per_hour, rate.currency, rate.source) == (amount, currency, "set by you")


@pytest.mark.parametrize("given", ["free", "0", -1, True, "3.5 dollars", "1e9"])
def test_what_is_no_price_is_refused_with_examples(given):
    with pytest.raises(InvalidSpec, match=r'price_per_hour is .*for example 3\.5 or "3\.5 EUR"'):
        prices.parse_price(given)


def test_a_known_price_counts_where_the_cluster_bills_and_nowhere_else(service):
    def rate(given: object = None, *, bills: bool = True, **options: str) -> prices.Price | None:
        size = "Standard_NC24ads_A100_v4"
        return jobspec.find_node_price(given, size, registry.get("clusters", "azureml" if bills else "ssh"), options)

    assert rate() is None  # not fetched yet
    prices.fetch()
    assert (rate().per_hour, rate().currency) == (3.5, "USD")
    assert rate().source.startswith("Retail Prices API, westeurope, 20")
    assert rate(bills=False) is None
    assert rate(job_tier="Spot") is None
    assert rate("2 EUR", bills=False).per_hour == 2.0


def test_a_broken_settings_file_costs_the_price_and_not_the_job(azure_settings):
    settings.change(region="westeurope")
    settings.SETTINGS_FILE.path.write_text("{")
    assert prices.find_cached("NC4as_T4_v3") is None
