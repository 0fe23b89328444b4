"""The catalogue says what its sources say, finds sizes however they are written, and invents nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from fractions import Fraction

import pytest

from distdl_jupyter.azure import find_size, load_catalogue, vm_sizes
from distdl_jupyter.core.errors import InvalidSpec


def test_every_row_has_a_source_and_a_gpu() -> None:
    assert len(load_catalogue()) == 49
    for size in load_catalogue():
        assert size.sources, size.name
        assert size.gpu_count > 0
        assert re.fullmatch(r"[A-Z]{1,2}\d+X?|RTX PRO 6000", size.gpu), size.gpu
        assert not size.name.startswith("Standard_")
        assert size.size == f"Standard_{size.name}"


def test_what_no_page_states_stays_unknown() -> None:
    small_t4, part = find_size("NC4as_T4_v3"), find_size("NC24lds_xl_RTXPRO6000BSE_v6")
    assert small_t4.infiniband is None
    assert find_size("NC64as_T4_v3").infiniband is False
    assert part.gpu_memory_gib is None
    assert part.memory_text == "not stated"
    assert part.ethernet_gbps is None
    assert part.ethernet_text == ""
    assert part.status == ""
    assert find_size("NC24rs_v3").infiniband_gbps_per_vm is None


def test_shares_of_a_gpu_are_exact() -> None:
    assert find_size("NV6ads_A10_v5").gpu_count == Fraction(1, 6)
    assert find_size("NV6ads_A10_v5").gpus_text == "1/6 × A10"
    assert find_size("NV6ads_A10_v5").whole_gpus == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ND96amsr_A100_v4", "HDR 8 × 200 Gb/s"),
        ("ND96isr_H100_v5", "NDR 8 × 400 Gb/s"),
        ("ND40rs_v2", "EDR 100 Gb/s"),
        ("ND128isr_GB300_v6", "4 × 800 Gb/s"),
        ("NC24rs_v3", "FDR"),
        ("NC96ads_A100_v4", ""),
        ("NC4as_T4_v3", ""),
    ],
)
def test_the_fabric_is_written_as_far_as_it_is_known(name: str, text: str) -> None:
    assert find_size(name).fabric_text == text


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NC96ads_A100_v4", "NC96ads_A100_v4"),
        ("Standard_NC96ads_A100_v4", "NC96ads_A100_v4"),
        ("standard_nc96ADS_a100_V4", "NC96ads_A100_v4"),
        ("  ND40rs v2 ", "ND40rs_v2"),
    ],
)
def test_a_size_is_found_however_it_is_written(written: str, name: str) -> None:
    assert find_size(written).name == name


@pytest.mark.readme("sizes")
def test_every_size_finds_itself() -> None:
    for size in load_catalogue():
        assert find_size(size.name) is size
        assert find_size(size.size.upper()) is size


def test_an_unknown_size_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidSpec, match=r"Unknown GPU size 'NC96_A100'\. Did you mean NC96ads_A100_v4") as caught:
        find_size("NC96_A100")
    assert caught.value.field == "vm_size"


def test_the_table_filters() -> None:
    assert len(vm_sizes()) == 33
    assert len(vm_sizes(retired=True)) == 49
    assert set(vm_sizes("a100")["gpu"]) == {"A100"}
    assert set(vm_sizes("A10")["gpu"]) == {"A10"}
    assert set(vm_sizes("Blackwell")["gpu"]) == {"GB200", "GB300", "RTX PRO 6000"}
    assert set(vm_sizes(min_gpu_memory_gib=100)["gpu"]) == {"H200", "MI300X", "GB200", "GB300"}
    assert list(vm_sizes(infiniband=True, min_gpus=8, gpu="H100").index) == ["ND96isr_H100_v5"]
    assert list(vm_sizes("V100", retired=False).index) == ["ND40rs_v2"]


def test_unknown_values_are_missing_in_the_table_and_pass_no_condition() -> None:
    table = vm_sizes(retired=True)
    assert table.loc["NC24lds_xl_RTXPRO6000BSE_v6", ["gpu_memory_gib", "infiniband", "ethernet_gbps"]].isna().all()
    known = set(vm_sizes(infiniband=True).index) | set(vm_sizes(infiniband=False).index)
    assert "NC4as_T4_v3" not in known
    assert "NC24lds_xl_RTXPRO6000BSE_v6" not in vm_sizes(min_gpu_memory_gib=1).index


def test_the_catalogue_is_read_without_pandas() -> None:
    code = "import sys, distdl_jupyter.azure as a; a.load_catalogue(); print(sys.modules.keys() & {'pandas', 'numpy'})"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"


@pytest.mark.parametrize("size", load_catalogue(), ids=lambda size: size.name)
def test_a_retired_size_has_a_successor_that_can_be_rented_and_holds_the_training(size) -> None:
    assert bool(size.successor) is bool(size.successor_reason) is size.is_retired
    assert size.is_retired is (size.retirement_date is not None)
    if size.is_retired:
        new = find_size(size.successor)
        assert new.name == size.successor
        assert not new.is_retired
        assert new.is_nvidia
        assert not new.has_arm_host
        assert new.gpu_memory_gib >= size.gpu_memory_gib
        assert new.gpu_count >= size.gpu_count
        assert size.successor_reason.startswith(f"{new.gpus_text} {new.memory_text} instead of {size.gpus_text} ")
        assert size.successor_reason.endswith("It has no InfiniBand.") is bool(size.infiniband and not new.infiniband)
        assert ("migration guide" in size.successor_reason) is (".md@" in size.successor_source)
