"""What keeps a rank's process alive after its code has ended is named, and the value survives a cancel."""

import pytest

from distdl_jupyter import submit
from distdl_jupyter.core.errors import JobFailed
from distdl_jupyter.core.events import State
from tests.conftest import wait_for
from tests.written import notes

pytestmark = pytest.mark.timeout(120)


def leave_behind(kind, daemon=False):
    """Start something that lasts, and return."""
    import multiprocessing
    import threading
    import time
    from concurrent.futures import ThreadPoolExecutor

    if kind == "thread":
        threading.Thread(target=time.sleep, args=(600,), name="prefetcher", daemon=daemon).start()
    elif kind == "process":
        target = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), name="loader")
        target.daemon = daemon
        target.start()
    else:
        ThreadPoolExecutor(1, "pool").submit(time.sleep, 600)
    return 42


@pytest.mark.parametrize(
    ("kind", "name"), [("thread", "thread 'prefetcher'"), ("process", "child process 'loader'"), ("pool", "'pool_0'")]
)
def test_what_keeps_the_process_alive_is_named_and_the_value_survives_a_cancel(kind, name):
    job = submit(leave_behind, (kind,), process_count_per_node=2, distributed_backend="torch")
    (text,) = wait_for(lambda: notes(job, "kept-alive"), 60, "the note")
    assert text.startswith("The function has returned, but ")
    assert f"{name} keeps the process alive" in text
    assert not job.state.ended
    job.cancel()
    job.wait(60)
    assert job.state is State.CANCELED
    assert (job.result(), job.results()) == (42, [42, 42])


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_daemons_end_with_the_code(kind):
    job = submit(leave_behind, (kind, True))
    assert job.result(timeout=60) == 42
    assert notes(job, "kept-alive") == []


def work_on_rank_1():
    import os
    import time

    time.sleep(600 * int(os.environ["DISTDL_RANK"]))
    return 42


def test_a_job_that_is_canceled_before_all_values_are_there_has_none():
    job = submit(work_on_rank_1, process_count_per_node=2, distributed_backend="torch")
    wait_for(lambda: job.view().ranks[0].ok, 60, "the value of rank 0")
    job.cancel(now=True)
    with pytest.raises(JobFailed, match="was canceled"):
        job.result(timeout=60)
