"""Advice about machines, including rented ones: when each rule applies and when not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distdl_jupyter.azure import find_size, load_catalogue
from distdl_jupyter.preflight import Advice, Request, advise

A100 = "NC24ads_A100_v4"


def said(request: Request) -> dict[str, Advice]:
    return {advice.code: advice for advice in advise(request, load_catalogue())}


def rent(name: str, nodes: int = 1, processes: int = 1, **more: object) -> Request:
    return Request(
        vm_size=find_size(name), node_count=nodes, process_count_per_node=processes, compute_target="cloud", **more
    )


def test_good_requests_have_no_advice() -> None:
    assert advise(Request(), load_catalogue()) == []
    assert advise(Request(process_count_per_node=2, cores=2), load_catalogue()) == []
    assert advise(rent("ND96isr_H100_v5", 1, 8), load_catalogue()) == []
    assert advise(rent("ND96isr_H100_v5", 2, 8), load_catalogue()) == []


def test_a_retired_size_is_replaced_with_date_numbers_and_processes() -> None:
    advice = said(rent("NC24rs_v3", 2, 4))["retired"]
    assert advice.level == "error"
    assert "2025-09-30" in advice.reason
    assert "4 × A100 80 GB instead of 4 × V100 16 GB" in advice.reason
    assert advice.action == "Use NC96ads_A100_v4"
    assert advice.change == {"vm_size": "NC96ads_A100_v4", "process_count_per_node": 4}
    assert list(said(rent("NC24rs_v3", 2, 9))) == ["retired"]


def test_a_chosen_process_count_survives_the_replacement() -> None:
    assert said(rent("NC24rs_v3", 1, 2))["retired"].change == {"vm_size": "NC96ads_A100_v4"}
    assert said(rent("ND24rs", 1, 4))["retired"].change["process_count_per_node"] == 8


def test_several_nodes_without_infiniband_become_one_machine() -> None:
    advice = said(rent("NC96ads_A100_v4", 2, 4))["no-infiniband"]
    assert advice.level == "warning"
    assert advice.headline == "One machine instead of 2"
    assert advice.reason == (
        "NC96ads_A100_v4 has no InfiniBand, so gradients would use 80 Gb/s Ethernet. One ND96amsr_A100_v4 has the "
        "same 8 × A100 80 GB, connected by NVLink."
    )
    assert advice.action == "Use 1 × ND96amsr_A100_v4"
    assert advice.change == {"vm_size": "ND96amsr_A100_v4", "node_count": 1, "process_count_per_node": 8}


def test_half_used_machines_become_one() -> None:
    advice = said(rent("NC96ads_A100_v4", 2, 2))["no-infiniband"]
    assert "One NC96ads_A100_v4 has 4 × A100: all 4 processes fit." in advice.reason
    assert advice.change == {"vm_size": "NC96ads_A100_v4", "node_count": 1, "process_count_per_node": 4}


def test_too_many_gpus_for_one_machine_go_to_infiniband() -> None:
    advice = said(rent("NC96ads_A100_v4", 4, 4))["no-infiniband"]
    assert advice.headline == "No InfiniBand between the nodes"
    assert "2 × ND96amsr_A100_v4 have 16 × A100 80 GB, connected by InfiniBand HDR 8 × 200 Gb/s." in advice.reason
    assert advice.change == {"vm_size": "ND96amsr_A100_v4", "node_count": 2, "process_count_per_node": 8}


def test_one_node_needs_no_network() -> None:
    assert "no-infiniband" not in said(rent("NC96ads_A100_v4", 1, 4))
    assert "no-infiniband" not in said(Request(node_count=2, process_count_per_node=2))


def test_scale_up_before_out_even_with_infiniband() -> None:
    advice = said(rent("ND96amsr_A100_v4", 2, 4))["scale-up"]
    assert advice.level == "info"
    assert advice.change == {"vm_size": "ND96amsr_A100_v4", "node_count": 1, "process_count_per_node": 8}
    assert "scale-up" not in said(rent("ND96amsr_A100_v4", 2, 8))


@pytest.mark.parametrize("nodes", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("size", [s for s in load_catalogue() if not s.is_retired], ids=lambda s: s.name)
def test_every_suggested_machine_exists_fits_and_keeps_the_count(size, nodes: int) -> None:
    request = rent(size.name, nodes, size.whole_gpus)
    for advice in advise(request, load_catalogue()):
        if not advice.change or "vm_size" not in advice.change:
            continue
        new = find_size(advice.change["vm_size"])
        assert not new.is_retired
        assert new.is_nvidia is size.is_nvidia
        assert new.has_arm_host is size.has_arm_host
        assert (new.gpu_memory_gib or 0) >= (size.gpu_memory_gib or 0)
        assert advice.change["process_count_per_node"] <= new.whole_gpus
        assert advice.change["node_count"] * advice.change["process_count_per_node"] == request.process_count


@pytest.mark.parametrize("size", [s for s in load_catalogue() if not s.is_retired], ids=lambda s: s.name)
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_following_the_advice_ends(size, nodes: int) -> None:
    request = rent(size.name, nodes, size.whole_gpus + 1)
    for _ in range(5):
        changes = [a.change for a in advise(request, load_catalogue()) if a.change]
        if not changes:
            return
        change = dict(changes[0])
        if "vm_size" in change:
            change["vm_size"] = find_size(change["vm_size"])
        request = replace(request, **change)
    pytest.fail(f"the advice goes round in circles at {request}")


def test_more_processes_than_gpus() -> None:
    advice = said(rent("NC96ads_A100_v4", 1, 8))["more-processes-than-gpus"]
    assert "NC96ads_A100_v4 has 4 GPUs, so 8 processes would share them" in advice.reason
    assert advice.change == {"node_count": 1, "process_count_per_node": 4}
    assert advice.action == "Use 4 processes per node"
    assert "more-processes-than-gpus" not in said(rent("NC96ads_A100_v4", 1, 4))
    assert "more-processes-than-gpus" not in said(rent("NC96ads_A100_v4", 1, 8, use_gpu=False))
    assert "more-processes-than-gpus" in said(rent("NV6ads_A10_v5", 1, 2))


def test_the_gpus_of_this_machine_count_over_all_emulated_nodes() -> None:
    shared = said(Request(node_count=2, process_count_per_node=2, gpus=2, cores=64))["more-processes-than-gpus"]
    assert "This machine has 2 GPUs, so 4 processes" in shared.reason
    assert shared.change == {"node_count": 2, "process_count_per_node": 1}
    assert "more-processes-than-gpus" not in said(Request(node_count=2, process_count_per_node=1, gpus=2, cores=64))


def test_more_processes_than_cores_only_on_this_machine_without_gpus() -> None:
    advice = said(Request(node_count=2, process_count_per_node=4, cores=2))["more-processes-than-cores"]
    assert advice.level == "info"
    assert "This machine has 2 cores for 8 processes." in advice.reason
    assert advice.change == {"node_count": 2, "process_count_per_node": 1}
    assert "more-processes-than-cores" not in said(Request(node_count=1, process_count_per_node=2, cores=2))
    assert "more-processes-than-cores" not in said(Request(process_count_per_node=8, cores=2, gpus=8))
    assert "more-processes-than-cores" not in said(rent("ND96isr_H100_v5", 1, 8, cores=2))
    assert said(Request(node_count=4, process_count_per_node=1, cores=2))["more-processes-than-cores"].change == {
        "node_count": 1,
        "process_count_per_node": 2,
    }


def test_a_local_disk_that_is_not_encrypted() -> None:
    advice = said(rent("NC80adis_H100_v5", 1, 2))["open-local-disk"]
    assert "even with encryption at host, and the disk" in advice.reason
    assert ".md@" in advice.source
    assert advice.change == {}
    assert "open-local-disk" not in said(rent("NC96ads_A100_v4", 1, 4))


def test_nodes_that_may_be_taken_away_need_checkpoints() -> None:
    advice = said(rent(A100, is_preemptible=True, code="loss.backward()"))["no-checkpoints"]
    assert "torch.save" in advice.snippet
    for code in (
        "torch.save(model, p)",
        "trainer.save_checkpoint(p)",
        "model.save('m.keras')",
        "# Checkpoint each epoch",
    ):
        assert "no-checkpoints" not in said(rent(A100, is_preemptible=True, code=code)), code
    assert "no-checkpoints" not in said(rent(A100, code="loss.backward()"))


def test_nodes_that_cost_money_want_a_limit() -> None:
    advice = said(rent(A100, is_billed=True, price_text="about 7.35 USD/h for 2 nodes"))["no-time-limit"]
    assert advice.reason.endswith("its nodes cost money for every hour, about 7.35 USD/h for 2 nodes.")
    assert advice.change == {"max_run_duration_seconds": 86_400.0}
    assert said(rent(A100, is_billed=True))["no-time-limit"].reason.endswith("for every hour.")
    assert "no-time-limit" not in said(rent(A100, is_billed=True, max_run_duration_seconds=600))
    assert "no-time-limit" not in said(rent(A100))
