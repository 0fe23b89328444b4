"""A job on this machine listens on the loopback interface only, and what is ours asks for the job's secret."""

import contextlib
import http.client
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from distdl_jupyter.jobs import client
from distdl_jupyter.node import processes
from distdl_jupyter.worker.identity import derive_rendezvous_secret
from tests.conftest import wait_for

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(sys.platform != "linux", reason="/proc lists sockets")]
TIMEOUT = 300


def _meet(backend, go):
    if backend.startswith("horovod"):
        import horovod.torch as hvd
        import torch

        hvd.init()
        hvd.allreduce(torch.ones(1))
    elif backend == "torch":
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1))
    elif backend == "tensorflow":
        import tensorflow as tf

        tf.distribute.MultiWorkerMirroredStrategy()
    elif backend == "ray":
        import ray

        ray.init()
        assert ray.get(ray.remote(lambda: 1).remote()) == 1
    print("met", flush=True)
    while not os.path.exists(go):
        time.sleep(0.05)
    if backend == "torch":
        dist.destroy_process_group()
    return True


#: Open MPI's own programs wait for their daemons on every interface, also where there are none (SECURITY.md).
LAUNCHERS = ("mpirun", "prterun", "orterun")
BACKENDS = [
    ("torch", 2), ("horovod-gloo", 2),
    *(pytest.param(*one, marks=pytest.mark.full)
      for one in (("plain", 1), ("horovod-mpi", 2), ("tensorflow", 2), ("ray", 1))),
]  # fmt: skip


def listening(pids, programs=()):
    """Return addresses and ports on which processes listen, or those of them that run one of the programs."""
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if not programs or Path(process.exe()).name in programs:
                found |= {one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.parametrize(("backend", "count"), BACKENDS)
def test_a_job_here_listens_on_the_loopback_only(distdl_home, tmp_path, backend, count):
    go = tmp_path / "go"
    job = client.submit(_meet, (backend, str(go)), process_count_per_node=count, distributed_backend=backend)
    wait_for(
        lambda: job.view().state.ended or sum("met" in str(line) for line in job.logs()) >= count,
        TIMEOUT, f"all ranks of {backend}",
    )  # fmt: skip
    pids = processes.find_job_pids({processes.MARK: job.id})
    found, launchers = listening(pids), listening(pids, LAUNCHERS)
    go.touch()
    assert all(job.results(TIMEOUT)), "\n".join(map(str, job.logs()))
    assert (backend == "plain") == (not found), "a backend of several processes meets over TCP"
    away = {where for where in found if not where[0].startswith("127.") and where[0] not in ("::1", "::ffff:127.0.0.1")}
    if backend == "tensorflow":
        assert len(away) == count, "its workers' servers, which cannot be bound to an address (SECURITY.md)"
    else:
        assert away <= launchers, f"{backend} listens on {sorted(found)}"


def _asked(port, path, method="GET", value=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, value)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.cold  # a warm rank shows only a part of its environment
def test_where_horovods_ranks_meet_a_stranger_is_turned_away(distdl_home, tmp_path):
    go = tmp_path / "go"
    job = client.submit(_meet, ("horovod-gloo", str(go)), process_count_per_node=2, distributed_backend="horovod-gloo")
    wait_for(lambda: job.view().state.ended or "met" in "".join(map(str, job.logs())), TIMEOUT, "the ranks")
    pid = job.view().ranks[1].pid
    start = dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in line)
    port, secret = int(start["HOROVOD_GLOO_RENDEZVOUS_PORT"]), derive_rendezvous_secret(start["DISTDL_NONCE"])
    known = f"/{secret}:{port}/a/b"
    assert _asked(port, known, "PUT", b"true")[0] == 200
    for wrong in ("/a/b", f"/{secret[:-1]}:{port}/a/b", f"/:{port}/a/b", "/", f"/a{known}"):
        for method in ("GET", "PUT", "DELETE"):
            assert _asked(port, wrong, method, b"false" if method == "PUT" else None)[0] == 403, (method, wrong)
    assert _asked(port, known) == (200, b"true")
    for one in processes.find_job_pids({processes.MARK: job.id}):
        with contextlib.suppress(OSError):
            assert secret.encode() not in Path(f"/proc/{one}/cmdline").read_bytes()
    go.touch()
    job.result(TIMEOUT)
