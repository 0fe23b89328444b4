"""Ranks that do not make the same collective calls: the notice, the failure and the stacks say who did not come."""

import time

import pytest

from distdl_jupyter.core.events import State
from tests.conftest import wait_for
from tests.faults.jobs import submit

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("ended")]
TOGETHER = "the last collective operation of each rank is shown, and the rank that did not come is named with its line"


def late_for_a_barrier():
    import time
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=6))
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 0:
        time.sleep(20)
    dist.barrier()


def only_rank_0():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(3))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(5))
    dist.barrier()


def validates_on_rank_0():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model = torch.nn.parallel.DistributedDataParallel(model)
    for _ in range(2):
        model(torch.randn(8, 4)).sum().backward()
    if dist.get_rank() == 0:
        model(torch.randn(8, 4))
    dist.barrier()


def different_shapes():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3 + dist.get_rank()))


def one_batch_less():
    import time

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for _ in range(3 - dist.get_rank()):
        model(torch.randn(8, 4)).sum().backward()
    time.sleep(600)


def different_groups():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(3))
    other = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=other if dist.get_rank() == 0 else None)


def start(code):
    return submit(code, process_count_per_node=2, distributed_backend="torch")


def row(table, rank):
    return next(one for one in table if rank in one.ranks)


def explained(job):
    """Return the stacks of a job that hangs, once they explain it twice: the first may be from before it hangs."""
    last = None

    def look():
        nonlocal last
        view = job.view()
        assert not view.state.ended, (view.reason, [line.text for line in job.logs()])
        if not all(rank.status == "ready" for rank in view.ranks):
            return None
        taken = job.stacks(30)
        before, last = last, taken.finding
        return taken if last is not None and last == before else time.sleep(0.5)

    return wait_for(look, 120, "an explanation")


@pytest.mark.fault("stuck", TOGETHER)
def test_a_barrier_that_times_out_says_where_the_other_rank_was():
    job = start(late_for_a_barrier)
    assert job.wait(120).state is State.FAILED
    view = job.view()
    assert view.failure.code == "collective-missed"
    assert "time.sleep(20)" in view.failure.evidence
    assert (row(view.failure.collectives, 1).operation, row(view.failure.collectives, 1).state) == ("barrier", "failed")
    assert (row(view.failure.collectives, 0).operation, row(view.failure.collectives, 0).state) == (
        "all_reduce",
        "done",
    )


@pytest.mark.fault("stuck", TOGETHER)
def test_tensors_of_different_shapes():
    job = start(different_shapes)
    assert job.wait(120).state is State.FAILED
    failure = job.view().failure
    assert {row(failure.collectives, rank).sizes for rank in (0, 1)} == {"[3]", "[4]"}
    assert "different tensors" in failure.evidence


@pytest.mark.fault("stuck", TOGETHER)
@pytest.mark.parametrize(
    ("code", "finding", "differ", "shown"),
    [
        (only_rank_0, "collective-order", None,
         {"operation": ("all_reduce", "barrier"), "number": (2, 2), "sizes": ("[5]", "")}),
        (validates_on_rank_0, "ddp-buffers", (0,), {"title": ("DDP's broadcast of buffers", None)}),
        (one_batch_less, "collective-missed", (1,), {"caller": ("the backward pass", None)}),
        (different_groups, "collective-missed", None, {"group": ("1", "default"), "number": (1, 2)}),
    ],
)  # fmt: skip
def test_a_hang_is_explained_by_what_each_rank_called(code, finding, differ, shown):
    """``shown`` are fields of the rows of ranks 0 and 1."""
    taken = explained(start(code))
    assert taken.finding.code == finding
    assert differ in (None, taken.finding.ranks)
    for field, values in shown.items():
        for rank, value in enumerate(values):
            assert value in (None, getattr(row(taken.collectives, rank), field)), (rank, field)
