"""Advice about rented machines: each rule speaks when it must and is silent when it must."""

from __future__ import annotations

from distdl_jupyter.azure import catalogue, find
from distdl_jupyter.preflight import Advice, Request, advise

A100 = "NC24ads_A100_v4"


def said(request: Request) -> dict[str, Advice]:
    return {advice.code: advice for advice in advise(request, catalogue())}


def rent(vm_size=None, **more: object) -> Request:
    return Request(compute_target="cloud", vm_size=vm_size or find(A100), **more)


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
