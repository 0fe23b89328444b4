"""A retired size is answered with one that a training fits on, and with why."""

from __future__ import annotations

import pytest

from distdl_jupyter.azure import catalogue, find, successor_of

RETIRED = [size for size in catalogue() if size.retired]


@pytest.mark.parametrize("old", RETIRED, ids=lambda size: size.name)
def test_the_successor_can_be_rented_and_holds_the_training(old) -> None:
    found = successor_of(old)
    assert found is not None
    new = found.size
    assert not new.retired
    assert new.nvidia
    assert not new.arm_host
    assert new.gpu_memory_gib >= old.gpu_memory_gib
    assert new.gpu_count >= old.gpu_count


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("NC24r", "NC64as_T4_v3"),  # the guide names it
        ("NC24rs_v2", "NC96ads_A100_v4"),  # the guide names it
        ("ND24rs", "ND96amsr_A100_v4"),  # the guide names it, for InfiniBand
        ("NC12", "NC48ads_A100_v4"),  # the guide names one with half the GPUs
        ("ND6s", "NC24ads_A100_v4"),  # the guide names one with less memory
        ("NC6s_v3", "NC40ads_H100_v5"),  # the guide names the series
        ("NC12s_v3", "NC80adis_H100_v5"),  # the guide names the series
        ("NC24rs_v3", "NC96ads_A100_v4"),  # the guide's series has no size with four GPUs
    ],
)
def test_the_rule(old: str, new: str) -> None:
    assert successor_of(find(old)).size == find(new)


def test_the_reason_has_the_numbers_and_says_what_is_lost() -> None:
    found = successor_of(find("NC24rs_v3"))
    assert found is not None
    assert "4 × A100 80 GB instead of 4 × V100 16 GB" in found.reason
    assert found.reason.endswith("It has no InfiniBand.")
    assert found.source == ""


def test_the_source_stands_beside_what_the_guide_names() -> None:
    for name in ("NC24", "NC6s_v3"):
        found = successor_of(find(name))
        assert found is not None
        assert "migration guide" in found.reason
        assert ".md@" in found.source
