"""An interrupt (the stop button) is answered with one sentence that says what is running and how to stop it."""

import contextlib
import functools
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from distdl_jupyter import jobs, sweep
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import short_id
from tests.conftest import wait_for
from tests.faults.jobs import found_supervisor_of

pytestmark = pytest.mark.timeout(600)

SLOW = """
import time
from distdl_jupyter import attach, check, scale, submit, sweep
class Slow:
    def __reduce__(self):
        print("packing", flush=True)
        time.sleep(60)
        return dict, ()
slow = Slow()
def train(lr=0.1):
    import torch
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    print("up", flush=True)
    while True:
        time.sleep(0.01)
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
def sleep():
    print("up", flush=True)
    time.sleep(600)
"""


def interrupt(kernel, code, when):
    """Run a cell, interrupt it 0.3 s after its output holds ``when``, and return what it showed."""

    @functools.cache
    def press():
        time.sleep(0.3)
        kernel.interrupt()

    ran = kernel.run(code, during=lambda text: press() if when in text else None)
    assert ran.error.startswith("KeyboardInterrupt"), (ran.error, ran.text)
    return ran


@pytest.fixture
def ready(plain_kernel):
    """A kernel with slow values and long jobs; the extension is not loaded."""
    plain_kernel.ok(SLOW)
    yield plain_kernel
    for job in jobs():
        if not job.state.ended:
            job.cancel(now=True)
            job.wait(60)


@pytest.mark.parametrize(
    "call",
    [
        "submit(len, (slow,))",
        "submit(lambda: len(slow))",
        "sweep(lambda lr: slow, {'lr': [0.1, 0.2]})",
        "scale(lambda: slow, [1])",
        "check(lambda: slow)",
        "%load_ext distdl_jupyter\nget_ipython().run_cell_magic('sweep', 'lr=0.1,0.2', 'print(slow, lr)')",
        "%load_ext distdl_jupyter\nget_ipython().run_cell_magic('distributed', '', 'print(slow)')",
        "%load_ext distdl_jupyter\nget_ipython().run_cell_magic('distributed', '--scale 1,2', 'print(slow)')",
    ],
)
def test_an_interrupt_while_packing_starts_nothing_and_says_so(ready, call):
    assert interrupt(ready, call, "packing").traceback == "Interrupted while packing; no job was started."
    assert jobs() == []


@pytest.mark.parametrize("how", ["attach({id!r}).wait()", "job.result()", "for line in job.logs(follow=True): pass"])
def test_an_interrupt_of_waiting_leaves_the_job_running(ready, how):
    ready.ok("job = submit(sleep, name='digits')")
    (job,) = jobs()
    wait_for(lambda: job.state is State.RUNNING)
    ran = interrupt(ready, f"print('waiting', flush=True)\n{how.format(id=job.id)}", "waiting")
    short = short_id(job.id)
    assert ran.traceback == (
        f"Interrupted; job digits ({short}) is still running. To stop it, run attach({short!r}).cancel()"
    )
    assert job.state is State.RUNNING
    ready.ok(f"attach({short!r}).cancel()")
    assert job.wait(60).state is State.CANCELED


NO_STEPS = """
def sleep_with_optimizer():
    import torch
    torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    print("up", flush=True)
    while True:
        time.sleep(0.1)
"""
# Stacks wait for the supervisor, which is stopped here, a profile for the next step, a tracker for its server.
QUESTIONS = {
    "stacks": ("sleep", "job.stacks(60)"),
    "profile": ("sleep_with_optimizer", "job.profile(timeout=60)"),
    "track": ("sleep", "job.track('mlflow', timeout=60)"),
}


@pytest.mark.parametrize(
    "question",
    [
        "stacks",
        "profile",
        pytest.param("track", marks=pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")),
    ],
)
def test_an_interrupt_of_a_question_to_a_job_leaves_it_running(ready, question):
    function, call = QUESTIONS[question]
    with silent_server() as port:
        ready.ok(f"import os\nos.environ['MLFLOW_TRACKING_URI'] = 'http://127.0.0.1:{port}'\n{NO_STEPS}")
        ready.ok(f"job = submit({function}, name='digits')")
        (job,) = jobs()
        wait_for(lambda: any("up" in str(line) for line in job.logs()), what="the rank")
        supervisor = found_supervisor_of(job)
        if question == "stacks":
            supervisor.suspend()
        ran = interrupt(ready, f"print('asking', flush=True)\n{call}", "asking")
        supervisor.resume()
    short = short_id(job.id)
    assert ran.traceback == (
        f"Interrupted; job digits ({short}) is still running. To stop it, run attach({short!r}).cancel()"
    )
    assert job.state is State.RUNNING


@contextlib.contextmanager
def silent_server():
    """Listen on a port of this machine, accept connections and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("call", ["check()", "nodes()"])
def test_an_interrupt_of_a_question_to_a_cluster_is_one_sentence(ready, call, tmp_path):
    with silent_server() as port:
        config = tmp_path / "ssh_config"
        config.write_text(f"Host slow\n  HostName 127.0.0.1\n  Port {port}\n")
        ready.ok(
            "from distdl_jupyter import add_cluster, clusters\n"
            f"lab = add_cluster('interrupted', 'ssh', hosts='slow', ssh_config={str(config)!r})"
        )
        ran = interrupt(ready, f"print('asking', flush=True)\nlab.{call}", "asking")
        ready.ok("lab.remove()")
    assert len(ran.traceback.splitlines()) == 1
    assert ran.traceback.startswith("Interrupted")
    assert "interrupted" in ran.traceback


# The interrupt comes at the worst moment: between the job's folder and its supervisor.
DURING_START = """
import signal
def interrupted(start):
    def run(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        return start(*args, **kwargs)
    return run
import distdl_jupyter.warm, distdl_jupyter.supervisor.control
distdl_jupyter.warm.start_job = interrupted(distdl_jupyter.warm.start_job)
distdl_jupyter.supervisor.control.start_supervisor = interrupted(distdl_jupyter.supervisor.control.start_supervisor)
"""


def test_an_interrupt_during_the_start_leaves_a_whole_job_and_names_it(ready):
    ready.ok(DURING_START)
    ran = ready.run("submit(sleep, name='digits')")
    (job,) = jobs()
    assert ran.traceback.startswith(f"Interrupted; job digits ({short_id(job.id)}) is still queued. To stop it, run ")
    wait_for(lambda: job.state is State.RUNNING)


def test_an_interrupt_during_the_start_of_a_sweep_leaves_a_whole_sweep_and_names_it(ready):
    ready.ok(f"%load_ext distdl_jupyter\n{DURING_START}")
    ran = ready.run("%%sweep lr=0.1,0.2 --name digits --sampler grid\nprint(lr)\nsleep()")
    found = sweep()
    short = short_id(found.id)
    assert ran.traceback == (
        f"Interrupted; sweep digits ({short}) is still running. To stop it, run sweep({short!r}).stop()"
    )
    wait_for(lambda: jobs() and jobs()[0].state is State.RUNNING)
    ready.ok(f"sweep({short!r}).stop()")
    wait_for(lambda: found.state.ended)


@pytest.mark.full
def test_an_interrupt_of_a_sweep_that_is_waited_for_names_it(ready):
    ready.ok("%load_ext distdl_jupyter")
    ran = interrupt(ready, "found = sweep(lambda lr: sleep(), {'lr': [0.1]})\nprint('up')\nfound.wait()", "up")
    short = short_id(sweep().id)
    assert ran.traceback.endswith(f"is still running. To stop it, run sweep({short!r}).stop()")
    ready.ok(f"sweep({short!r}).stop()")
    wait_for(lambda: sweep().state.ended)


def test_an_interrupt_of_a_scaling_study_leaves_nothing_running(ready):
    ready.ok(
        "import threading\nfrom distdl_jupyter import jobs\n"
        "def tell():\n"
        "    while not any('up' in str(line) for job in jobs() for line in job.logs()):\n"
        "        time.sleep(0.2)\n"
        "    print('measuring', flush=True)\n"
    )
    ran = interrupt(ready, "threading.Thread(target=tell).start()\nscale(train, [1, 2])", "measuring")
    assert ran.traceback.startswith("Interrupted with 0 of 2 numbers of processes measured; no run is still running. ")
    command = ran.traceback.partition(", run ")[2]
    assert all(job.state.ended for job in jobs())
    assert ready.ok(f"import distdl_jupyter\n{command.removesuffix('.resume()')}").value["text/html"]


@pytest.mark.full
def test_an_interrupt_of_a_check_leaves_nothing_running(ready):
    ran = interrupt(ready, "import sys\ncheck(sleep)", "")
    assert len(ran.traceback.splitlines()) == 1
    assert all(job.state.ended for job in jobs())


@pytest.mark.full
def test_an_interrupt_of_the_start_of_ranks_leaves_none(ready):
    ready.ok("%load_ext distdl_jupyter\n%env DISTDL_WARM=off")
    tell = "import threading\nthreading.Timer(0.05, print, ('starting',)).start()\n"
    ran = interrupt(ready, f"{tell}%dist_ranks start -p 2 -b torch", "starting")
    assert len(ran.traceback.splitlines()) == 1
    wait_for(lambda: all(job.state.ended for job in jobs()))


def test_in_a_script_the_last_line_says_it(tmp_path, distdl_home):
    script = tmp_path / "submits.py"
    script.write_text(
        "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from distdl_jupyter import submit\n"
        "def sleep(): time.sleep(600)\n"
        "job = submit(sleep, name='digits')\nprint('waiting', flush=True)\njob.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, script], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1].splitlines()
    assert said[-1].startswith("KeyboardInterrupt: Interrupted; job digits (")
    (job,) = jobs()
    job.cancel(now=True)
    job.wait(60)
