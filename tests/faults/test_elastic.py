"""Code that uses ``hvd.elastic.run`` in an ordinary Horovod job: it trains, fails and restarts as a whole."""

import os
import signal

import pytest

from distdl_jupyter import JobFailed
from tests.conftest import until_gone, wait_for
from tests.faults import jobs

pytestmark = pytest.mark.timeout(400)


def train(steps, pause=0.05):
    """Train elastically from the last checkpoint, and report the step and the size of the world."""
    import time

    import horovod.torch as hvd
    import torch

    from distdl_jupyter import checkpoint_dir, log

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    path = checkpoint_dir() / "last.pt"
    first = torch.load(path) if path.exists() else 0

    @hvd.elastic.run
    def loop(state):
        print(f"continues at {state.batch}", flush=True)
        while state.batch < steps:
            optimizer.zero_grad()
            model(torch.ones(4, 2)).pow(2).mean().backward()
            optimizer.step()
            state.batch += 1
            log(step=state.batch, size=hvd.size())
            if state.batch % 5 == 0:
                state.commit()
                if hvd.rank() == 0:
                    torch.save(state.batch, path.with_suffix(".new"))
                    path.with_suffix(".new").replace(path)
            time.sleep(pause)
        return state.batch, hvd.size()

    return loop(hvd.elastic.TorchState(model, optimizer, batch=first))


def start(steps, **options):
    return jobs.start("horovod-gloo", train, (steps,), process_count_per_node=2, **options)


def until_step(job, step):
    def reached():
        view = job.view()
        assert not view.state.ended, f"{view.reason}\n" + "\n".join(map(str, job.logs()))
        return "size" in view.metrics and view.metrics["size"].step >= step

    wait_for(reached, timeout=150, what=f"step {step}")


def test_elastic_code_trains_in_an_ordinary_job():
    job = start(12)
    assert job.results(timeout=200) == [(12, 2)] * 2
    assert any(finding["code"] == "not-elastic-job" for finding in job.spec.findings)


@pytest.mark.fault(
    "restarts",
    "hvd.elastic.run in an ordinary job: all ranks restart together from the last checkpoint; "
    "a rank that is killed is named with its signal, the others ended within 5 s",
)
@pytest.mark.full
def test_a_rank_of_elastic_code_in_an_ordinary_job_is_killed():
    job = start(10_000, max_restarts=1)
    until_step(job, 12)
    os.kill(job.view().ranks[1].pid, signal.SIGKILL)
    wait_for(lambda: len(job.view().restarts) == 1, what="the restart")
    assert "Rank 1 of 2 failed first: ended by SIGKILL" in job.view().restarts[0].reason
    until_step(job, 24)
    assert [line.text for line in job.logs(0) if line.text.startswith("continues at")][-1] != "continues at 0"
    os.kill(job.view().ranks[1].pid, signal.SIGKILL)
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=60)
    assert "Rank 1 of 2 failed first: ended by SIGKILL" in str(caught.value)
    view = job.view()
    assert max(rank.ended for rank in view.ranks) - view.failure.when < 5.0
    assert not until_gone(job.id, 2.0)
