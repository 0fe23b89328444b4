"""Whose price a job takes: the user's own before the one that was asked for, and none where none is known."""

from __future__ import annotations

import pytest

from distdl_jupyter.azure import prices, settings
from distdl_jupyter.core.errors import InvalidSpec
from tests.standin.prices import Prices


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch, azure_settings):
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("given", "amount", "currency"),
    [(3.5, 3.5, "USD"), ("3.5 EUR", 3.5, "EUR"), ("3,5eur", 3.5, "EUR"), (" 12 ", 12.0, "USD")],
)
def test_an_own_price_is_a_number_or_a_number_with_a_currency(given, amount, currency):
    rate = prices.node_price(given, None, bills=False)
    assert (rate.per_hour, rate.currency, rate.source) == (amount, currency, "set by you")


@pytest.mark.parametrize("given", ["free", "0", -1, True, "3.5 dollars", "1e9"])
def test_what_is_no_price_is_refused_with_examples(given):
    with pytest.raises(InvalidSpec, match=r'price_per_hour is .*Examples: 3\.5, "3\.5 EUR"'):
        prices.own_price(given)


def test_a_known_price_counts_where_the_cluster_bills_and_nowhere_else(azure):
    settings.change(region="westeurope")
    Prices(azure.server)
    assert prices.node_price(None, "Standard_NC24ads_A100_v4", bills=True) is None  # nobody asked yet
    prices.fetch()
    rate = prices.node_price(None, "Standard_NC24ads_A100_v4", bills=True)
    assert (rate.per_hour, rate.currency) == (3.5, "USD")
    assert rate.source.startswith("Retail Prices API, westeurope, 20")
    assert prices.node_price(None, "Standard_NC24ads_A100_v4", bills=False) is None
    assert prices.node_price(None, "Standard_NC24ads_A100_v4", bills=True, interruptible=True) is None
    assert prices.node_price(None, None, bills=True) is None
    assert prices.node_price("2 EUR", "Standard_NC24ads_A100_v4", bills=True).per_hour == 2.0


def test_a_broken_settings_file_costs_the_price_and_not_the_job(azure_settings):
    settings.change(region="westeurope")
    settings.FILE.path.write_text("{")
    assert prices.node_price(None, "NC4as_T4_v3", bills=True) is None
