"""Code that was written for other trainers runs unchanged on two ranks, and its metrics are picked up."""

import importlib.util
import textwrap

import pytest

from distdl_jupyter.api.submit_process import submit_source

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Run jobs in a folder of their own: trainers write logs into it, and a checkout that changes makes starts cold."""
    monkeypatch.chdir(tmp_path)


def here(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def ended(code, **options):
    """Run a cell on two ranks; return its job, which has completed."""
    given = {"distributed_backend": "torch", "process_count_per_node": 2, **options}
    job = submit_source(textwrap.dedent(code).strip(), options=given)
    job.results(timeout=240)
    return job


def run(code, steps=0, **options):
    """Run a cell on two ranks; return its values and its metrics. The time of as many ``steps`` was measured."""
    job = ended(code, **options)
    values = job.results()
    if steps:
        rows = job.time().rows
        assert [(row.step, row.rank) for row in rows] == [(step, rank) for step in range(steps) for rank in (0, 1)]
        assert all(row.data > 0 for row in rows[:2])
        assert all(sum(row.waiting + row.communication for row in rows if row.rank == rank) > 0 for rank in (0, 1))
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
    values, metrics = run(ACCELERATE, steps=2)
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
    rows = [{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor(n % 2)} for n in range(16)]
    arguments = TrainingArguments("out", max_steps=4, per_device_train_batch_size=2, logging_steps=2,
                                  report_to=["tensorboard"], use_cpu=True, save_strategy="no", disable_tqdm=True)
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows)
    trainer.train()
    [row for row in trainer.state.log_history if "loss" in row], arguments.world_size
"""


@pytest.mark.full
@here("transformers", "accelerate", "tensorboard")
@pytest.mark.readme("Transformers")
def test_a_hugging_face_trainer_trains_on_both_ranks_and_its_log_is_the_curve():
    values, metrics = run(TRAINER, steps=4)
    logged, size = values[0]
    assert size == 2
    assert curve(metrics, "loss") == [(row["step"], pytest.approx(row["loss"])) for row in logged]
    assert [step for step, _ in curve(metrics, "loss")] == [2, 4]
    assert not [name for name in metrics if "/" in name], "its writer of TensorBoard repeats the values"


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
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", log_every_n_steps=1,
                        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False, logger=False)
    trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=4))
    trainer.world_size, trainer.global_step
"""


@pytest.mark.full
@here("lightning")
@pytest.mark.readme("Lightning")
def test_lightning_averages_over_the_ranks_of_the_job():
    values, metrics = run(LIGHTNING, steps=3)
    assert values == [(2, 3)] * 2
    for rank in (0, 1):
        assert [step for step, _ in curve(metrics, "loss", rank)] == [0, 1, 2]


# DeepSpeed --------------------------------------------------------------------------------------

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
@here("deepspeed")
def test_steps_of_deepspeed_are_measured_and_its_loss_is_the_curve():
    _, metrics = run(DEEPSPEED, steps=4, distributed_backend="deepspeed")
    assert [step for step, _ in curve(metrics, "loss")] == [1, 2, 3, 4]


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
