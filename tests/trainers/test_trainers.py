"""Code that was written for other trainers runs unchanged on two ranks, and its metrics are picked up."""

import importlib.util
import textwrap

import pytest

from distdl_jupyter import submit
from distdl_jupyter.api.submit_process import submit_source

pytestmark = pytest.mark.timeout(300)


def here(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def run(code, **options):
    """Run a cell on two ranks; return its values and its metrics."""
    given = {"distributed_backend": "torch", "process_count_per_node": 2, **options}
    job = submit_source(textwrap.dedent(code).strip(), options=given)
    values = job.results(timeout=240)
    return values, job.metrics()


def curve(metrics, name, rank=0):
    own = metrics[metrics["rank"] == rank]
    return [(row.step, getattr(row, name)) for row in own.dropna(subset=[name]).itertuples()] if name in own else []


# Hugging Face -----------------------------------------------------------------------------------

ACCELERATE = """
    import torch
    from accelerate import Accelerator
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    data = torch.utils.data.TensorDataset(torch.arange(32.0).reshape(16, 2))
    model = torch.nn.Linear(2, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.0), torch.utils.data.DataLoader(data, batch_size=2)
    )
    losses = []
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = model(batch).pow(2).mean()
            losses.append(loss.item())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.log({"accuracy": 0.5}, step=2)
    losses, accelerator.num_processes
"""


@here("accelerate")
def test_accelerate_reports_the_mean_loss_of_each_step_and_what_it_logs():
    values, metrics = run(ACCELERATE)
    assert [count for _, count in values] == [2, 2]
    for rank, (losses, _) in enumerate(values):
        means = [(losses[0] + losses[1]) / 2, (losses[2] + losses[3]) / 2]
        assert curve(metrics, "loss", rank) == [(1, pytest.approx(means[0])), (2, pytest.approx(means[1]))]
    assert curve(metrics, "accuracy") == [(2, 0.5)]


TRAINER = """
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
                        max_position_embeddings=8)
    rows = [{{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor(n % 2)}} for n in range(16)]
    arguments = TrainingArguments("out", max_steps=4, per_device_train_batch_size=2, logging_steps=2, report_to=[],
                                  use_cpu=True, save_strategy="no", disable_tqdm=True{more})
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows)
    trainer.train()
    [row for row in trainer.state.log_history if "loss" in row], arguments.world_size
"""


@pytest.mark.full
@here("transformers", "accelerate")
@pytest.mark.readme("Transformers")
def test_a_hugging_face_trainer_trains_on_both_ranks_and_its_log_is_the_curve():
    values, metrics = run(TRAINER.format(more=""))
    logged, size = values[0]
    assert size == 2
    assert curve(metrics, "loss") == [(row["step"], pytest.approx(row["loss"])) for row in logged]
    assert [step for step, _ in curve(metrics, "loss")] == [2, 4]


@pytest.mark.full
@here("transformers", "accelerate", "deepspeed")
def test_a_hugging_face_trainer_with_deepspeed_reports_its_log_alone():
    deepspeed = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto",
                 "train_batch_size": "auto", "gradient_accumulation_steps": "auto",
                 "zero_allow_untested_optimizer": True}  # fmt: skip
    values, metrics = run(TRAINER.format(more=f", deepspeed={deepspeed!r}"), distributed_backend="deepspeed")
    assert values[0][1] == 2
    assert [step for step, _ in curve(metrics, "loss")] == [2, 4]
    assert "lr" not in metrics


@pytest.mark.full
@here("trl", "datasets")
def test_a_trainer_of_trl_is_a_hugging_face_trainer():
    values, metrics = run("""
        from datasets import Dataset
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
        from trl import SFTConfig, SFTTrainer
        words = {word: number for number, word in enumerate(["[PAD]", "[EOS]", "[UNK]", "a", "small", "model"])}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", eos_token="[EOS]")
        model = GPT2LMHeadModel(GPT2Config(vocab_size=6, n_positions=16, n_embd=8, n_layer=1, n_head=1,
                                           bos_token_id=1, eos_token_id=1))
        arguments = SFTConfig("out", max_steps=4, per_device_train_batch_size=2, logging_steps=2, report_to=[],
                              use_cpu=True, save_strategy="no", disable_tqdm=True, max_length=8, bf16=False)
        rows = Dataset.from_dict({"text": ["a small model"] * 16})
        trainer = SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
        trainer.train()
        [row["loss"] for row in trainer.state.log_history if "loss" in row]
    """)
    assert [value for _, value in curve(metrics, "loss")] == pytest.approx(values[0])
    assert [step for step, _ in curve(metrics, "loss")] == [2, 4]


# Lightning --------------------------------------------------------------------------------------

LIGHTNING = """
    import logging, warnings
    warnings.filterwarnings("ignore")
    import torch, lightning as L
    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def training_step(self, batch, index):
            loss = self.layer(batch[0]).pow(2).mean()
            self.log("train_loss", loss)
            return loss
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.ones(24, 4))
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy={strategy!r}, log_every_n_steps=1,
                        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False, logger=False)
    trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=4))
    trainer.world_size, trainer.global_step
"""


@pytest.mark.full
@here("lightning")
@pytest.mark.readme("Lightning")
def test_lightning_averages_over_the_ranks_of_the_job():
    values, metrics = run(LIGHTNING.format(strategy="ddp"))
    assert values == [(2, 3)] * 2
    for rank in (0, 1):
        assert [step for step, _ in curve(metrics, "loss", rank)] == [0, 1, 2]


# the time of steps -------------------------------------------------------------------------------

DEEPSPEED = """
    import deepspeed, torch
    net = torch.nn.Linear(4, 1)
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
              "zero_optimization": {"stage": 2}}
    engine, _, loader, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config,
                                                training_data=list(torch.ones(16, 4)))
    for batch in loader:
        engine.backward(engine(batch).pow(2).mean())
        engine.step()
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "backend", "steps"),
    [
        pytest.param(ACCELERATE, "torch", 2, id="accelerate", marks=here("accelerate")),
        pytest.param(TRAINER.format(more=""), "torch", 4, id="transformers", marks=here("transformers", "accelerate")),
        pytest.param(LIGHTNING.format(strategy="ddp"), "torch", 3, id="lightning", marks=here("lightning")),
        pytest.param(DEEPSPEED, "deepspeed", 4, id="deepspeed", marks=here("deepspeed")),
    ],
)
def test_time_of_each_step_is_measured_as_the_trainer_counts_steps(code, backend, steps):
    given = {"distributed_backend": backend, "process_count_per_node": 2}
    job = submit_source(textwrap.dedent(code).strip(), options=given)
    job.results(timeout=240)
    times = job.time()
    assert [(row.step, row.rank) for row in times.rows] == [(step, rank) for step in range(steps) for rank in (0, 1)]
    assert all(row.data > 0 for row in times.rows[:2])
    assert all(sum(row.waiting + row.communication for row in times.rows if row.rank == rank) > 0 for rank in (0, 1))


SECONDS = 0.12

SLOW = f"""
    import os, time, torch
    SECONDS, WHERE = {SECONDS}, "{{where}}" if os.environ["DISTDL_RANK"] == "1" else ""
    torch.set_num_threads(1)

    class Rows(torch.utils.data.Dataset):
        taken = 0

        def __len__(self):
            return 8 * 2 * 32

        def __getitem__(self, number):
            self.taken += 1
            if WHERE == "data" and self.taken % 8 == 0:
                time.sleep(SECONDS)
            return {{{{"rows": torch.ones(500)}}}}

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(500, 500, bias=False)

        def forward(self, rows):
            if WHERE == "compute":
                time.sleep(SECONDS)
            loss = self.inner(rows).square().mean()
            return {{{{"loss": loss}}}}
"""

TRAINED_BY = {
    "fsdp2": """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    net = Net()
    fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for batch in torch.utils.data.DataLoader(torch.utils.data.Subset(Rows(), range(8 * 32)), batch_size=8):
        net(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    """,
    "accelerate": """
    from accelerate import Accelerator
    accelerator, net = Accelerator(cpu=True), Net()
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.01), torch.utils.data.DataLoader(Rows(), batch_size=8)
    )
    for batch in loader:
        accelerator.backward(net(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
    """,
    "trainer": """
    from transformers import Trainer, TrainingArguments
    arguments = TrainingArguments("out", max_steps=32, per_device_train_batch_size=8, report_to=[], use_cpu=True,
                                  save_strategy="no", disable_tqdm=True, remove_unused_columns=False)
    Trainer(Net(), arguments, train_dataset=Rows()).train()
    """,
    "lightning": """
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, batch, index):
            return self.net(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=32, logger=False,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Lit(), torch.utils.data.DataLoader(Rows(), batch_size=8))
    """,
    "deepspeed": """
    import deepspeed
    config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2},
              "optimizer": {"type": "Adam", "params": {"torch_adam": True}}}
    net = Net()
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    for batch in torch.utils.data.DataLoader(torch.utils.data.Subset(Rows(), range(8 * 32)), batch_size=8):
        engine.backward(engine(**batch)["loss"])
        engine.step()
    """,
}


@pytest.mark.full
@pytest.mark.parametrize("where", ["data", "compute"])
@pytest.mark.parametrize("trainer", TRAINED_BY)
def test_rank_that_slows_a_trainer_is_found_with_cause_and_cost(trainer, where):
    """Of 32 steps, because a loader that reads ahead waits for nothing in the last ones."""
    code = textwrap.dedent(SLOW.format(where=where)) + textwrap.dedent(TRAINED_BY[trainer])
    given = {
        "distributed_backend": "deepspeed" if trainer == "deepspeed" else "torch", "process_count_per_node": 2,
    }  # fmt: skip
    job = submit_source(code.strip(), options=given)
    job.results(timeout=240)
    found = job.time().straggler
    assert (found.rank, found.cause) == (1, where)
    assert found.seconds == pytest.approx(SECONDS, rel=0.1)


# torch ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_fsdp2_shards_a_model_and_trains_as_one_process_does():
    values, _ = run("""
        import torch, torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from distdl_jupyter import log
        mesh = init_device_mesh("cpu", (2,))
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        alone = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        alone.load_state_dict(model.state_dict())
        fully_shard(model, mesh=mesh)
        batches = torch.randn(3, 8, 4)
        for net in (model, alone):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step, batch in enumerate(batches):
                own = batch.chunk(2)[dist.get_rank()] if net is model else batch
                loss = net(own).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if net is model:
                    log(step=step, loss=loss)
        whole = [one.full_tensor() for one in model.parameters()]
        local = sum(one.to_local().numel() for one in model.parameters())
        all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, alone.parameters())), local
    """)
    assert [same for same, _ in values] == [True, True]
    assert sum(local for _, local in values) == 4 * 8 + 8 + 8 * 2 + 2


@pytest.mark.full
def test_a_pipeline_has_a_stage_on_each_rank():
    values, metrics = run("""
        import torch, torch.distributed as dist
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
        from distdl_jupyter import log
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        torch.manual_seed(0)
        layers = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)]
        stage = PipelineStage(layers[rank], rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
        optimizer = torch.optim.SGD(layers[rank].parameters(), lr=0.1)
        losses = []
        for step in range(4):
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(torch.ones(8, 4))
            else:
                found = []
                schedule.step(target=torch.zeros(8, 1), losses=found)
                losses.append(float(sum(found) / len(found)))
                log(step=step, loss=losses[-1])
            optimizer.step()
        losses
    """)
    assert values[0] == []
    assert values[1][-1] < values[1][0]
    assert [value for _, value in curve(metrics, "loss", 1)] == pytest.approx(values[1])


@pytest.mark.full
def test_tensor_parallel_layers_give_what_one_process_gives():
    values, _ = run("""
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        mesh = init_device_mesh("cpu", (2,))
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        batch = torch.randn(3, 4)
        wanted = model(batch)
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        torch.allclose(model(batch), wanted, atol=1e-6), model[0].weight.to_local().numel()
    """)
    assert values == [(True, 16)] * 2


ELASTIC = """
import os, pathlib, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    kept = pathlib.Path(os.environ["DISTDL_JOB_DIR"], "outputs", "last.pt")
    begin = torch.load(kept)["step"] + 1 if kept.exists() else 0
    for step in range(begin, 4):
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save({"step": step}, kept)
        dist.barrier()
        if step == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
            os._exit(9)
    print("began at", begin, "of restart", os.environ["TORCHELASTIC_RESTART_COUNT"], "of", os.environ["TORCHELASTIC_MAX_RESTARTS"])
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""  # noqa: E501


@pytest.mark.full
def test_a_script_for_torchrun_goes_on_after_a_rank_was_lost(tmp_path):
    (tmp_path / "train.py").write_text(ELASTIC)
    job = submit(entry_script="train.py", source_directory=str(tmp_path), distributed_backend="torch",
                 process_count_per_node=2, max_restarts=1)  # fmt: skip
    job.results(timeout=200)
    for rank in (0, 1):
        assert [line.text for line in job.logs(rank)][-1] == "began at 2 of restart 1 of 1"


# Ray Train --------------------------------------------------------------------------------------


@pytest.mark.full
@here("ray", "pyarrow")
def test_what_workers_of_ray_train_report_is_picked_up():
    values, metrics = run(
        """
        import os, tempfile
        import ray, ray.train
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
        ray.init()
        def loop():
            import torch, torch.distributed as dist
            for epoch in range(3):
                total = torch.ones(1) * (dist.get_rank() + 1) * (epoch + 1)
                dist.all_reduce(total)
                ray.train.report({"loss": float(total), "epoch": epoch})
        trainer = TorchTrainer(
            loop, scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=os.path.join(os.environ["DISTDL_JOB_DIR"], "outputs", "ray")),
        )
        result = trainer.fit()
        result.error
        """,
        distributed_backend="ray", process_count_per_node=1,
    )  # fmt: skip
    assert values == [None]
    assert curve(metrics, "loss") == [(1, 3.0), (2, 6.0), (3, 9.0)]
