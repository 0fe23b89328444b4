"""Where ranks stand and jobs that go on, over HTTP, with real ranks."""

import pytest

from distdl_jupyter.core.store import JobStore
from tests.conftest import until_gone, wait_for
from tests.widgets import recorded

pytestmark = pytest.mark.timeout(600)

STUCK = """
import os, time, torch, torch.distributed as dist
from distdl_jupyter import log
dist.init_process_group("gloo")
log(step=1, loss=1.0)
while dist.get_rank() == 1:
    time.sleep(0.1)
dist.all_reduce(torch.ones(1))
"""
SAVES = """
from distdl_jupyter import checkpoint_dir
kept = checkpoint_dir() / "step.txt"
before = kept.read_text() if kept.exists() else ""
kept.write_text("12")
if not before:
    raise RuntimeError("the first time it fails")
before
"""


def test_ranks_are_asked_and_their_stacks_are_read(server):
    id_ = server.submit(STUCK, options={"process_count_per_node": 2, "distributed_backend": "torch"})
    try:
        card = wait_for(
            lambda: next((c for c in [server.get(f"/jobs/{id_}")["card"]] if c["step"] is not None), None),
            120,
            "a step",
        )
        assert card["can_ask_stacks"]
        server.get(f"/jobs/{id_}/stacks", 404)
        assert server.post(f"/jobs/{id_}/stacks", status=202) is None
        taken = wait_for(lambda: server.get(f"/jobs/{id_}")["card"]["stacks"], 60, "stacks")
        assert (taken[0]["why"], taken[0]["number"]) == ("request", server.get(f"/jobs/{id_}/stacks")["number"])
        told = server.get(f"/jobs/{id_}/stacks", number=taken[0]["number"])
        assert [group["ranks"] for group in told["groups"]] == [[1], [0]]
        assert told["groups"][0]["differs"]
        assert "time.sleep" in told["groups"][0]["frames"][0]["source"]
        assert "all_reduce" in told["groups"][1]["at"]
    finally:
        server.post(f"/jobs/{id_}/cancel", {"now": True}, 202)
        server.until_ended(id_)
    assert not until_gone(id_)
    assert server.post(f"/jobs/{id_}/stacks", status=409)["type"] == "JobNotRunning"
    # What was taken stays.
    assert server.get(f"/jobs/{id_}/stacks") == told
    assert server.get(f"/jobs/{id_}/stacks", 404, number=99)["hint"]


def test_a_failed_job_goes_on_from_its_checkpoint(server):
    id_ = server.submit(SAVES)
    assert server.until_ended(id_)["state"] == "failed"
    row = next(row for row in server.get("/jobs") if row["id"] == id_)
    assert row["can_resume"]
    assert server.get(f"/jobs/{id_}")["card"]["can_resume"]
    fresh = server.post(f"/jobs/{id_}/resume")
    assert server.until_ended(fresh["id"])["values"] == ["'12'"]
    assert server.get(f"/jobs/{fresh['id']}")["card"]["resumed_from"] == id_


def test_checkpoints_are_listed_and_a_job_forks_from_one(server):
    id_ = server.submit(
        "from distdl_jupyter import checkpoint_dir, log\nfound = sorted(p.name for p in checkpoint_dir().iterdir())\n"
        "for step in (1, 2):\n    log(step=step, loss=1 / step)\n    (checkpoint_dir() / f'step-{step}.bin').touch()\n"
        "found"
    )
    server.until_ended(id_)
    rows = server.get(f"/jobs/{id_}/checkpoints")
    assert [(one["path"], one["step"], one["metrics"]) for one in rows] == [
        ("step-2.bin", 2.0, {"loss": 0.5}), ("step-1.bin", 1.0, {"loss": 1.0})]  # fmt: skip
    assert "no checkpoint 'step-3.bin'" in server.post(f"/jobs/{id_}/fork", {"path": "step-3.bin"}, 400)["message"]
    fresh = server.post(f"/jobs/{id_}/fork", {"path": "step-1.bin"})
    assert server.until_ended(fresh["id"])["values"] == ["['step-1.bin']"]
    card = server.get(f"/jobs/{fresh['id']}")["card"]
    assert (card["resumed_from"], card["forked_at"]) == (id_, 1.0)


def test_there_is_nothing_to_go_on_from(server):
    story = recorded.tell("failed", JobStore())
    story.close()
    assert not server.get(f"/jobs/{story.id}")["card"]["can_resume"]
    assert "checkpoint" in server.post(f"/jobs/{story.id}/resume", status=400)["message"]
    server.post("/jobs/20200101-000000-aaaaa/resume", status=404)


def test_a_job_that_runs_is_not_resumed_and_one_that_waits_has_no_stacks(server):
    story = recorded.begin(5)
    story.event("state", state="queued", reason="")
    try:
        assert server.post(f"/jobs/{story.id}/resume", status=409)["type"] == "JobStillRunning"
        assert server.post(f"/jobs/{story.id}/stacks", status=409)["type"] == "JobNotRunning"
    finally:
        story.close()
