"""Tensors on a GPU travel through memory. Without a GPU the two halves of the way are tried on their own."""

import pytest
import torch

from distdl_jupyter.worker.hooks.frameworks import copy_to_cpu, to_own_gpu

GPU = torch.cuda.is_available()


def test_gradients_stay_asked_for():
    tensor = torch.ones(3, requires_grad=True)
    assert copy_to_cpu(tensor).requires_grad
    assert to_own_gpu(copy_to_cpu(tensor)).requires_grad
    assert not to_own_gpu(copy_to_cpu(torch.ones(3))).requires_grad
    assert torch.equal(to_own_gpu(copy_to_cpu(tensor)), tensor.to(to_own_gpu(tensor).device))


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_a_tensor_on_a_gpu_comes_to_the_ranks_own(notebook, rank):
    notebook.run("import torch\nx = torch.ones(3, device='cuda')\nmodel = torch.nn.Linear(2, 2).cuda()")
    draft = notebook.capture("(x.device.type, next(model.parameters()).device.type, x.sum().item())")
    assert set(draft.names_on_gpu) == {"x", "model"}
    assert rank(draft).value == ("cuda", "cuda", 3.0)
