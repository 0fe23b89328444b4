"""Ranks that fail and are started anew, jobs that are resumed: the training goes on from its checkpoint."""

import importlib.util
import shutil
import signal

import pytest

from distdl_jupyter import attach, submit
from distdl_jupyter.cli import main
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobFailed
from distdl_jupyter.core.events import State
from distdl_jupyter.jobs.reader import JobReader
from tests.conftest import wait_for
from tests.faults import jobs

pytestmark = [pytest.mark.timeout(400), pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch")]

STEPS, EVERY, KILLED_AT = 24, 4, 14


def train(backend, steps, every, fail=()):  # noqa: C901 - one function travels better
    """Train a line on all ranks alike; ``fail`` has (restart, rank, step, how) of ranks that fail there."""
    import os
    import time

    import torch

    import distdl_jupyter

    rank, size = int(os.environ.get("DISTDL_RANK", "0")), int(os.environ.get("DISTDL_WORLD_SIZE", "1"))
    restart = int(os.environ.get("DISTDL_RESTART_COUNT", "0"))
    torch.manual_seed(7)
    weights, speed = torch.randn(4), torch.zeros(4)
    if backend.startswith("torch"):
        torch.distributed.init_process_group()

        def mean(tensor, _name):
            torch.distributed.all_reduce(tensor)
            return tensor / size
    elif backend.startswith("horovod"):
        import horovod.torch as hvd

        hvd.init()

        def mean(tensor, name):
            return hvd.allreduce(tensor, name=name)
    else:

        def mean(tensor, _name):
            return tensor

    path = distdl_jupyter.checkpoint_dir() / "last.pt"
    first = 0
    if path.exists():
        state = torch.load(path)
        weights, speed, first = state["weights"], state["speed"], state["step"]
    print(f"rank {rank} of {size} begins at step {first}", flush=True)
    for step in range(first, steps):
        for at, who, when, how in fail:
            if (at, who, when) == (restart, rank, step):
                os.kill(os.getpid(), signal.SIGKILL) if how == "kill" else exec(how)
        generator = torch.Generator().manual_seed(1000 * step)
        inputs = torch.randn(8, 4, generator=generator)
        off = inputs @ weights - inputs.sum(1)
        gradient = mean(inputs.T @ off / 4, f"gradient {step}")
        speed = 0.9 * speed + gradient
        weights = weights - 0.05 * speed
        loss = (off**2).mean()
        distdl_jupyter.log(step=step, loss=loss.item())
        if rank == 0 and (step + 1) % every == 0:
            new = path.with_suffix(".new")
            torch.save({"weights": weights, "speed": speed, "step": step + 1}, new)
            new.replace(path)
        time.sleep(0.02)
    return first, [round(value, 5) for value in weights.tolist()]


def started(backend="torch-gloo", fail=(), steps=STEPS, **options):
    options = {"process_count_per_node": 1 if backend == "plain" else 2, "stop_grace_seconds": 0.5, **options}
    return jobs.submit(train, backend, steps, EVERY, tuple(fail), distributed_backend=backend, **options)


def curve(job):
    outline = JobReader(job.folder, curves=True)
    outline.catch_up()
    return outline.curves.get("loss").get_band().rows


def begun_at(job, rank=0):
    return [int(line.text.rsplit(" ", 1)[1]) for line in job.logs(rank) if "begins at step" in line.text]


def text(job):
    return "\n".join(line.text for line in job.logs())


def needs(backend):
    module = "horovod" if backend.startswith("horovod") else "torch"
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=module)


BACKENDS = [
    pytest.param("plain", marks=pytest.mark.full),
    "torch-gloo",
    pytest.param("horovod-gloo", marks=[needs("horovod"), pytest.mark.full]),
    pytest.param("horovod-mpi", marks=[needs("horovod"), pytest.mark.full]),
]


@pytest.mark.fault(
    "restarts", "a killed rank: all ranks restart, and the loss continues from the checkpoint to the same weights"
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_rank_killed_between_checkpoints(backend, tmp_path, monkeypatch):
    ranks = 1 if backend == "plain" else 2
    job = started(backend, [(0, ranks - 1, KILLED_AT, "kill")], max_restarts=2).wait(240)
    view = job.view()
    assert view.state is State.COMPLETED, text(job)
    assert len(view.restarts) == 1
    assert "SIGKILL" in view.restarts[0].reason
    assert "--- restart 1 of 2" in text(job)
    # The second attempt begins where the last checkpoint was, and the curve has every step once.
    kept = KILLED_AT // EVERY * EVERY
    assert begun_at(job) == [0, kept]
    assert [row.step for row in curve(job)] == list(range(STEPS))
    frame = job.metrics()
    assert frame[frame["attempt"] == 1]["step"].min() == kept
    # The same training in this process, which nobody disturbs.
    monkeypatch.chdir(tmp_path)
    assert [value[1] for value in job.results()] == [train("plain", STEPS, EVERY)[1]] * ranks


@pytest.mark.fault("restarts", "all restarts used: failed, with every failure listed and the exception of the last")
@pytest.mark.full
def test_restarts_that_are_used_up():
    fail = [(0, 0, 5, "raise KeyError('first')"), (1, 1, 6, "os._exit(3)"), (2, 0, 7, "raise ValueError('third')")]
    job = started("torch-gloo", fail, max_restarts=2).wait(240)
    view = job.view()
    assert view.state is State.FAILED
    assert len(view.restarts) == 2
    for told in ("ValueError: third", "KeyError: 'first'", "exit code 3", "restarted 2 times"):
        assert told in view.reason
    with pytest.raises(JobFailed, match="ValueError: third"):
        job.result()
    said = text(job)
    assert (
        said.index("KeyError")
        < said.index("--- restart 1 of 2")
        < said.index("--- restart 2 of 2")
        < said.index("ValueError")
    )


@pytest.mark.fault("restarts", "a cancel while waiting for a restart: canceled at once, nothing more is started")
def test_cancel_between_two_attempts():
    fail = [(number, 0, 2, "os._exit(3)") for number in range(5)]
    job = started("plain", fail, max_restarts=4)
    wait_for(lambda: len(job.view().restarts) == 2, 120.0)  # 2 s are waited for now
    job.cancel()
    view = job.wait(60).view()
    assert (view.state, len(view.restarts)) == (State.CANCELED, 2)
    assert len(begun_at(job)) == 2


def ended(how):
    """A job of endless steps that has saved a checkpoint and then ended as ``how`` says."""
    job = started("plain", [(0, 0, 9, "raise RuntimeError('boom')")] if how == "failed" else (), steps=100_000)
    if how != "failed":
        wait_for(lambda: job.folder.has_checkpoints and (job.view().ranks[0].last_step or 0) > 9, 120.0)
    if how == "canceled":
        job.cancel()
    if how == "lost":
        jobs.found_supervisor_of(job).kill()
    wait_for(lambda: job.view().state.ended, 60.0)
    assert job.view().state.value == how
    return job


@pytest.mark.fault(
    "restarts",
    "a failed, canceled or lost job is resumed from its checkpoint, also twice, with other counts; its own files stay",
)
@pytest.mark.parametrize("how", ["lost", pytest.param("failed", marks=pytest.mark.full),
                                 pytest.param("canceled", marks=pytest.mark.full)])  # fmt: skip
def test_resume(how):
    job = ended(how)
    before = (job.folder.checkpoints / "last.pt").read_bytes()
    spec_before = job.folder.spec_file.read_bytes()
    second = job.resume(name="second")
    third = job.resume(process_count_per_node=2, distributed_backend="torch-gloo", environment_variables={"MORE": "1"})
    for new in (second, third):
        wait_for(lambda new=new: begun_at(new), 120.0)
        assert begun_at(new)[0] >= 8
        new.cancel()
        new.wait(60)
        assert new.spec.resumed_from == job.id
        assert new.view().resumed_from == job.id
    assert third.spec.process_count == 2
    assert third.spec.environment_variables["MORE"] == "1"
    # What the new jobs saved changed nothing of the old one's.
    assert (job.folder.checkpoints / "last.pt").read_bytes() == before
    assert job.folder.spec_file.read_bytes() == spec_before
    assert second.rerun().spec.resumed_from == ""
    wait_for(lambda: begun_at(attach(newest())) == [0], 120.0)
    attach(newest()).cancel(now=True)
    attach(newest()).wait(60)


def newest():
    from distdl_jupyter import jobs

    return jobs()[0].id


@pytest.mark.fault("restarts", "a job without checkpoints, a running one, one whose code is gone: rejected with a fix")
def test_what_cannot_be_resumed(capsys):
    job = started("plain", steps=2).wait(60)
    with pytest.raises(InvalidSpec, match="saved no checkpoint"):
        job.resume()
    assert main(["resume", job.id]) == 2
    assert "saved no checkpoint" in capsys.readouterr().err
    living = started("plain", steps=100_000)
    wait_for(lambda: living.folder.has_checkpoints, 60.0)
    with pytest.raises(DistDLError, match=r"is still (running|starting)"):
        living.resume()
    living.cancel(now=True)
    living.wait(60)
    with pytest.raises(InvalidSpec, match="process_count_per_node"):
        living.resume(process_count_per_node=0)
    (living.folder.path / "payload.json").unlink()
    with pytest.raises(DistDLError, match="cannot be read"):
        living.resume()


@pytest.mark.fault("restarts", "a rank killed while it writes its checkpoint: the partial file is never used as one")
@pytest.mark.full
def test_a_half_written_checkpoint():
    half = "path.with_suffix('.new').write_bytes(bytes(1000)); os.kill(os.getpid(), 9)"
    job = started("plain", [(0, 0, 6, half)], max_restarts=1).wait(120)
    assert job.state is State.COMPLETED, text(job)
    assert begun_at(job) == [0, 4]


@pytest.mark.fault("restarts", "a lost node: the job continues with the remaining nodes, the world is smaller")
@pytest.mark.full
def test_a_lost_node():
    fail = [(0, 2, KILLED_AT, "kill"), (0, 3, KILLED_AT, "kill")]
    job = started("torch-gloo", fail, node_count=2, process_count_per_node=2, min_node_count=1, max_restarts=1).wait(
        240
    )
    view = job.view()
    assert view.state is State.COMPLETED, text(job)
    assert (view.node_count, view.process_count, len(view.ranks)) == (1, 2, 2)
    assert len(job.results()) == 2
    assert "rank 0 of 2 begins at step 12" in text(job)
    assert [row.step for row in curve(job)] == list(range(STEPS))


TORCHRUN = """
import os, sys
import torch
import torch.distributed as dist

snapshot = "snapshot.pt"
dist.init_process_group("gloo")
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
assert int(os.environ["TORCHELASTIC_MAX_RESTARTS"]) == 1 and os.environ["TORCHELASTIC_RUN_ID"]
assert int(os.environ["GROUP_WORLD_SIZE"]) == 1 and int(os.environ["ROLE_RANK"]) == rank
epoch = torch.load(snapshot)["epoch"] if os.path.exists(snapshot) else 0
print("starts at epoch", epoch, flush=True)
for epoch in range(epoch, 6):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
    if rank == 0:
        torch.save({"epoch": epoch + 1}, snapshot)
    dist.barrier()
    if epoch == 3 and rank == 1 and restart == 0:
        sys.exit(7)
dist.destroy_process_group()
"""


@pytest.mark.fault(
    "restarts", "an unchanged script for torchrun with snapshots: continues from its snapshot after a restart"
)
@pytest.mark.full
def test_a_script_for_torchrun(tmp_path):
    (tmp_path / "train.py").write_text(TORCHRUN)
    job = submit(entry_script="train.py", source_directory=str(tmp_path), process_count_per_node=2,
                 distributed_backend="torch-gloo", max_restarts=1).wait(240)  # fmt: skip
    assert job.state is State.COMPLETED, text(job)
    assert "SystemExit: 7" in job.view().restarts[0].reason
    assert [line.text for line in job.logs(0) if "starts at" in line.text] == ["starts at epoch 0", "starts at epoch 4"]


@pytest.mark.fault("restarts", "a restart that cannot start: counts as one, the last error is the reason")
def test_a_start_that_fails(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text("import os, shutil; shutil.rmtree(os.getcwd()); os._exit(3)")
    job = submit(entry_script="train.py", source_directory=str(folder), max_restarts=1).wait(120)
    view = job.view()
    assert (view.state, len(view.restarts)) == (State.FAILED, 1)
    assert str(folder) in view.reason
    shutil.rmtree(folder, ignore_errors=True)
