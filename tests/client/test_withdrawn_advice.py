"""What was read from the code before the start is withdrawn when the running ranks show that it is wrong."""

import pytest

from distdl_jupyter import submit

pytestmark = pytest.mark.timeout(200)


def train(wraps):
    """Train with the names of torch hidden from who reads the code."""
    import torch

    getattr(torch.distributed, "init_process" + "_group")("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    if wraps:
        model = getattr(torch.nn.parallel, "Distributed" + "DataParallel")(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("wraps", [True, False])
def test_advice_that_the_ranks_disprove_is_withdrawn(distdl_home, wraps):
    job = submit(train, (wraps,), process_count_per_node=2, distributed_backend="torch").wait()
    read = {finding["code"] for finding in job.spec.findings}
    assert {"backend-not-initialised", "gradients-not-averaged"} <= read
    left = {note["code"] for note in job.view().notes}
    assert "backend-not-initialised" not in left
    assert ("gradients-not-averaged" in left) == (not wraps)
    assert job.rerun(process_count_per_node=1).view().notes == []
