"""Jobs whose emulated nodes meet over slower links, on this machine: what they measure, and what a forecast says."""

import os
import signal
import sys
from pathlib import Path

import pytest

from distdl_jupyter import scale, submit
from distdl_jupyter.azure.vm_sizes import link_of
from distdl_jupyter.core.errors import InvalidSpec
from tests.client.rehearsal_jobs import train
from tests.conftest import wait_for
from tests.supervisor.test_far_clusters import supervisor_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a rehearsal takes Linux"), pytest.mark.timeout(1500),
]  # fmt: skip
BYTES = 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"node_count": 1, "process_count_per_node": 2}, "needs at least 2 nodes"),
        ({"node_count": 2, "distributed_backend": "horovod-mpi"}, "does not support horovod-mpi"),
        ({"node_count": 2, "rehearse": "fast"}, "Unknown GPU size 'fast'"),
        ({"node_count": 2, "rehearse": "1gbit,soon"}, "is not a valid link"),
    ],
)
def test_what_cannot_be_rehearsed_is_said_before_the_start(options, says):
    with pytest.raises(InvalidSpec, match=says):
        submit(train, args=(False,), **{"rehearse": "1gbit", **options})


@pytest.mark.full
def test_communication_is_what_a_slower_link_lengthens_and_nothing_is_left_of_it():
    job = submit(train, args=(False,), node_count=2, distributed_backend="torch", rehearse="100mbit")
    wait_for(lambda: len(job.time().rows) > 12, 120)
    supervisor = supervisor_of(job)
    assert supervisor
    networks = [os.stat(f"/proc/{rank.pid}/ns/net").st_ino for rank in job.view().ranks]
    assert len({*networks, os.stat("/proc/self/ns/net").st_ino}) == 3
    assert any(note["text"].startswith("Rehearsal on 100 Mb/s") for note in job.view().notes)
    for rank in job.time().ranks():
        assert rank.communication > 8 * BYTES / 100e6  # a ring of two sends all of it once
        assert rank.compute + rank.rest > 0.2
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not _living_in(networks), 60)


def _living_in(networks):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found += [folder.name] if (folder / "ns" / "net").stat().st_ino in networks else []
            found += [str(fd) for fd in (folder / "fd").iterdir() if fd.stat().st_ino in networks]
        except OSError:
            continue
    return found


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch-gloo", "horovod-gloo"])
def test_a_forecast_for_a_link_is_what_the_rehearsal_measures(backend):
    horovod = backend.startswith("horovod")
    here = scale(train, [1, 2], (horovod,), backends=backend, seconds=2)
    assert here.points[1].gradients == BYTES
    missed = {}
    for rate in ("100mbit", "200mbit", "500mbit"):
        for nodes in (2, 4):
            found = scale(train, [nodes], (horovod,), nodes=[nodes], backends=backend, seconds=2, rehearse=rate)
            said = here.forecast(nodes, link=link_of(rate))
            missed[rate, nodes] = said.rate / found.points[0].rate - 1
            print(f"{backend}, {rate}, {nodes} nodes: forecast {said.rate:.3f} ± {said.error:.3f}, "
                  f"rehearsed {found.points[0].rate:.3f}: {missed[rate, nodes]:+.1%}")  # fmt: skip
    assert all(abs(share) < 0.15 for share in missed.values()), missed
