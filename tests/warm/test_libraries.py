"""What training code does with processes and threads works in a forked rank as in any other."""

import os

import pytest

from distdl_jupyter import submit
from distdl_jupyter.node import processes
from tests.warm.conftest import assert_warm

pytestmark = pytest.mark.timeout(300)


def loads():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = DataLoader(TensorDataset(torch.arange(32.0)), batch_size=4, num_workers=2)
    return sum(batch[0].sum().item() for batch in data)


def pools(method):
    import multiprocessing

    with multiprocessing.get_context(method).Pool(2) as pool:
        return pool.map(abs, [-1, -2, -3])


def threads_of_torch():
    import torch

    torch.set_num_threads(2)
    one = torch.randn(400, 400, requires_grad=True)
    (one @ one).sum().backward()
    return bool(torch.isfinite(one.grad).all())


def subprocess_carries_the_mark():
    import subprocess

    child = subprocess.Popen(["sleep", "30"])
    found = processes.of_job({processes.MARK: os.environ["DISTDL_JOB_ID"]})
    child.kill()
    child.wait()
    return child.pid in found


def dumps():
    import faulthandler

    return faulthandler.is_enabled()


@pytest.mark.parametrize(
    ("code", "arguments", "wanted"),
    [
        (loads, (), 496.0),
        (pools, ("fork",), [1, 2, 3]),
        (pools, ("spawn",), [1, 2, 3]),
        (pools, ("forkserver",), [1, 2, 3]),
        (threads_of_torch, (), True),
        (subprocess_carries_the_mark, (), True),
        (dumps, (), True),
    ],
)
def test_it_works(code, arguments, wanted, distdl_home):
    job = submit(code, arguments, distributed_backend="plain")
    assert job.result(timeout=120) == wanted
    assert_warm(job)
