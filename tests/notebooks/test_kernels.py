"""Jobs and real kernels: who dies, who lives, what the user sees."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from jupyter_client.manager import KernelManager

from distdl_jupyter import attach
from distdl_jupyter.core.state import State
from tests.conftest import until_gone, wait_for

pytestmark = pytest.mark.timeout(300)

TRAIN = """%%distributed -p 2 -b horovod-gloo --name steady -o job
import horovod.torch as hvd
import time, torch
from distdl_jupyter import log
hvd.init()
for step in range(10_000):
    hvd.allreduce(torch.ones(1))
    log(step=step, loss=1 / (step + 1))
    print("step", step)
    time.sleep(0.05)
"""

FAIL = """%%distributed -p 4 -b horovod-gloo --name broken -o job
import horovod.torch as hvd
import torch
hvd.init()
batch = {"image": 1, "target": 2}
for step in range(10_000):
    if step == 50 and hvd.rank() == 1:
        batch["label"]
    hvd.allreduce(torch.ones(1))
"""


class Kernel:
    """A real kernel that is spoken to as a notebook does."""

    def __init__(self):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code, timeout=120):
        """Execute a cell; return its printed text and the last error's traceback ("" without one)."""
        said, failed = [], []

        def hear(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                said.append(content["text"])
            elif message["msg_type"] == "execute_result":
                said.append(content["data"]["text/plain"])
            elif message["msg_type"] == "error":
                failed.append("\n".join(content["traceback"]))

        self.client.execute_interactive(code, timeout=timeout, output_hook=hear)
        return "".join(said), "".join(failed)

    def pid(self):
        return int(self.run("import os; print(os.getpid())")[0])

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel():
    one = Kernel()
    assert one.run("%load_ext distdl_jupyter") == ("", "")
    yield one
    one.close()


def job_of(kernel):
    said, failed = kernel.run("print(job.id)")
    assert not failed
    return attach(said.strip())


def test_a_job_outlives_its_kernels_process_group_and_another_process_reads_and_cancels_it(kernel):
    kernel.run(TRAIN)
    job = job_of(kernel)
    wait_for(lambda: len(job.metrics()) > 10, what="the first metrics")
    os.killpg(os.getpgid(kernel.pid()), signal.SIGKILL)
    before = len(job.metrics())
    wait_for(lambda: len(job.metrics()) > before + 20, what="more metrics after the kernel's death")
    code = (
        "import sys; from distdl_jupyter import attach; job = attach(sys.argv[1]); job.cancel();"
        "print(job.wait(60).state, len(job.metrics()), sum(1 for line in job.logs(0)))"
    )
    answer = subprocess.run([sys.executable, "-c", code, job.id], capture_output=True, text=True, timeout=120)
    state, metrics, lines = answer.stdout.split()
    assert state == "canceled", answer.stderr
    assert int(metrics) > before
    frame = job.metrics()
    for rank in (0, 1):
        steps = frame[frame["rank"] == rank]["step"].tolist()
        assert steps == list(range(len(steps))), "no step is missing"
    printed = [line.text for line in job.logs(0) if line.stream == "out"]
    assert printed == [f"step {n}" for n in range(len(printed))]
    assert int(lines) >= len(printed)
    assert not until_gone(job.id, 1.0)


@pytest.mark.full
def test_an_interrupt_of_the_kernel_leaves_the_job_alone(kernel):
    kernel.run(TRAIN)
    job = job_of(kernel)
    wait_for(lambda: len(job.metrics()) > 4, what="the first metrics")
    kernel.manager.interrupt_kernel()
    before = len(job.metrics())
    wait_for(lambda: len(job.metrics()) > before + 10, what="more metrics after the interrupt")
    job.cancel(now=True)
    job.wait(60)


@pytest.mark.full
def test_a_failing_rank_is_raised_with_its_cell_line_within_five_seconds(kernel):
    kernel.run(FAIL)
    _said, failed = kernel.run("job.result()")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", failed)
    assert "Rank 1 of 4 failed first: KeyError: 'label'" in plain
    assert re.search(r"[Cc]ell \[\d+\].*line 8", plain)
    assert 'batch["label"]' in plain
    assert "3 ranks of 4 ended because of it" in plain
    assert "distdl_jupyter/client.py" not in plain, "only the remote traceback is shown"
    job = job_of(kernel)
    view = job.view()
    assert view.ended - view.failure.when < 5.0
    assert not until_gone(job.id, 0.5)


@pytest.mark.full
def test_a_waiting_cell_is_canceled_by_an_interrupt(kernel):
    message = kernel.client.execute(TRAIN.replace("-o job", "-o job --wait"))
    jobs_home = os.environ["DISTDL_HOME"]
    folder = wait_for(lambda: [name for name in os.listdir(f"{jobs_home}/jobs") if name[0] != "."]
                      if os.path.isdir(f"{jobs_home}/jobs") else None, what="the job")  # fmt: skip
    job = attach(folder[0])
    wait_for(lambda: len(job.metrics()) > 4, what="the first metrics")
    kernel.manager.interrupt_kernel()
    reply = wait_for_reply(kernel, message)
    assert job.wait(60).state is State.CANCELED
    assert reply["content"]["status"] in ("ok", "error")


def wait_for_reply(kernel, message, timeout=60):
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        reply = kernel.client.get_shell_msg(timeout=timeout)
        if reply["parent_header"].get("msg_id") == message:
            return reply
    raise AssertionError("the kernel did not answer")


@pytest.mark.full
def test_run_all_stops_at_a_failed_waiting_cell(kernel):
    _, failed = kernel.run(FAIL.replace("-o job", "-o job --wait"))
    assert "Rank 1 of 4 failed first" in failed
    assert job_of(kernel).state is State.FAILED
