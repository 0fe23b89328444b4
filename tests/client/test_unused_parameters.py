"""A parameter of a DistributedDataParallel model without a gradient is named, with the step, the line and a remedy."""

import importlib.util
import inspect

import pytest

from distdl_jupyter import submit
from tests.conftest import wait_for

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
    assert notes(job) == [], "the failure says it"
    return found


def notes(job):
    return [note["text"] for note in job.view().notes if note["code"] == "unused-parameters"]


def place(step):
    return f"in step {step} (tests/client/test_unused_parameters.py, line {inspect.getsourcelines(train)[1] + LINE})"


def test_parameters_that_no_rank_uses_are_named():
    found = failure(lambda _rank, _step: False)
    assert found.code == "unused-parameters"
    assert found.error["hint"] == (
        f"`aux.weight`, `aux.bias` got no gradient {place(1)}. Pass find_unused_parameters=True to "
        "DistributedDataParallel, or add 0 * aux(x).sum() to the loss."
    )


def test_parameters_that_one_rank_does_not_use_in_a_later_step_are_named():
    found = failure(lambda rank, step: rank == 0 or step < 2, 5)
    assert (found.code, found.rank) == ("unused-parameters", 1)
    assert f"`aux.weight`, `aux.bias` got no gradient {place(3)}" in found.error["hint"]


def test_a_parameter_of_the_model_itself_and_those_of_several_layers_have_their_own_remedies():
    found = failure(lambda _rank, _step: "no scale")
    assert "`scale`, `aux.weight`, `aux.bias` got" in found.error["hint"]
    assert "add 0 * sum(p.sum() for p in model.parameters()) to the loss" in found.error["hint"]


def test_layers_frozen_after_the_model_was_wrapped_are_named():
    found = failure(lambda _rank, _step: True, frozen=True)
    assert found.code == "unused-parameters"
    assert "`aux.weight`, `aux.bias` got no gradient" in found.error["hint"]
    assert "requires_grad" in found.error["hint"]


def test_a_static_graph_that_changes_is_told_from_one_that_does_not():
    found = failure(lambda _rank, step: step != 1, static_graph=True)
    assert found.code == "unused-parameters"
    assert f"`aux.weight`, `aux.bias` got no gradient {place(2)}, but did in step 1" in found.error["hint"]
    assert "static_graph" in found.error["hint"]
    job = submit(train, (lambda rank, _step: rank == 0,), {"static_graph": True}, **OPTIONS)
    assert job.results(timeout=120) == [0, 1]
    assert notes(job) == []


def test_nothing_is_said_where_torch_looks_for_unused_parameters():
    job = submit(train, (lambda rank, step: rank == step,), {"find_unused_parameters": True}, **OPTIONS)
    assert job.results(timeout=120) == [0, 1]
    assert notes(job) == []


def test_a_job_of_one_step_which_torch_lets_pass_gets_a_note():
    job = submit(train, (lambda _rank, _step: False, 1), **OPTIONS)
    assert job.results(timeout=120) == [0, 1]
    (text,) = notes(job)
    assert f"`aux.weight`, `aux.bias` got no gradient {place(1)}" in text


def test_a_rank_that_the_others_wait_for_gets_a_note_while_the_job_hangs():
    job = submit(train, (lambda rank, _step: rank == 0,), {"barrier": True}, **OPTIONS)
    try:
        wait_for(lambda: notes(job), 60, "the note")
        assert f"`aux.weight`, `aux.bias` got no gradient {place(1)}" in notes(job)[0]
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
def test_lightning_whose_own_error_has_no_parameters_gets_names_and_its_own_setting():
    found = submit(train_with_lightning, **OPTIONS).wait(160).view().failure
    assert found.code == "unused-parameters"
    assert "`aux.weight`, `aux.bias` got no gradient in step 1" in found.error["hint"]
    assert 'strategy="ddp_find_unused_parameters_true" to the Trainer' in found.error["hint"]
