"""A DistributedDataParallel parameter without a gradient is named with a fix."""

import pytest

from distdl_jupyter import submit

pytestmark = pytest.mark.timeout(200)
OPTIONS = {"process_count_per_node": 2, "distributed_backend": "torch"}


def train(uses_aux, steps=3, frozen=False, **options):
    """Train a model whose part ``aux`` is used where ``uses_aux(rank, step)`` says so."""
    import torch
    import torch.distributed as dist

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.aux = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, x, with_aux, with_scale):
            y = self.body(x) + (self.aux(x) if with_aux else 0)
            return y * self.scale if with_scale else y

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(Model(), **options)
    if frozen:
        net.module.aux.requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        used = uses_aux(dist.get_rank(), step)
        loss = net(torch.randn(8, 4), used is True, used != "no scale").square().mean()
        loss.backward()
        optimizer.step()
    return dist.get_rank()


def failure(*arguments, **options):
    found = submit(train, arguments, options, **OPTIONS).wait(120).view().failure
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("arguments", "options", "names", "step", "remedy"),
    [
        ((lambda _rank, _step: False,), {}, "`aux.weight`, `aux.bias`", 1, "or add 0 * sum(p.sum()"),
        ((lambda rank, step: rank == 0 or step < 2, 5), {}, "`aux.weight`, `aux.bias`", 3, "find_unused_parameters"),
        ((lambda _rank, _step: "no scale",), {}, "`scale`, `aux.weight`, `aux.bias`", 1, "find_unused_parameters"),
        ((lambda _rank, _step: True,), {"frozen": True}, "`aux.weight`, `aux.bias`", 1, "find_unused_parameters"),
    ],
    ids=["used by no rank", "not used by one rank in a later step", "in several layers", "frozen after wrapping"],
)
def test_parameters_without_a_gradient_are_named_with_a_remedy(arguments, options, names, step, remedy):
    failed = failure(*arguments, **options)
    assert failed.code == "unused-parameters"
    assert f"{names} got no gradient in step {step}" in failed.error["hint"]
    assert remedy in failed.error["hint"]


def test_a_static_graph_that_changes_is_named():
    found = failure(lambda _rank, step: step != 1, static_graph=True)
    assert found.code == "unused-parameters"
    assert "`aux.weight`, `aux.bias` got no gradient in step 2." in found.error["hint"]
    assert "find_unused_parameters=True to DistributedDataParallel instead of static_graph=True" in found.error["hint"]
