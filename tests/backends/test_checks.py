"""What is said about GPU memory that the kernel holds; the numbers come from a stand-in, for no GPU is needed here."""

import sys
from types import SimpleNamespace

import torch

from distdl_jupyter.backends.base import check_kernel_memory


def torch_with(*reserved, initialized=True):
    cuda = SimpleNamespace(
        is_initialized=lambda: initialized, device_count=lambda: len(reserved), memory_reserved=lambda n: reserved[n]
    )
    return {"torch": SimpleNamespace(cuda=cuda)}


def test_memory_that_the_kernel_holds_is_told_for_each_gpu():
    check = check_kernel_memory(torch_with(0, 3_200_000_000))
    assert check is not None
    assert not check.passed
    assert [f.text for f in check.findings] == ["This kernel uses 3.2 GB on GPU 1, which ranks cannot use."]


def test_a_kernel_that_holds_next_to_nothing_passes():
    check = check_kernel_memory(torch_with(2_000_000))
    assert check is not None
    assert check.passed


def test_a_kernel_that_never_used_a_gpu_is_not_asked():
    assert check_kernel_memory({}) is None
    assert check_kernel_memory(torch_with(5, initialized=False)) is None
    assert check_kernel_memory({"torch": torch}) is None or torch.cuda.is_initialized()
    assert check_kernel_memory(sys.modules) is None or torch.cuda.is_initialized()
