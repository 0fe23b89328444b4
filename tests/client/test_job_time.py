"""The time of steps of real trainings on two ranks: what slows one of them is found by name and by size."""

import os
import time

import pytest

from distdl_jupyter import jobs, submit
from distdl_jupyter.cli import main
from distdl_jupyter.views.steps import make_job_time

pytestmark = pytest.mark.timeout(300)

#: A tenth of what a rank sleeps is more than a busy machine adds to a step.
STEPS, SECONDS = 16, 0.12


class SlowRows:
    """Rows of which every eighth takes ``seconds``."""

    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        import torch

        if number % 8 == 0:
            time.sleep(self.seconds)
        return torch.ones(500)


def train(backend, where="", steps=STEPS):
    """Train for ``steps`` steps; rank 1 sleeps in each of them."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    own = where if os.environ["DISTDL_RANK"] == "1" else ""
    net = torch.nn.Linear(500, 500, bias=False)  # one gradient, so that no computation hides its way
    if own == "compute":
        net.register_forward_pre_hook(lambda *_: time.sleep(SECONDS))
    if backend == "torch":
        torch.distributed.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    else:
        import horovod.torch as hvd

        hvd.init()
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.01), net.named_parameters())
    for rows in DataLoader(SlowRows(8 * steps, SECONDS if own == "data" else 0), batch_size=8):
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        optimizer.step()
        time.sleep(SECONDS if own == "rest" else 0)


def run(backend, *args, ranks=2, **more):
    job = submit(train, (backend, *args), more, process_count_per_node=ranks, distributed_backend=backend)
    job.results(timeout=240)
    assert [note["text"] for note in job.view().notes if note.get("code") in ("hook-failed", "step-times-failed")] == []
    return job.time()


@pytest.mark.parametrize("where", ["data", "compute", pytest.param("rest", marks=pytest.mark.full)])
@pytest.mark.parametrize("backend", ["torch", pytest.param("horovod-gloo", marks=pytest.mark.full)])
def test_rank_that_slows_the_others_is_found_with_cause_and_cost(backend, where):
    times = run(backend, where)
    found = times.straggler
    assert (found.rank, found.cause) == (1, where)
    assert found.host
    slow, other = times.ranks()[1], times.ranks()[0]
    assert found.seconds == pytest.approx(SECONDS, rel=0.1)
    assert getattr(slow, where) - getattr(other, where) == pytest.approx(SECONDS, rel=0.1)
    assert other.waiting - slow.waiting == pytest.approx(SECONDS, rel=0.1)


def pause(seconds, steps):
    """Train for ``steps`` steps of which rank 0 pauses ``seconds`` after every tenth."""
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        time.sleep(0.03)
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if torch.distributed.get_rank() == 0 and step % 10 == 9:
            time.sleep(seconds)


def test_rank_that_pauses_now_and_then_is_named_and_equal_ranks_are_not():
    job = submit(pause, (0.5, 40), process_count_per_node=2, distributed_backend="torch")
    job.results(timeout=240)
    found = job.time().straggler
    assert (found.rank, found.cause, found.pauses, found.ended) == (0, "rest", 3, True)
    assert found.pause_seconds == pytest.approx(0.5, rel=0.1)
    job = submit(pause, (0, 12), process_count_per_node=2, distributed_backend="torch")
    job.results(timeout=240)
    assert job.time().straggler is None
    assert "Too few steps" in str(job.time())


def test_parts_of_each_step_and_rank_add_up_to_it_and_every_surface_shows_them(capsys):
    times = run("horovod-gloo", steps=5)
    assert [(row.step, row.rank) for row in times.rows] == [(step, rank) for step in range(5) for rank in (0, 1)]
    for row in times.rows:
        parts = row.data + row.compute + row.waiting + row.communication + row.rest
        assert parts == pytest.approx(row.seconds, abs=1e-5)
        assert row.samples == 8
    assert times.samples_per_second > 0
    assert list(times.to_pandas().columns[:4]) == ["rank", "attempt", "step", "steps"]
    assert len(times.to_pandas()) == 10
    bars = times.figure().data
    assert [bar.name for bar in bars] == ["data", "compute", "communication", "rest", "waiting for others"]
    assert sum(bar.x[1] for bar in bars) == pytest.approx(1000 * times.ranks()[1].seconds, abs=0.1)
    assert "waiting for others" in times._repr_html_()
    (job,) = jobs()
    assert main(["time", job.id]) == 0
    assert capsys.readouterr().out == f"{times}\n"
    assert main(["time", job.id, "--csv"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "rank,attempt,step,steps,seconds,data,compute,waiting,communication,rest,samples,host"
    assert [line.split(",")[:4] for line in lines[:2]] == [["0", "0", "0", "1"], ["1", "0", "0", "1"]]
    page = make_job_time(times, 2)
    assert [(row.step, row.rank) for row in page.steps] == [(3, 0), (3, 1), (4, 0), (4, 1)]
    assert (page.sentences, page.ranks) == (tuple(str(times).splitlines()[:2]), tuple(times.ranks()))


def test_job_that_trains_nothing_has_an_empty_table_and_says_why():
    job = submit(len, ([1],))
    job.wait(120)
    times = job.time()
    assert (times.rows, times.straggler, times.samples_per_second) == ([], None, None)
    assert len(times.to_pandas()) == 0
    assert str(times) == (
        "No step has been measured: a step ends with an optimizer step after a backward pass (torch), or a batch of "
        "Model.fit (Keras), and none has."
    )
