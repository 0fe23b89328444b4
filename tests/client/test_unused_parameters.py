"""A DistributedDataParallel parameter without a gradient is named with the step, the line and a fix."""

import importlib.util
import inspect

import pytest

from distdl_jupyter import submit
from tests.conftest import wait_for
from tests.written import notes

pytestmark = pytest.mark.timeout(200)
OPTIONS = {"process_count_per_node": 2, "distributed_backend": "torch"}


def train(uses_aux, steps=3, frozen=False, barrier=False, **options):
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
        loss = net(torch.randn(8, 4), used is True, used != "no scale").square().mean()  # the pass
        loss.backward()
        optimizer.step()
        if barrier:
            dist.barrier()
    return dist.get_rank()


LINE = next(at for at, text in enumerate(inspect.getsource(train).splitlines()) if "# the pass" in text)


def failure(*arguments, **options):
    job = submit(train, arguments, options, **OPTIONS).wait(120)
    found = job.view().failure
    assert found is not None
    assert notes(job, "unused-parameters") == [], "the failure says it"
    return found


def place(step):
    return f"in step {step} (tests/client/test_unused_parameters.py, line {inspect.getsourcelines(train)[1] + LINE})"


@pytest.mark.parametrize(
    ("arguments", "options", "names", "step", "remedy"),
    [
        ((lambda _rank, _step: False,), {}, "`aux.weight`, `aux.bias`", 1, "or add 0 * aux(x).sum() to the loss."),
        ((lambda rank, step: rank == 0 or step < 2, 5), {}, "`aux.weight`, `aux.bias`", 3, "find_unused_parameters"),
        ((lambda _rank, _step: "no scale",), {}, "`scale`, `aux.weight`, `aux.bias`", 1,
         "add 0 * sum(p.sum() for p in model.parameters()) to the loss"),
        ((lambda _rank, _step: True,), {"frozen": True}, "`aux.weight`, `aux.bias`", 1, "requires_grad"),
    ],
    ids=["used by no rank", "not used by one rank in a later step", "in several layers", "frozen after wrapping"],
)  # fmt: skip
def test_parameters_without_a_gradient_are_named_with_step_line_and_remedy(arguments, options, names, step, remedy):
    failed = failure(*arguments, **options)
    assert failed.code == "unused-parameters"
    assert f"{names} got no gradient {place(step)}" in failed.error["hint"]
    assert remedy in failed.error["hint"]


def test_only_a_static_graph_that_changes_fails():
    found = failure(lambda _rank, step: step != 1, static_graph=True)
    assert found.code == "unused-parameters"
    assert f"`aux.weight`, `aux.bias` got no gradient {place(2)}, but did in step 1" in found.error["hint"]
    assert "static_graph" in found.error["hint"]
    job = submit(train, (lambda rank, _step: rank == 0,), {"static_graph": True}, **OPTIONS)
    assert job.results(timeout=120) == [0, 1]
    assert notes(job, "unused-parameters") == []


def test_no_note_with_find_unused_parameters():
    job = submit(train, (lambda rank, step: rank == step,), {"find_unused_parameters": True}, **OPTIONS)
    assert job.results(timeout=120) == [0, 1]
    assert notes(job, "unused-parameters") == []


def test_a_job_of_one_step_gets_a_note():
    job = submit(train, (lambda _rank, _step: False, 1), **OPTIONS)
    assert job.results(timeout=120) == [0, 1]
    (text,) = notes(job, "unused-parameters")
    assert f"`aux.weight`, `aux.bias` got no gradient {place(1)}" in text


def test_a_rank_that_the_others_wait_for_gets_a_note_while_the_job_hangs():
    job = submit(train, (lambda rank, _step: rank == 0,), {"barrier": True}, **OPTIONS)
    try:
        wait_for(lambda: notes(job, "unused-parameters"), 60, "the note")
        assert f"`aux.weight`, `aux.bias` got no gradient {place(1)}" in notes(job, "unused-parameters")[0]
        assert not job.state.ended
    finally:
        job.cancel(now=True)
        job.wait(30)


def train_with_lightning():
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body, self.aux = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

        def training_step(self, batch, _):
            return self.body(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
                                enable_checkpointing=False, enable_progress_bar=False)  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4))


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="not installed: lightning")
def test_lightning_errors_get_the_names_and_lightnings_own_setting():
    found = submit(train_with_lightning, **OPTIONS).wait(160).view().failure
    assert found.code == "unused-parameters"
    assert "`aux.weight`, `aux.bias` got no gradient in step 1" in found.error["hint"]
    assert 'strategy="ddp_find_unused_parameters_true" to the Trainer' in found.error["hint"]
