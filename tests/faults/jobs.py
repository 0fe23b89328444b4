"""Jobs to hurt, and what of them is in this machine: supervisor, watchdog, files they hold, numbers they printed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path

import psutil

from distdl_jupyter.core import files
from distdl_jupyter.jobs import client
from distdl_jupyter.node import processes

#: Where a job can leave something outside of its folder.
SHARED = ("/dev/shm/", "/tmp/")
#: What else lies there: locks of ports that live on, folders of tests, maybe this checkout.
_OTHERS = ("/distdl-ports-", "/pytest-", str(Path(__file__).parents[2]))
#: Every backend of the package that needs neither TensorFlow nor Ray, with its number of ranks.
BACKENDS = {"plain": 1, "torch": 2, "horovod-gloo": 2, "horovod-mpi": 2}


def connect(backend):
    """Initialize the backend in a rank; return a function in which all ranks meet."""
    if backend == "plain":
        return lambda: None
    import torch

    if backend.startswith("torch"):
        import torch.distributed as dist

        dist.init_process_group("gloo")
        return lambda: dist.all_reduce(torch.ones(3))
    import horovod.torch as hvd

    hvd.init()
    return lambda: hvd.allreduce(torch.ones(3))


def train(backend, steps=100_000, pause=0.0):
    """Print a number in every step; with more than one rank all of them meet in every step."""
    import time

    meet = connect(backend)
    for step in range(steps):
        meet()
        print(f"line {step}", flush=True)
        time.sleep(pause)


def submit(function, *args, **options):
    """Submit a call of a function."""
    return client.submit(function, args, **options)


def start(backend, function=train, args=None, **options):
    """Start a job of this backend with the ranks that it usually has here."""
    count = options.pop("process_count_per_node", BACKENDS[backend])
    given = (backend,) if args is None else args
    return submit(function, *given, distributed_backend=backend, process_count_per_node=count, **options)


def supervisor_of(job):
    """Return the process of a job's supervisor, None where there is none."""
    # Its watchdog is its parent, and a child of it that is about to become a rank still has its name.
    text, named = job.folder.lock.read_text().strip(), _named_after(job)
    pid = json.loads(text)["pid"] if text else None
    named.sort(key=lambda process: (process.pid == pid, process.pid))
    return named[-1] if named else None


def _named_after(job):
    wanted = {"distdl_jupyter.supervisor", str(job.folder.path)}
    return [one for one in psutil.process_iter(["cmdline"]) if wanted <= set(one.info["cmdline"] or ())]


def found_supervisor_of(job):
    """Return the process of the supervisor of a job that was just submitted."""
    process = supervisor_of(job)
    assert process is not None, f"{job} has no supervisor: {job.folder.supervisor_log.read_text()[-2000:]}"
    return process


def watchdogs_of(supervisor):
    """Return the parents of a supervisor that do nothing but wait for its end."""
    with contextlib.suppress(psutil.Error):
        parent = supervisor.parent()
        if parent is not None and parent.cmdline() == supervisor.cmdline():
            return [parent]
    return []


def kill_supervisor(job, *, watchdog=False, also=()):
    """Kill a job's supervisor, with its watchdog and others at the same moment; return what files the job held.

    In its first moments a process is about to become the watchdog of a supervisor that is not there yet; so it is done
    again until nobody holds the job's lock.
    """
    held = set()
    until = time.monotonic() + 10.0
    while True:
        supervisor = found_supervisor_of(job)
        held |= shared_files([supervisor.pid, *processes.find_job_pids({processes.MARK: job.id})])
        for process in (*(watchdogs_of(supervisor) if watchdog else ()), supervisor, *also):
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs([supervisor], 5.0)
        if not files.read_holder(job.folder.lock).is_held:
            return held
        assert time.monotonic() < until, f"{job} has a supervisor that cannot be killed"


def shared_files(pids):
    """Return the files outside of job folders that these processes have open or mapped."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                found.add(line.split(maxsplit=5)[5] if line.count(" ") >= 5 and "/" in line else "")
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(os.readlink(entry))
    return {path for path in found if path.startswith(SHARED) and not any(one in path for one in _OTHERS)}


def numbers(job, rank):
    """Return the numbers of the lines that a rank has printed, as the job's log has them."""
    lines = (re.fullmatch(r"line (\d+)", line.text) for line in job.logs(rank))
    return [int(line[1]) for line in lines if line]


def cut_log(job, first_lost):
    """Take away the end of a log, from the first event of a type (the last state) on, as a power cut does."""
    lines = job.folder.events.read_bytes().splitlines(keepends=True)
    types = [json.loads(line)["type"] for line in lines]
    at = types.index(first_lost) if first_lost != "state" else len(types) - 1 - types[::-1].index("state")
    job.folder.events.write_bytes(b"".join(lines[:at]))
