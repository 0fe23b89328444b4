"""Advice about rented machines: each rule speaks when it must and is silent when it must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distdl_jupyter.advice import Advice, Request, advise
from distdl_jupyter.azure import Quota, catalogue, find

A100 = "NC24ads_A100_v4"


def said(request: Request) -> dict[str, Advice]:
    return {advice.code: advice for advice in advise(request, catalogue())}


def size(**told: object):
    return replace(find(A100), **told)


def quota(used: int, limit: int | None, service: str = "Azure Machine Learning", **more: bool) -> Quota:
    return Quota(service=service, used=used, limit=limit, **more)


def rent(vm_size=None, **more: object) -> Request:
    return Request(compute_target="cloud", vm_size=vm_size or find(A100), **more)


def test_nothing_of_rent_is_said_of_this_machine() -> None:
    assert advise(Request(code="train()"), catalogue()) == []
    assert advise(Request(process_count_per_node=2, cores=2), catalogue()) == []


def test_a_size_that_is_barred_is_said_with_who_says_so() -> None:
    barred = size(
        restriction="not available for your subscription in westeurope",
        origins=(("restriction", "Resource SKUs API, westeurope, 2026-11-20"),),
    )
    advice = said(rent(barred))["barred-size"]
    assert advice.reason.startswith(f"{A100} is not available for your subscription in westeurope.")
    assert advice.source == "Resource SKUs API, westeurope, 2026-11-20: restriction"
    assert "barred-size" not in said(rent())


def test_a_size_that_is_barred_is_never_suggested() -> None:
    two = Request(compute_target="cloud", vm_size=find("NC96ads_A100_v4"), node_count=2, process_count_per_node=4)
    free = {one.code: one for one in advise(two, catalogue())}["no-infiniband"]
    assert free.change["vm_size"] == "ND96amsr_A100_v4"
    barred = [replace(one, restriction="not offered in westeurope") if one.name == "ND96amsr_A100_v4" else one
              for one in catalogue()]  # fmt: skip
    other = {one.code: one for one in advise(two, barred)}["no-infiniband"]
    assert other.change["vm_size"] != "ND96amsr_A100_v4"


def test_a_retired_size_is_not_called_barred_too() -> None:
    assert list(said(rent(replace(find("NC24rs_v3"), restriction="not offered in westeurope")))) == ["retired"]


def test_more_vcpus_than_the_quota_leaves() -> None:
    advice = said(rent(size(quotas=(quota(24, 48),)), node_count=2))["beyond-quota"]
    assert advice.reason.startswith(
        f"2 × {A100} need 48 vCPUs, but the quota of Azure Machine Learning has 24 of 48 left for this family."
    )
    assert (advice.action, advice.change) == ("Use 1 node", {"node_count": 1})
    none = said(rent(size(quotas=(quota(48, 48),))))["beyond-quota"]
    assert (none.action, none.change) == ("", {})


@pytest.mark.parametrize(
    "request_",
    [
        rent(),  # nobody asked
        rent(size(quotas=(quota(0, 24),))),  # it just fits
        rent(size(quotas=(quota(0, None),)), node_count=90),  # no limit
        rent(size(quotas=(quota(0, 0),)), nodes_exist=True),  # counted already
        rent(size(quotas=(quota(0, 0, low_priority=True), quota(0, 100))), node_count=2),  # the other quota
        rent(size(quotas=(quota(0, 0),)), interruptible=True, code="torch.save(x)"),
    ],
)
def test_no_word_of_a_quota_that_suffices_or_does_not_count(request_: Request) -> None:
    assert "beyond-quota" not in said(request_)


def test_the_quota_of_machine_learning_goes_before_that_of_machines() -> None:
    both = size(quotas=(quota(0, 0, "virtual machines"), quota(0, 24)))
    assert "beyond-quota" not in said(rent(both))


def test_nodes_that_may_be_taken_away_need_checkpoints() -> None:
    advice = said(rent(interruptible=True, code="loss.backward()"))["no-checkpoints"]
    assert "torch.save" in advice.snippet
    for code in (
        "torch.save(model, p)",
        "trainer.save_checkpoint(p)",
        "model.save('m.keras')",
        "# Checkpoint each epoch",
    ):
        assert "no-checkpoints" not in said(rent(interruptible=True, code=code)), code
    assert "no-checkpoints" not in said(rent(code="loss.backward()"))


def test_nodes_that_cost_money_want_a_limit() -> None:
    advice = said(rent(bills=True, rate="about 7.35 USD/h for 2 nodes"))["no-time-limit"]
    assert advice.reason.endswith("its nodes cost money for every hour, about 7.35 USD/h for 2 nodes.")
    assert advice.change == {"max_run_duration_seconds": 86_400.0}
    assert said(rent(bills=True))["no-time-limit"].reason.endswith("for every hour.")
    assert "no-time-limit" not in said(rent(bills=True, max_run_duration_seconds=600))
    assert "no-time-limit" not in said(rent())
