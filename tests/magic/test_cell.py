"""What a cell that waits does when interrupts come at the wrong moment, without a kernel."""

from types import SimpleNamespace

from distdl_jupyter.core.events import State
from distdl_jupyter.magic import cell


class Waiting:
    """A job whose first wait, and first cancel, is interrupted."""

    name, id = "digits", "20261121-024912-k3f9x"
    state = State.CANCELING
    spec = SimpleNamespace(cluster="local")

    def __init__(self):
        self.waits, self.cancels = 0, []

    def wait(self):
        self.waits += 1
        if self.waits == 1:
            raise KeyboardInterrupt

    def cancel(self, *, now):
        self.cancels.append(now)
        if len(self.cancels) == 1:
            raise KeyboardInterrupt

    def result(self):
        return 3


def test_an_interrupt_while_the_first_one_is_obeyed_is_the_second_one():
    job = Waiting()
    assert cell._wait_for_job(job) == 3
    assert job.cancels == [False, True]
