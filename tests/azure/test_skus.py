"""What Azure says of its sizes in a region goes over the catalogue, each value with its source."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest

from distdl_jupyter.azure import catalogue, find, settings, skus, vm_sizes
from distdl_jupyter.azure.merged import sizes
from distdl_jupyter.core.errors import AzureRefused, InvalidSpec, NotSignedIn
from tests.standin.skus import SUBSCRIPTION, Skus


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def service(signed_in):
    settings.change(region="westeurope")
    return Skus(signed_in.server, signed_in.login)


def named(region=""):
    return {size.name: size for size in sizes(region)}


def test_without_an_answer_there_is_the_catalogue_and_nothing_else(azure) -> None:
    settings.change(region="westeurope")
    assert sizes() == catalogue()
    assert skus.known() is None


@pytest.mark.readme("sizes")
def test_values_of_azure_go_before_the_catalogue_and_say_so(service) -> None:
    days = {time.strftime("%Y-%m-%d")}
    region = skus.refresh()
    days.add(time.strftime("%Y-%m-%d"))  # midnight may come between
    assert region.source in {f"Resource SKUs API, westeurope, {day}" for day in days}
    size = named()["NC24ads_A100_v4"]
    assert (size.vcpus, size.ram_gib, size.zones) == (24, 220, ("1", "2"))
    assert {name for name, _ in size.origins} == {"vcpus", "ram_gib", "restriction", "zones", "quotas"}
    assert size.origin_texts == (f"{region.source}: restriction, zones, quotas, vcpus, ram_gib",)
    assert size.sources[-1] == size.origin_texts[0]
    assert size.infiniband is False  # the page says so, whatever RdmaEnabled means
    assert named()["NC4as_T4_v3"].infiniband is False  # no page says it, so the API's word counts
    assert next(one for one in catalogue() if one.name == "NC4as_T4_v3").infiniband is None


def test_what_the_subscription_cannot_rent_is_said(service) -> None:
    skus.refresh()
    assert named()["ND96isr_H100_v5"].restriction == "not available for your subscription in westeurope"
    assert named()["ND40rs_v2"].restriction == "not offered in westeurope"
    assert named()["NC48ads_A100_v4"].restriction == ""
    assert named()["NC48ads_A100_v4"].zones == ("1",)
    assert named()["NC24rs_v3"].restriction == ""  # retired says it all


def test_quotas_of_machine_learning_and_of_machines_stand_apart(service) -> None:
    skus.refresh()
    size = named()["NC24ads_A100_v4"]
    assert size.quota.text == "0 of 24 vCPUs used (Azure Machine Learning)"
    assert {one.text for one in size.quotas} == {
        "0 of 24 vCPUs used (Azure Machine Learning)",
        "0 vCPUs used (Azure Machine Learning, low priority)",
        "24 of 100 vCPUs used (virtual machines)",
    }
    assert named()["ND96isr_H100_v5"].quota.left == 0
    assert named()["NC4as_T4_v3"].quota is None


def test_quotas_that_may_not_be_read_are_left_out(service) -> None:
    service.compute = service.learning = None
    assert skus.refresh().quotas == {}
    assert named()["NC24ads_A100_v4"].quota is None


def test_a_size_that_only_azure_lists_is_there_with_what_is_known(service) -> None:
    skus.refresh()
    size = find("standard_nd999isr_h200_v9")
    assert (size.gpu, size.gpu_model, size.gpu_count, size.vcpus) == ("H200", "NVIDIA H200", Fraction(8), 999)
    assert (size.gpu_memory_gib, size.nvlink, size.infiniband, size.retired) == (None, None, True, False)
    assert size.arm_host
    assert size.sources == size.origin_texts
    assert "ND999isr_H200_v9" in vm_sizes(gpu="H200").index
    assert "D4s_v5" not in named()


def test_the_table_tells_what_azure_told(service) -> None:
    table = vm_sizes(refresh=True, region="westeurope")
    row = table.loc["NC24ads_A100_v4"]
    assert row["quota"] == "0 of 24 vCPUs used (Azure Machine Learning)"
    assert "Resource SKUs API, westeurope" in row["told_by_azure"]
    assert table.loc["ND96isr_H100_v5", "restriction"] == "not available for your subscription in westeurope"
    assert table.attrs["catalogue_date"] == "2026-09-24"


def test_the_subscription_is_that_of_the_settings_or_the_accounts_first(service) -> None:
    skus.refresh()
    assert service.server.asked(rf"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/skus")
    settings.change(subscription_id="22222222-0000-4000-8000-00000000000b")
    assert skus.known() is None  # the kept answer is another subscription's
    with pytest.raises(AzureRefused, match="There is no such subscription"):
        skus.refresh()


def test_regions_are_kept_apart_and_an_unknown_one_is_refused(service) -> None:
    skus.refresh("West Europe")
    assert skus.known("westeurope").name == "westeurope"
    assert skus.known("eastus") is None
    with pytest.raises(AzureRefused, match="Azure lists no GPU sizes for the region 'nowhere'"):
        skus.refresh("nowhere")
    settings.change(region="")
    with pytest.raises(InvalidSpec, match="No Azure region is set"):
        skus.refresh()


def test_nobody_signed_in_is_told_how(azure, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    settings.change(region="westeurope")
    with pytest.raises(NotSignedIn, match="dist_config azure"):
        skus.refresh()


def test_a_refusal_keeps_what_was_known(service) -> None:
    skus.refresh()
    service.refuses = (403, "AuthorizationFailed", "does not have authorization to perform action")
    with pytest.raises(AzureRefused, match="403 AuthorizationFailed"):
        skus.refresh()
    assert skus.known() is not None


def test_the_kept_answer_holds_no_token(service, tmp_path) -> None:
    skus.refresh()
    written = "".join(path.read_text() for path in (tmp_path / "cache").rglob("*.json"))
    assert "ND96isr_H100_v5" in written
    assert not any(given in written for given in service.login.given)
