"""A supervisor that is killed at any moment, alone or with its watchdog: the job is lost and nothing else is."""

import html
import os
import random
import signal
import time
from pathlib import Path

import pytest

from distdl_jupyter import JobFailed, attach, submit
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.core.log import FoldedLog
from distdl_jupyter.core.series import MetricStore
from distdl_jupyter.html import job as saved
from distdl_jupyter.jobs import client
from tests.conftest import until_gone, wait_for
from tests.faults import jobs
from tests.processes import distdl
from tests.selection import few_or_all

pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux")]

#: Seconds after the submit; a job takes about four seconds to meet, and the early moments are the delicate ones.
SPANS = ((0.0, 0.1), (0.1, 0.4), (0.4, 1.0), (1.0, 2.0), (2.0, 4.0), (4.0, 7.0))
#: Seconds from the next look at the job to its end.
PROMISED = 10.0


@pytest.fixture
def chance():
    seed = int(os.environ.get("DISTDL_TEST_SEED", random.randrange(2**32)))
    print(f"DISTDL_TEST_SEED={seed} repeats these moments")
    return random.Random(seed)


def is_lost(job, held, told):
    """The promise: lost within 10 s of the next look, no process, no file left, the log whole."""
    looked = time.monotonic()
    wait_for(lambda: job.state.ended, 60, f"the end of the job, {told}")
    assert time.monotonic() - looked < PROMISED, told
    assert (job.state, job.view().reason_code) == (State.LOST, "supervisor-killed"), told
    assert not until_gone(job.id, PROMISED), told
    for rank in range(job.spec.process_count):
        seen = jobs.numbers(job, rank)
        assert seen == list(range(len(seen))), f"rank {rank}: lines are missing, {told}"
    with pytest.raises(JobFailed, match="is lost"):
        job.result()
    left = [path for path in held if os.path.exists(path)]
    assert not left, told


@pytest.mark.fault(
    "supervisor", "lost within 10 s of the next read; ranks and their files are gone, the log is complete"
)
def test_a_supervisor_killed_at_random_moments(chance, injected):
    backends = list(jobs.BACKENDS)
    for turn in range(few_or_all(4, 50)):
        backend, watchdog = backends[turn % len(backends)], chance.random() < 0.4
        moment = chance.uniform(*SPANS[turn % len(SPANS)])
        job = jobs.start(backend)
        time.sleep(moment)
        is_lost(
            job,
            jobs.kill_supervisor(job, watchdog=watchdog),
            f"{backend}, {moment:.4f} s after submit, watchdog too: {watchdog}",
        )
        injected()


@pytest.mark.fault("supervisor", "a supervisor or rank is stopped for two minutes (SIGSTOP): no line is lost")
@pytest.mark.parametrize("stopped", ["supervisor", "rank"])
def test_a_process_that_is_stopped_for_a_while(stopped):
    job = jobs.start("torch", args=("torch", 5_000), process_count_per_node=2)
    wait_for(lambda: all(jobs.numbers(job, rank) for rank in range(2)), what="the training")
    pid = jobs.found_supervisor_of(job).pid if stopped == "supervisor" else job.view().ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(few_or_all(5, 120))
        assert not job.view().state.ended
    finally:
        os.kill(pid, signal.SIGCONT)
    assert job.wait(120).state is State.COMPLETED, job.view().reason
    for rank in range(2):
        assert jobs.numbers(job, rank) == list(range(5_000))


def keep_steps(steps):
    """Continue at the step in the checkpoint directory, which is written in every step."""
    import time

    import distdl_jupyter

    path = distdl_jupyter.checkpoint_dir() / "step"
    for step in range(int(path.read_text()) if path.exists() else 0, steps):
        path.write_text(str(step))
        print(f"line {step}", flush=True)
        time.sleep(0.02)


@pytest.mark.fault(
    "supervisor",
    "one read is enough: every display says why the job is lost, and ends with the command that starts it",
)
@pytest.mark.parametrize(("function", "verb"), [(jobs.train, "rerun"), (keep_steps, "resume")])
def test_every_display_of_a_lost_job_ends_with_the_command_that_starts_it_again(function, verb):
    # The second one has steps left to resume, even if its ranks end late on a busy machine.
    args, last_step = (("plain", 200, 0.02), 199) if function is jobs.train else ((600,), 599)
    job = jobs.start("plain", function, args)
    wait_for(lambda: jobs.numbers(job, 0), what="the first line")
    jobs.kill_supervisor(job)
    assert not until_gone(job.id, PROMISED)
    time.sleep(2)
    listed = distdl("ls").stdout
    assert "Lost" in listed
    assert "Running" not in listed
    view = job.view()
    assert (view.state, view.reason_code) == (State.LOST, "supervisor-killed")
    command = f"distdl {verb} {short_id(job.id)}"
    assert view.reason.endswith(f" run {command}")
    assert view.reason in listed
    shown = distdl("show", job.id).stdout
    assert f"{job.id}: Lost after" in shown
    assert view.reason in shown
    assert view.reason in repr(client.jobs())
    assert view.reason in html.unescape(client.jobs()._repr_html_())
    assert view.reason in saved.render_text(view, MetricStore(), job.spec)
    assert view.reason in html.unescape(saved.render_html(view, MetricStore(), FoldedLog(1), job.spec))
    with pytest.raises(JobFailed) as caught:
        job.result()
    assert (caught.value.code, str(caught.value).endswith(command)) == ("supervisor-killed", True)
    again = attach(distdl(*command.split()[1:]).stdout.strip())
    again.wait(60)
    lines = jobs.numbers(again, 0)
    assert (lines[-1], lines[0] > 0) == (last_step, verb == "resume")


@pytest.mark.fault(
    "supervisor", "a job whose values have all arrived is completed, even if a power failure destroyed part of its log"
)
@pytest.mark.parametrize("first_lost", ["result", "state"])
def test_a_job_that_has_delivered_is_done_without_the_end_of_its_log(first_lost):
    job = submit(abs, (-3,), process_count_per_node=2, distributed_backend="torch")
    assert job.results(timeout=120) == [3, 3]
    jobs.cut_log(job, first_lost)
    again = attach(job.id)
    assert again.wait(20).state is State.COMPLETED
    assert again.results() == [3, 3]
    assert [note["code"] for note in again.view().notes][-1] == "done-without-supervisor"
    jobs.cut_log(job, first_lost)
    job.folder.get_result_path(1).unlink()
    assert attach(job.id).wait(20).state is State.LOST


@pytest.mark.fault("supervisor", "a job continues without its watchdog and ends as usual")
def test_a_watchdog_that_is_killed_harms_nobody():
    job = jobs.start("torch", args=("torch", 300, 0.01))
    wait_for(lambda: jobs.numbers(job, 0), what="the training")
    (watchdog,) = jobs.watchdogs_of(jobs.found_supervisor_of(job))
    watchdog.kill()
    assert job.wait(120).state is State.COMPLETED
    assert jobs.numbers(job, 0) == jobs.numbers(job, 1) == list(range(300))
    assert not until_gone(job.id)
