"""What a job of ``functions.stuck`` shows."""

from tests.conftest import wait_for


def stacks_of_stuck(job, backend, seconds=40):
    """Wait until a job of ``stuck`` is where it stays, and return its stacks, which name rank 1."""
    wait_for(lambda: job.view().state.ended or all(rank.last_step == 2 for rank in job.view().ranks), 180, "step 3")
    module = "torch.distributed" if backend == "torch" else "hvd"
    taken = wait_for(lambda: (found := job.stacks(seconds)).ranks[0].main.awaited_call.startswith(module) and found, 90)
    assert taken.missing == {}
    assert taken.outliers == (1,)
    assert taken.ranks[1].main.user_frame.source == "time.sleep(3600)"
    return taken
