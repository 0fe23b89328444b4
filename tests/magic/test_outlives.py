"""Jobs and real kernels: who dies, who lives, what the user sees."""

import os
import signal
import subprocess
import sys

import pytest

from distdl_jupyter import jobs
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


def test_a_job_outlives_its_kernels_process_group_and_another_process_reads_and_cancels_it(kernel):
    kernel.ok(TRAIN)
    (job,) = jobs()
    wait_for(lambda: len(job.metrics()) > 10, what="the first metrics")
    pid = int(kernel.ok("import os\nos.getpid()").value["text/plain"])
    os.killpg(os.getpgid(pid), signal.SIGKILL)
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
