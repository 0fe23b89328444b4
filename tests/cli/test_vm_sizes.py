"""``distdl vm-sizes``: filters, what Azure told, prices, and who says so."""

from __future__ import annotations

import json

import pytest

from distdl_jupyter.azure import settings
from distdl_jupyter.cli import main
from tests.standin.prices import Prices
from tests.standin.skus import Skus


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
    assert "QUOTA" not in out


def test_filters_choose_and_retired_sizes_come_when_asked_for(capsys):
    assert {line.split()[0] for line in said(capsys, "T4").splitlines()[1:-1]} == {
        "NC4as_T4_v3", "NC8as_T4_v3", "NC16as_T4_v3", "NC64as_T4_v3",
    }  # fmt: skip
    assert "retired 2025-09-30" in said(capsys, "V100", "--retired", "--infiniband")
    both = json.loads(said(capsys, "--min-gpu-memory", "100", "--min-gpus", "8", "--json"))
    assert {size["gpu_count"] for size in both} == {8.0}
    assert said(capsys, "nothing").startswith("0 sizes.")


def test_azure_and_the_prices_are_asked_when_told_to_and_remembered(capsys, signed_in):
    Skus(signed_in.server, signed_in.login)
    Prices(signed_in.server)
    out = said(capsys, "--region", "westeurope", "--refresh", "--prices")
    row = next(line for line in out.splitlines() if line.startswith("NC24ads_A100_v4"))
    assert "3.50 USD" in row
    assert "0 of 24 vCPUs used (Azure Machine Learning)" in row
    assert "not available for your subscription in westeurope" in out
    asked = len(signed_in.server.requests)
    assert said(capsys, "--region", "westeurope").splitlines()[-3:] == out.splitlines()[-3:]
    assert len(signed_in.server.requests) == asked
    assert "Availability and quota: Resource SKUs API, westeurope, 20" in out
    assert "Prices: Retail Prices API, westeurope, dedicated, 20" in out
    told = json.loads(said(capsys, "A100", "--region", "westeurope", "--json"))
    size = next(one for one in told if one["name"] == "NC24ads_A100_v4")
    assert size["price"]["per_hour"] == 3.5
    assert size["origins"]["vcpus"].startswith("Resource SKUs API")


def test_what_is_missing_is_said_in_one_sentence(capsys, azure, monkeypatch):
    assert main(["vm-sizes", "--prices"]) == 2
    assert capsys.readouterr().err.startswith("distdl: No Azure region is set")
    monkeypatch.setenv("PATH", "/nonexistent")
    settings.change(region="westeurope")
    assert main(["vm-sizes", "--refresh"]) == 2
    assert "Not signed in to Azure." in capsys.readouterr().err
