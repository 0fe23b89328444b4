"""Metrics and progress of real Keras, Lightning, Hugging Face and TensorBoard runs, without a line of user code."""

import importlib.util
import textwrap

import pytest

from tests.worker import ranks

pytestmark = pytest.mark.full

KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np
keras.utils.set_random_seed(0)
x, y = np.random.rand(24, 4), np.random.randint(0, 2, 24)
model = keras.Sequential([keras.layers.Dense(3, "relu"), keras.layers.Dense(2, "softmax")])
model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
"""
LIGHTNING = """
import logging, warnings
warnings.filterwarnings("ignore")
import torch, {package} as L
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("train_loss", loss)
        return loss
    def validation_step(self, batch, index):
        self.log("val_loss", self.layer(batch[0]).pow(2).mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(24, 4)), batch_size=8)
quiet = dict(accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False)
"""


def here(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def run(folder, code, **more):
    ended = ranks.run(folder.cell(textwrap.dedent(code)), **more)
    assert ended.code == 0, ended.err
    assert ended.of("note") == []
    return ended


@here("keras")
def test_keras_reports_each_batch_and_what_is_new_at_the_end_of_an_epoch(folder):
    ended = run(folder, KERAS + "model.fit(x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x, y)).history")
    history = folder.value()
    assert [step for step, _ in ended.metric("loss")] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in ended.metric("accuracy")] == [1, 2, 3, 4, 5, 6]
    assert [dict(ended.metric("loss"))[step] for step in (3, 6)] == pytest.approx(history["loss"])
    assert ended.metric("val_loss") == [
        (3, pytest.approx(history["val_loss"][0])),
        (6, pytest.approx(history["val_loss"][1])),
    ]
    assert [(r["done"], r["total"], r["unit"]) for r in ended.of("progress")] == [(n, 6, "steps") for n in range(1, 7)]


@here("keras")
def test_keras_s_own_callbacks_and_every_rank_stay(folder):
    folder.cell(KERAS + """
seen = []
class Mine(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen.append(sorted(logs))
model.fit(x, y, 8, 1, 0, Mine())
model.fit(x, y, batch_size=8, verbose=0, callbacks=keras.callbacks.CallbackList([Mine()], model=model))
model.evaluate(x, y, verbose=0)
seen
""")  # fmt: skip
    for rank, ended in enumerate(ranks.run_all(folder, 2)):
        assert ended.code == 0, ended.err
        assert folder.value(rank) == [["accuracy", "loss"]] * 2
        assert {report["rank"] for report in ended.of("metric")} == {rank}
        assert [step for step, _ in ended.metric("loss")] == [1, 2, 3], "callbacks by position are left alone"


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_lightning_reports_the_loss_of_every_batch_and_all_it_logs(folder, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"not installed: {package}")
    ended = run(folder, LIGHTNING.replace("{package}", package) + """
trainer = L.Trainer(max_epochs=2, log_every_n_steps=2, **quiet)
trainer.fit(Net(), loader(), loader())
float(trainer.callback_metrics["val_loss"])
""")  # fmt: skip
    assert [step for step, _ in ended.metric("loss")] == [0, 1, 2, 3, 4, 5]
    losses = dict(ended.metric("loss"))
    assert losses[5] < losses[0]
    assert ended.metric("train_loss") == [(step, losses[step]) for step in (1, 3, 5)]
    assert [step for step, _ in ended.metric("val_loss")] == [2, 5]
    assert ended.metric("val_loss")[-1][1] == pytest.approx(folder.value())
    progress = [(r["done"], r["total"], r["unit"]) for r in ended.of("progress")]
    assert progress == [(n, 6, "batches") for n in range(1, 7)]
    assert ended.metric("epoch") == []


@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
def test_a_summary_writer_s_scalars_are_picked_up_and_still_written(folder, module):
    if importlib.util.find_spec("tensorboard" if module.startswith("torch") else module) is None:
        pytest.skip(f"not installed: {module}")
    ended = run(folder, f"""
from {module} import SummaryWriter
import numpy as np, torch, pathlib
writer = SummaryWriter("runs")
for step in range(3):
    writer.add_scalar("Loss/train", torch.tensor(1.0 / (step + 1)), step)
    writer.add_scalar("lr", np.float32(0.5), global_step=step)
    writer.add_scalar(tag="free", scalar_value=step)
    writer.add_scalars("both", {{"a": step, "b": 2.0}}, step)
writer.close()
any(b"Loss/train" in path.read_bytes() for path in pathlib.Path("runs").rglob("events*"))
""")  # fmt: skip
    assert folder.value() is True
    assert ended.metric("Loss/train") == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert ended.metric("lr") == [(0, 0.5), (1, 0.5), (2, 0.5)]
    assert ended.metric("free") == [(0, 0), (1, 1), (2, 2)]
    assert ended.metric("both/a") == [(0, 0), (1, 1), (2, 2)]
    assert len([name for report in ended.of("metric") for name in report["values"] if name == "both/b"]) == 3


@here("tensorboard")
def test_the_user_s_own_log_wins_over_a_writer(folder):
    ended = run(folder, """
from torch.utils.tensorboard import SummaryWriter
from distdl_jupyter import log
writer = SummaryWriter("runs")
for step in range(3):
    writer.add_scalar("loss", 1.0, step)
    log(step=step, loss=2.0)
writer.add_scalar("last", 3.0, 7)
""")  # fmt: skip
    assert ended.metric("loss") == [(0, 1.0), (0, 2.0), (1, 2.0), (2, 2.0)], "the writer was first once"
    assert ended.metric("last") == [(7, 3.0)]
