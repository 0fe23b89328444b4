"""What common programs print has a curve, on two ranks; what a trainer reports itself is not read twice."""

import sys
import textwrap

import pytest

from distdl_jupyter import submit
from tests.trainers.test_trainers import curve, ended, here

pytestmark = pytest.mark.timeout(300)


TORCH = """
    import os
    import torch
    import torch.distributed as dist
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data, target = torch.rand(64, 4), torch.rand(64, 1)
    for epoch in (1, 2):
        for at in range(0, 64, 16):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(data[at:at + 16]), target[at:at + 16])
            loss.backward()
            optimizer.step()
            print("Train Epoch: {} [{}/{} ({:.0f}%)]\\tLoss: {:.6f}".format(epoch, at, 64, 100 * at / 64, loss.item()))
        print("\\nTest set: Average loss: {:.4f}, Accuracy: {}/{} ({:.0f}%)\\n".format(0.25 / epoch, 48, 64, 75))
"""


def test_prints_of_a_torch_example_are_the_curves_of_both_ranks():
    job = ended(TORCH)
    assert job.view().output_metrics == ["loss", "test_loss", "test_accuracy"]
    metrics = job.metrics()
    for rank in (0, 1):
        assert [step for step, _ in curve(metrics, "loss", rank)] == [0, 16, 32, 48, 64, 80, 96, 112]
        assert curve(metrics, "test_loss", rank) == [(48, 0.25), (112, 0.125)]
        assert curve(metrics, "test_accuracy", rank) == [(48, 0.75), (112, 0.75)]


def test_prints_are_not_read_when_the_option_says_so():
    assert ended(TORCH, metrics_from_output=False).metrics().columns.tolist() == ["rank", "step", "time"]


def with_bar():
    import time

    from tqdm import tqdm

    for epoch in range(2):
        with tqdm(range(20), desc=f"Epoch {epoch}") as bar:
            for step in bar:
                time.sleep(0.02)
                bar.set_postfix(loss=1.0 / (1 + step + 20 * epoch))


def test_bar_of_tqdm_is_a_curve_and_progress():
    job = submit(with_bar, process_count_per_node=2, distributed_backend="torch")
    job.results(timeout=60)
    steps = [step for step, _ in curve(job.metrics(), "loss", rank=1)]
    assert steps == sorted(steps)
    assert steps[-1] == 40
    assert (job.view().done, job.view().total) == (20, 20)


KERAS = """
    import os
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import numpy
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    data = numpy.random.rand(64, 4)
    model.fit(data, data.sum(1), epochs=3, batch_size=16, verbose={verbose})
"""


def in_its_own_program(code):
    """Run code in a program of its own, whose output is the rank's and which reports nothing."""
    import subprocess

    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.full
@here("keras")
@pytest.mark.parametrize("verbose", [1, 2])
def test_output_of_keras_is_a_curve_that_goes_on_from_epoch_to_epoch(verbose):
    code = textwrap.dedent(KERAS.format(verbose=verbose))
    job = submit(in_its_own_program, (code,), process_count_per_node=1)
    job.results(timeout=120)
    assert job.view().output_metrics == ["loss", "mae"]
    steps = [step for step, _ in curve(job.metrics(), "loss")]
    assert [step for step in dict.fromkeys(steps) if step % 4 == 0] == [4, 8, 12]
    assert (job.view().done, job.view().total) == (12, 12)
