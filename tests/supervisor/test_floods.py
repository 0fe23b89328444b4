"""Real jobs whose ranks print as fast as they can."""

import sys
from pathlib import Path

import pytest

from distdl_jupyter import submit
from distdl_jupyter.core.events import read
from distdl_jupyter.core.logline import last_lines
from distdl_jupyter.core.state import State
from tests.conftest import until_gone, wait_for
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


def floods():
    """Rank 0 prints for ever with few processor seconds to spare; rank 1 reports now and then."""
    import itertools
    import os
    import signal
    import time

    from distdl_jupyter import log

    if os.environ["RANK"] == "0":
        block = b"epoch 1 loss 0.123456 of a step like any other\n" * 1000
        try:
            while True:
                os.write(1, block)
        except KeyboardInterrupt:
            print("\nsaved")  # behind the piece of a line that the interrupt has cut
            return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for step in itertools.count():
        log(step=step, sent=time.time())
        time.sleep(0.1)


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


@pytest.mark.full
def test_of_a_log_that_is_too_long_the_first_and_the_last_lines_are_kept_and_metrics_and_results_still_come():
    job = on(prints, 100_000, max_log_bytes=1_200_000)
    assert job.results() == [0, 1]
    found = all_written(job.folder)
    taken = sum(
        len(event["text"].encode()) + 1 for event in found if event["type"] == "log" and event["rank"] is not None
    )
    assert 900_000 - 70_000 < taken <= 1_200_000
    kept = [lines_of(job, rank) for rank in (0, 1)]
    assert [lines[:1000] for lines in kept] == [[f"{rank} {n}" for n in range(1000)] for rank in (0, 1)]
    # One that is done much earlier than the other is not among the last lines.
    last = [lines[-1000:] == [f"{rank} {n}" for n in range(99_000, 100_000)] for rank, lines in enumerate(kept)]
    assert any(last)
    assert [lines_of(job, rank, "err") for rank in (0, 1) if last[rank]] == [["end"]] * sum(last)
    assert job.view().lines >= 2 * 100_000 + 2
    assert [event["code"] for event in found if event["type"] == "note" and event["level"] == "warning"].count(
        "log-limit"
    ) == 1
    steps = {(event["rank"], event["step"]) for event in found if event["type"] == "metric"}
    assert steps == {(rank, n) for rank in (0, 1) for n in (*range(0, 100_000, 10_000), 100_000)}


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the memory of a process in /proc")
@pytest.mark.cold
def test_in_a_flood_without_end_metrics_come_memory_stays_and_a_cancel_is_obeyed():
    job = on(floods, stop_grace_seconds=60)

    reader = Metrics(job.folder.events)
    wait_for(lambda: reader.count() > 20, what="metrics of the quiet rank")
    ranks = {rank.pid for rank in job.view().ranks}
    (supervisor,) = {parent(pid) for pid in ranks}
    wait_for(lambda: job.folder.log.stat().st_size > 100_000_000, what="a hundred megabytes")
    before = reader.count()
    wait_for(lambda: reader.count() > before + 5, what="more metrics in the flood")
    assert most_memory(supervisor) < 120
    job.cancel()
    job.wait(60)
    assert job.state is State.CANCELED
    assert any(line.text == "saved" for line in last_lines(job.folder.log, 3000)[0])
    assert not until_gone(job.id)


class Metrics:
    """Counts the metrics of a log that grows."""

    def __init__(self, path):
        self._path, self._cursor, self._count = path, 0, 0

    def count(self):
        while True:
            found, cursor = read(self._path, self._cursor)
            if cursor == self._cursor:
                return self._count
            self._cursor = cursor
            self._count += sum(event["type"] == "metric" for event in found)


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def most_memory(pid):
    """The most memory that a process has held, in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmHWM"))
