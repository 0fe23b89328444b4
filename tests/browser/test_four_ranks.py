"""Four ranks on two emulated nodes in JupyterLab, while they train and when they have ended."""

import pytest
from playwright.sync_api import expect

from tests.browser import pages

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(400)]

PREPARE = """%load_ext distdl_jupyter
import numpy as np
from sklearn.datasets import load_digits
from torch import nn
digits = load_digits()
images, labels = (digits.images / 16).astype(np.float32)[:, None], digits.target
class DigitsCNN(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))
def batches(rank, size, epochs, batch=32):
    import torch
    x, y = torch.from_numpy(images[rank::size]), torch.from_numpy(labels[rank::size])
    for epoch in range(epochs):
        for part in torch.randperm(len(x))[: 14 * batch].split(batch):
            yield epoch, x[part], y[part]
"""

TRAIN = """%%distributed -N 2 -p 2 -b horovod-gloo --name digits -o job
import torch, torch.nn.functional as F, horovod.torch as hvd
from distdl_jupyter import log, progress
from tqdm import tqdm

hvd.init()
model = DigitsCNN()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
print(f"train {len(images):,} images, batch 32 x {hvd.size()} = {32 * hvd.size()}")
bar = tqdm(total=60 * 14, disable=hvd.rank() > 0)
for step, (epoch, x, y) in enumerate(batches(hvd.rank(), hvd.size(), epochs=60)):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward(); optimizer.step(); bar.update()
    log(step=step, loss=loss, lr=0.02 * hvd.size()); progress(step + 1, 60 * 14)
    if step % 14 == 13 and hvd.rank() == 0:
        print(f"epoch {epoch + 1:3d}  loss {loss.item():.4f}")
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_four_ranks_on_two_emulated_nodes_while_they_train(notebook, dark):
    book = notebook(
        [PREPARE, TRAIN, "# the kernel is free: the job runs in processes of its own"], height=1250, dark=dark
    )
    book.run_all()
    output = book.output(1)
    bar = output.get_by_role("progressbar").first
    expect(output.get_by_text("Running", exact=True)).to_be_visible(timeout=120_000)
    expect(output.get_by_text("node-1").first).to_be_visible()
    expect(pages.curves(output).first).to_be_attached(timeout=60_000)
    book.page.wait_for_function(
        "bar => Number(bar.getAttribute('aria-valuenow')) >= 45", arg=bar.element_handle(), timeout=120_000
    )
    book.picture(f"four-ranks-{'dark' if dark else 'light'}")
    expect(output.get_by_text("Completed", exact=True)).to_be_visible(timeout=120_000)
