"""A profile of a running job: real ranks with a known slow operator and a rank that comes late to each all-reduce."""

import gzip
import json
import os
import signal

import pytest

from distdl_jupyter import client
from distdl_jupyter.core import profiles
from distdl_jupyter.core.errors import InvalidSpec, JobNotRunning
from distdl_jupyter.core.state import State
from tests.conftest import wait_for

pytestmark = pytest.mark.timeout(300)

#: Horovod's own timeline has its groups of tensors behind those of the ranks.
HOROVOD = 1_000_000


def train(backend, pause=0.4):
    """Both ranks multiply large matrices in each step; rank 1 sleeps before its backward pass: rank 0 waits for it."""
    import time

    import torch

    from distdl_jupyter import log

    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if backend == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    torch.set_num_threads(1)
    large, batch = torch.randn(900, 900), torch.randn(16, 64)
    for step in range(100_000):
        large @ large
        loss = model(batch).square().mean()
        if rank == 1:
            time.sleep(pause)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step=step, loss=loss.item())


def idle(seconds):
    import time

    from distdl_jupyter import log

    log(step=1, loss=1.0)
    time.sleep(seconds)


def begun(job):
    wait_for(lambda: job.state.ended or all((rank.last_step or 0) >= 3 for rank in job.view().ranks), 120, "steps")
    assert not job.state.ended, "\n".join(map(str, job.logs()))
    return job


def recorded(backend, tmp_path):
    job = client.submit(train, (backend,), distributed_backend=backend, process_count_per_node=2)
    try:
        found = begun(job).profile(4, timeout=120)
        with pytest.raises(InvalidSpec, match="no rank 7"):
            job.profile(ranks=[7])
        with pytest.raises(InvalidSpec, match="1 to 50 steps"):
            job.profile(steps=0)
        step = job.view().ranks[0].last_step
        wait_for(lambda: job.view().ranks[0].last_step > step, 60, "the training goes on")
    finally:
        job.cancel(now=True)
        assert job.wait(60).state is State.CANCELED
    # Of an ended job the kept one is returned.
    assert job.profile().number == found.number == 1
    assert sorted(path.name for path in found.trace.parent.iterdir()) == ["profile.json", "trace.json.gz"]
    assert found.save(tmp_path).is_file()
    assert not [line.text for line in job.logs() if "USDT" in line.text]
    check_table(found)
    check_trace(found, backend)
    return found


def check_table(found):
    assert (found.steps, [one.rank for one in found.ranks], found.missing) == (4, [0, 1], {})
    own = {one.name: one for one in found.operators if one.kind == "compute"}
    most = max(own.values(), key=lambda one: one.own)
    assert most.name == "aten::mm"
    assert all(seconds > 0.5 * most.own for seconds in most.by_rank.values())
    first, second = found.ranks
    # Rank 0 waits for rank 1, which sleeps 0.4 s.
    assert first.waiting > 0.15
    assert second.waiting < first.waiting / 2
    assert found.operators[0].kind in ("communication", "compute", "python")
    assert 0.99 < sum(found.share(part) for part in ("data", "compute", "waiting", "communication")) < 1.01
    assert "aten::mm" in str(found)
    assert "aten::mm" in found._repr_html_()
    frame = found.to_pandas()
    assert set(frame["rank"]) == {0, 1}
    assert frame.loc[frame["operator"] == "aten::mm", "seconds"].min() > 0


def check_trace(found, backend):
    trace = json.loads(gzip.decompress(found.trace.read_bytes()))
    events = trace["traceEvents"]
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    names = {event["args"]["name"] for event in events if event.get("name") == "process_name"}
    assert {name.split(" on ")[0] for name in names} >= {"rank 0", "rank 1"}
    steps = {rank: [one for one in events if one["pid"] == rank and one.get("cat") == "steps" and
                    one["name"].startswith("step ")] for rank in (0, 1)}  # fmt: skip
    assert [len(one) for one in steps.values()] == [4, 4]
    # The ranks record the same steps, and leave each all-reduce together: these end when it has ended.
    waits = "horovod:synchronize" if backend != "torch" else "gloo:all_reduce"
    ends = {rank: [one["ts"] + one["dur"] for one in events if one["pid"] == rank and one.get("name") == waits]
            for rank in (0, 1)}  # fmt: skip
    assert len(ends[0]) == len(ends[1]) >= 4
    apart = sorted(abs(one - two) for one, two in zip(sorted(ends[0]), sorted(ends[1]), strict=True))
    assert apart[len(apart) // 2] < 40_000
    groups = {event["pid"] for event in events if event["pid"] >= HOROVOD}
    assert bool(groups) == (backend != "torch")


def test_torch_ranks_record_the_same_steps_on_one_clock(tmp_path):
    recorded("torch", tmp_path)


@pytest.mark.full
def test_horovod_ranks_are_recorded_with_horovods_own_timeline(tmp_path):
    recorded("horovod-gloo", tmp_path)


@pytest.mark.full
def test_a_rank_that_makes_no_step_is_said_in_a_sentence():
    job = client.submit(idle, (120,))
    try:
        wait_for(lambda: job.view().ranks[0].last_step == 1, 60, "a report")
        with pytest.raises(JobNotRunning, match="made no step within 30 s"):
            job.profile()
    finally:
        job.cancel(now=True)
        job.wait(60)
    with pytest.raises(JobNotRunning, match=r"has ended \(canceled\)"):
        job.ask_profile()
    with pytest.raises(JobNotRunning, match="no profile is kept"):
        job.profile(kept=True)


@pytest.mark.full
@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_an_end_in_the_middle_leaves_no_half_profile(how):
    job = client.submit(train, ("torch", 1.0), distributed_backend="torch", process_count_per_node=2)
    begun(job).ask_profile(50)
    wait_for(lambda: [one for one in job.view().profiles if one.status == "recording"], 60, "recording")
    with pytest.raises(JobNotRunning, match="records a profile already"):
        job.ask_profile()
    if how == "cancel":
        job.cancel(now=True)
    else:
        os.kill(job.view().ranks[1].pid, signal.SIGKILL)
    job.wait(90)
    taken = job.view().profiles[-1]
    assert (taken.status, bool(taken.why)) in (("failed", True), ("done", False))
    if taken.status == "done":  # rank 0 has saved what it had when its peer was gone
        assert profiles.read(job.folder).missing.keys() == {1}


@pytest.mark.full
def test_what_a_disk_refuses_is_said_and_the_training_goes_on():
    job = client.submit(train, ("torch",), distributed_backend="torch", process_count_per_node=2)
    try:
        begun(job)
        (job.folder.path / profiles.FOLDER).write_text("a file where the folder belongs")
        with pytest.raises(JobNotRunning, match="cannot be kept"):
            job.profile(2)
        step = job.view().ranks[0].last_step
        wait_for(lambda: job.view().ranks[0].last_step > step, 60, "the training goes on")
    finally:
        job.cancel(now=True)
        job.wait(60)
