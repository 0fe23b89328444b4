"""The supervisor of a warm job, killed at any moment with its watchdog and the template that forked both."""

import os
import random
import time

import psutil
import pytest

from distdl_jupyter.core.events import State
from distdl_jupyter.warm import start as warm_start
from tests.conftest import until_gone, wait_for
from tests.faults import jobs
from tests.selection import few_or_all
from tests.starting import revive
from tests.warm.conftest import cold_reason

pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="Linux")]

#: Seconds after the submit; a warm job trains after half a second.
SPANS = ((0.0, 0.05), (0.05, 0.3), (0.3, 1.0), (1.0, 3.0))
#: Seconds from the next look at the job to its end.
PROMISED = 10.0


@pytest.mark.full
@pytest.mark.fault(
    "supervisor", "lost within 10 s of the next read; ranks and their files are gone, the log is complete"
)
def test_a_supervisor_killed_with_its_watchdog_and_template(distdl_home, injected):
    seed = int(os.environ.get("DISTDL_TEST_SEED", random.randrange(2**32)))
    print(f"DISTDL_TEST_SEED={seed} repeats these moments")
    chance = random.Random(seed)
    backends = list(jobs.BACKENDS)
    for turn in range(few_or_all(2, 8)):
        backend, moment = backends[turn % len(backends)], chance.uniform(*SPANS[turn % len(SPANS)])
        revive()
        job = jobs.start(backend)
        time.sleep(moment)
        # What the template learns from the job may make it begin anew.
        template = wait_for(lambda: warm_start.get_status(warm_start.get_template_files()), what="a template")
        held = jobs.kill_supervisor(job, watchdog=True, also=(psutil.Process(template["pid"]),))
        told = f"{backend}, {moment:.4f} s after submit"
        looked = time.monotonic()
        wait_for(lambda: job.state.ended, 60, f"the end, {told}")  # noqa: B023 - called here and now
        assert time.monotonic() - looked < PROMISED, told
        assert job.state is State.LOST, told
        assert not until_gone(job.id, PROMISED), told
        # The template took the job; ranks that mpirun starts are new interpreters all the same.
        assert cold_reason(job) in ("", "This job starts cold because mpirun starts them."), told
        for rank in range(job.spec.process_count):
            seen = jobs.numbers(job, rank)
            assert seen == list(range(len(seen))), f"rank {rank}: lines are missing, {told}"
        assert not [path for path in held if os.path.exists(path)], told
        injected()
