"""Real jobs whose ranks print as fast as they can."""

import pytest

from distdl_jupyter import submit
from tests.selection import few_or_all
from tests.written import all_written

pytestmark = pytest.mark.timeout(240)


def prints(lines):
    import os
    import sys

    import torch.distributed

    from distdl_jupyter import log

    rank = os.environ["RANK"]
    # The first lines of a log are those of the rank that is there first: both begin together.
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
    for n in range(lines):
        print(rank, n)
        if n % 10_000 == 0:
            log(step=n, loss=n / 10)
    print("end", file=sys.stderr)
    log(step=lines, loss=0.0)
    torch.distributed.destroy_process_group()
    return int(rank)


def on(function, *args, **options):
    return submit(function, args=args, process_count_per_node=2, distributed_backend="torch", **options)


def lines_of(job, rank, stream="out"):
    return [line.text for line in job.logs(rank) if line.stream == stream]


def test_every_line_of_a_flood_is_in_the_log_in_its_order_when_the_job_has_ended():
    many = few_or_all(50_000, 150_000)
    job = on(prints, many)
    assert job.results() == [0, 1]
    for rank in (0, 1):
        assert lines_of(job, rank) == [f"{rank} {n}" for n in range(many)]
        assert lines_of(job, rank, "err") == ["end"]
    assert job.view().lines >= 2 * many + 2
    assert sum(event["type"] == "metric" for event in all_written(job.folder)) == 2 * (many // 10_000 + 1)
