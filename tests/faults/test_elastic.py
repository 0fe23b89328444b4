"""Elastic Horovod jobs: processes die, hosts come and go, and the training goes on where it was."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from distdl_jupyter import JobFailed
from distdl_jupyter.core.state import State
from tests.conftest import until_gone, wait_for
from tests.faults import jobs
from tests.written import all_written

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

#: Steps between two commits.
COMMIT = 5


def train(steps, pause=0.05, raises_at=None):
    """Train elastically; report the step, the size of the world and this process."""
    import os
    import time

    import horovod.torch as hvd
    import torch

    from distdl_jupyter import log

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    @hvd.elastic.run
    def loop(state):
        print(f"goes on from {state.batch}", flush=True)
        while state.batch < steps:
            optimizer.zero_grad()
            model(torch.ones(4, 2)).pow(2).mean().backward()
            optimizer.step()
            state.batch += 1
            log(step=state.batch, size=hvd.size(), pid=os.getpid(), rank=hvd.rank())
            if state.batch == raises_at and os.environ["DISTDL_RANK"] == "1":
                raise KeyError("label")
            if state.batch % 5 == 0:
                state.commit()
            time.sleep(pause)
        return state.batch, hvd.size()

    return loop(hvd.elastic.TorchState(model, optimizer, batch=0))


def start(count, *args, function=train, **options):
    options = {"max_restarts": 3, **options}
    return jobs.start("horovod-gloo", function, args, process_count_per_node=count, elastic=True, **options)


def reports(job):
    """Return (rank, step, size, pid) of all reports, and "restart" where ranks were replaced."""
    found = []
    for event in all_written(job.folder):
        if event["type"] == "metric":
            values = event["values"]
            found.append((event["rank"], int(event["step"]), int(values["size"]), int(values["pid"])))
        elif event["type"] == "restart":
            found.append("restart")
    return found


def steps(job, **wanted):
    names = ("rank", "step", "size", "pid")
    rows = [dict(zip(names, row, strict=True)) for row in reports(job) if row != "restart"]
    return [row["step"] for row in rows if all(row[name] == value for name, value in wanted.items())]


def until_step(job, step, **wanted):
    def reached():
        view = job.view()
        assert not view.state.ended, f"{view.reason}\n" + "\n".join(map(str, job.logs()))
        return max(steps(job, **wanted), default=0) >= step

    wait_for(reached, timeout=150, what=f"step {step} with {wanted}")


def descendants(job):
    """Return the job's processes but its supervisor."""
    return jobs.found_supervisor_of(job).children(recursive=True)


def leader_of(job):
    return next(one for one in descendants(job) if "distdl_jupyter.backends.elastic" in one.cmdline())


@pytest.mark.fault("restarts", "the others keep process and state, the dead one is replaced, no step restarts from 0")
@pytest.mark.parametrize(
    ("count", "victim"), [(2, 0), pytest.param(2, 1, marks=pytest.mark.full),
                          pytest.param(3, 0, marks=pytest.mark.full)],
)  # fmt: skip
def test_a_rank_of_an_elastic_job_that_is_killed(count, victim):
    job = start(count, 60)
    until_step(job, 12)
    pids = {rank.rank: rank.pid for rank in job.view().ranks}
    os.kill(pids[victim], signal.SIGKILL)
    assert job.results(timeout=200) == [(60, count)] * count
    view = job.view()
    assert [(one.rank, one.reason) for one in view.restarts] == [(victim, f"Rank {victim} failed: ended by SIGKILL.")]
    assert view.ranks[victim].pid not in pids.values()
    assert all(view.ranks[rank].pid == pids[rank] for rank in pids if rank != victim)
    assert [(rank.code, rank.ok) for rank in view.ranks] == [(0, True)] * count

    told = reports(job)
    after = [row[1] for row in told[told.index("restart") + 1 :]]
    before = max(row[1] for row in told[: told.index("restart")])
    assert before - COMMIT <= min(after) <= before + 1, "it goes on behind the last commit"
    assert sorted(set(steps(job))) == list(range(1, 61))
    assert any("goes on from" in line.text and not line.text.endswith("from 0") for line in job.logs(victim))


@pytest.mark.fault("restarts", "new hosts join at the next commit, and no rank waits for removed hosts")
def test_hosts_that_come_and_go(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("node-0:1\n")
    job = start(1, 10_000, 0.1, node_count=2, min_node_count=1, host_discovery=str(hosts))
    until_step(job, 5, size=1)
    assert job.view().ranks[1].status == "waiting"
    hosts.write_text("node-0:1\nnode-1:1\n# a remark\n")
    until_step(job, 10, size=2)
    assert steps(job, size=2, rank=1)[0] > 1, "it has the others' state"
    hosts.write_text("node-1:1\n")  # the one that the training began on
    alone = max(steps(job, size=2))
    until_step(job, alone + 1, size=1, rank=1)
    wait_for(lambda: job.view().ranks[0].status == "waiting", what="the end of the process that had to go")
    hosts.write_text("node-0:1\nnode-1:1\n")
    until_step(job, max(steps(job, size=1)) + 1, size=2)
    assert not job.view().restarts, "nothing has failed"
    job.cancel()
    assert job.wait(60).state is State.CANCELED
    assert not until_gone(job.id, 5.0)


@pytest.mark.fault("restarts", "failed with a sentence after the timeout for processes to connect")
def test_too_few_hosts_for_too_long(tmp_path):
    script = tmp_path / "discover"
    script.write_text("#!/bin/sh\necho node-0:1\n")
    script.chmod(0o700)
    job = start(1, 100, node_count=2, host_discovery=str(script), elastic_timeout_seconds=6)
    with pytest.raises(JobFailed, match="only 1 process could run"):
        job.result(timeout=120)
    said = "For 6 s only 1 process could run, but the job needs at least 2."
    assert job.view().reason == said
    assert not job.view().restarts, "waiting once is enough"
    assert not until_gone(job.id, 5.0)


@pytest.mark.fault("restarts", "one failure more than max_restarts fails the job with its own cause, within 5 s")
def test_more_failures_than_an_elastic_job_makes_good():
    job = start(2, 10_000, max_restarts=0)
    until_step(job, 3)
    os.kill(job.view().ranks[1].pid, signal.SIGKILL)
    began = time.time()
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=60)
    assert "Rank 1 of 2 failed first: ended by SIGKILL" in str(caught.value)
    assert job.view().ended - began < 10
    assert not until_gone(job.id, 2.0)


@pytest.mark.fault(
    "restarts", "the job recovers from an exception like from any failure, then fails with that exception"
)
def test_code_that_raises_in_an_elastic_job():
    job = start(2, 100, 0.05, 12, max_restarts=1)
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=200)
    assert "Rank 1 of 2 failed first: KeyError: 'label'" in str(caught.value)
    assert [one.reason for one in job.view().restarts] == ["Rank 1 failed: KeyError: 'label'."]


def never_right(steps):
    """Make the same mistake in every attempt: the shapes that are averaged differ."""
    import horovod.torch as hvd
    import torch

    hvd.init()

    @hvd.elastic.run
    def loop(state):
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="uneven")

    loop(hvd.elastic.TorchState(batch=0))


@pytest.mark.fault(
    "restarts", "an error of Horovod that occurs every time ends with a sentence, without endless retries"
)
def test_an_error_that_comes_back_in_an_elastic_job():
    job = start(2, 1, function=never_right, max_restarts=2)
    with pytest.raises(JobFailed):
        job.result(timeout=200)
    assert job.view().reason.startswith(
        "The processes reconnected without a failure more often than max_restarts allows"
    )
    assert not until_gone(job.id, 5.0)


def not_elastic(die):
    """Train without ``hvd.elastic.run``: whoever loses a peer ends."""
    import os
    import time

    import horovod.torch as hvd
    import torch

    hvd.init()
    for step in range(10_000):
        hvd.allreduce(torch.ones(1))
        if step == 20 and os.environ["DISTDL_RANK"] == "1" and die:
            os.kill(os.getpid(), 9)
        time.sleep(0.01)


@pytest.mark.fault("restarts", "code without hvd.elastic.run fails with the first cause, not with its echo")
def test_code_that_cannot_go_on_in_an_elastic_job():
    job = start(2, True, function=not_elastic, max_restarts=1)
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=200)
    assert "Rank 1 of 2 failed first: ended by SIGKILL" in str(caught.value)
    assert [one.reason.partition(".")[0] for one in job.view().restarts] == [
        "Rank 1 of 2 failed first: ended by SIGKILL"
    ], "all began anew together"


@pytest.mark.fault("supervisor", "nothing of an elastic job is left, whichever of its leaders is killed")
@pytest.mark.parametrize("who", ["supervisor", "leader"])
def test_leaders_of_an_elastic_job_that_are_killed(who):
    job = start(2, 10_000, max_restarts=0)
    until_step(job, 3)
    if who == "supervisor":
        jobs.found_supervisor_of(job).kill()
        assert not until_gone(job.id, 10.0)
        wait_for(lambda: job.view().state is State.LOST, what="the end as lost")
    else:
        leader_of(job).kill()
        assert job.wait(60).state is State.FAILED
        assert job.view().reason == (
            f"Rank 0 of 2 failed first: lost with {job.view().ranks[0].host}. "
            "The driver of the elastic job was ended by SIGKILL."
        )
    assert not until_gone(job.id, 10.0)


@pytest.mark.fault("entry", "no port on other interfaces, no answer without the job's secret, which is written nowhere")
@pytest.mark.cold  # the environment of a forked process is not shown by /proc
def test_ports_of_an_elastic_job():
    import urllib.error
    import urllib.request

    job = start(2, 10_000)
    until_step(job, 3)
    processes = descendants(job)
    listening = [one.laddr for process in processes for one in process.net_connections() if one.status == "LISTEN"]
    assert {address.ip for address in listening} == {"127.0.0.1"}

    rank = psutil.Process(job.view().ranks[0].pid).environ()
    where, secret = rank["HOROVOD_GLOO_RENDEZVOUS_ADDR"].split("/")
    for path in ("global/0", "rank_and_size/node-0:0", f"{'0' * len(secret)}:{where.split(':')[1]}/global/0"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://{where}/{path}", timeout=10)
    assert not any(secret in word for process in processes for word in process.cmdline())
    job.cancel()
    job.wait(60)
    files = [path for path in Path(job.folder.path).rglob("*") if path.is_file()]
    assert files
    assert not any(secret.encode() in path.read_bytes() for path in files)


@pytest.mark.fault("rank", "hvd.elastic.run in an ordinary job: named with its signal, the others ended within 5 s")
def test_a_rank_of_elastic_code_in_an_ordinary_job_that_is_killed():
    job = jobs.start("horovod-gloo", train, (10_000,), process_count_per_node=2)
    until_step(job, 3)
    os.kill(job.view().ranks[1].pid, signal.SIGKILL)
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=60)
    assert "Rank 1 of 2 failed first: ended by SIGKILL" in str(caught.value)
    view = job.view()
    assert max(rank.ended for rank in view.ranks) - view.failure.when < 5.0
    assert any(finding["code"] == "not-elastic-job" for finding in job.spec.findings)
    assert not until_gone(job.id, 2.0)
