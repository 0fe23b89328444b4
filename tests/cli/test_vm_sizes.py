"""``distdl vm-sizes``: filters, prices and their sources."""

from __future__ import annotations

import json

import pytest

from distdl_jupyter.cli import main
from tests.standin.prices import Prices


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch, azure_settings):
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))


def said(capsys, *words):
    assert main(["vm-sizes", *words]) == 0
    return capsys.readouterr().out


def test_the_catalogue_is_listed_without_asking_anybody(capsys):
    out = said(capsys)
    assert "ND96isr_H100_v5" in out
    assert "NC24rs_v3" not in out
    assert "Catalog: Microsoft documentation, 2026-09-24." in out
    assert "PRICE" not in out


def test_filters_choose_and_retired_sizes_come_when_asked_for(capsys):
    assert {line.split()[0] for line in said(capsys, "T4").splitlines()[1:-1]} == {
        "NC4as_T4_v3", "NC8as_T4_v3", "NC16as_T4_v3", "NC64as_T4_v3",
    }  # fmt: skip
    assert "retired 2025-09-30" in said(capsys, "V100", "--retired", "--infiniband")
    both = json.loads(said(capsys, "--min-gpu-memory", "100", "--min-gpus", "8", "--json"))
    assert {size["gpu_count"] for size in both} == {8.0}
    assert said(capsys, "nothing").startswith("0 sizes.")


def test_prices_are_fetched_when_asked_for_and_cached(capsys, azure):
    Prices(azure.server)
    out = said(capsys, "--region", "westeurope", "--prices")
    row = next(line for line in out.splitlines() if line.startswith("NC24ads_A100_v4"))
    assert "3.50 USD" in row
    requests = len(azure.server.requests)
    assert said(capsys, "--region", "westeurope") == out
    assert len(azure.server.requests) == requests
    assert "Prices: Retail Prices API, westeurope, 20" in out
    rows = json.loads(said(capsys, "A100", "--region", "westeurope", "--json"))
    assert next(row for row in rows if row["name"] == "NC24ads_A100_v4")["price"]["per_hour"] == 3.5


def test_a_missing_region_is_one_sentence(capsys, azure):
    assert main(["vm-sizes", "--prices"]) == 2
    assert capsys.readouterr().err.startswith("distdl: Prices depend on an Azure region")
