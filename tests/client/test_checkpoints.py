"""Checkpoints of real jobs: listed with their metrics, kept, and gone on from as a branch."""

import pytest

from distdl_jupyter import submit
from distdl_jupyter.core import checkpoints
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.events import State
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.jobs import client, rerun
from tests.conftest import wait_for

pytestmark = pytest.mark.timeout(200)


def train(steps, until=None):
    import json
    import time

    import distdl_jupyter

    folder = distdl_jupyter.checkpoint_dir()
    newest = max(folder.glob("step-*.bin"), key=lambda path: int(path.stem[5:]), default=None)
    first = json.loads(newest.read_text())["step"] if newest else 0
    for step in range(first, steps):
        distdl_jupyter.log(step=step, loss=1 / (step + 1))
        if step % 10 == 0:
            (folder / f"step-{step}.bin").write_text(json.dumps({"step": step}))
    while until is not None and not (folder.parent / until).exists():
        time.sleep(0.05)
    return first


def _all_with_metrics(job):
    known = job.checkpoints()
    return known if sum("loss" in one.metrics and one.step == 40 for one in known) and len(known) == 5 else None


def test_a_job_forks_from_one_of_its_checkpoints_while_it_runs_and_afterwards():
    job = submit(train, [45, "go on"], name="parent")
    try:
        known = wait_for(lambda: _all_with_metrics(job), 60, "five checkpoints")
        assert [one.step for one in known] == [40, 30, 20, 10, 0]
        assert known[2].metrics == {"loss": pytest.approx(1 / 21)}
        fork = job.fork(step=20, keep_checkpoints="last 1")
        with pytest.raises(InvalidSpec, match="no checkpoint of step 25"):
            job.fork(step=25)
        assert (fork.spec.resumed_from, fork.spec.forked_at) == (job.id, 20)
        (fork.folder.outputs / "go on").touch()
        assert fork.result(60) == 20
        # It keeps only the newest one, and says so.
        assert [one.step for one in fork.checkpoints()] == [40]
        assert any("Deleted 2 checkpoints" in line.text for line in fork.logs())
        # Its curve branches off the other one's.
        drawn = fork.figure("loss")
        assert any(trace.name == job.id[-5:] for trace in drawn.data)
        assert job.state is State.RUNNING
    finally:
        (job.folder.outputs / "go on").touch()
        job.wait(60)
    assert len(job.checkpoints()) == 5
    # One that goes on counts what it was given among the best.
    kept = job.resume(keep_checkpoints="last 1, best 1 of highest loss")
    (kept.folder.outputs / "go on").touch()
    assert kept.result(60) == 40
    assert [(one.step, one.metrics) for one in kept.checkpoints()][1:] == [(0, {"loss": 1.0})]
    assert "step-40.bin" in repr(job.checkpoints())
    with pytest.raises(InvalidSpec, match="keep_checkpoints must be a rule such as"):
        job.fork(keep_checkpoints="2")
    chosen = rerun.prepare_resume(job.folder, {}, checkpoints.choose(job.checkpoints(), step=0))
    (job.folder.checkpoints / "step-0.bin").unlink()
    with pytest.raises(InvalidSpec, match=r"step-0.bin of job .* is being written or deleted"):
        client.publish(JobStore(), *chosen[::2], lambda *_: None, str)
    job.remove()
    assert fork.figure("loss") is not None
