"""Every picture of README and of the site, made from real jobs, in the light and in the dark theme.

``make pictures`` keeps them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser import gallery, pages
from tests.browser.conftest import Book, Lab, new_book
from tests.docs.blocks import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(900)]

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
SMALL = TRAIN.replace("-N 2 -p 2", "-p {ranks}").replace("digits -o job", "{name} --wait").replace("60", "{epochs}")
#: A batch whose labels have another name on one rank.
WRONG = """%%distributed -N 2 -p 2 -b horovod-gloo --name digits -o job
import torch, torch.nn.functional as F, horovod.torch as hvd
from distdl_jupyter import log, progress

hvd.init()
model = DigitsCNN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
for step, (epoch, x, y) in enumerate(batches(hvd.rank(), hvd.size(), epochs=3)):
    name = "target" if hvd.rank() == 2 and step > 30 else "label"
    batch = {"image": x, name: y}
    optimizer.zero_grad()
    loss = F.cross_entropy(model(batch["image"]), batch["label"])
    loss.backward(); optimizer.step()
    log(step=step, loss=loss.item()); progress(step + 1, 3 * 14)
"""
FORM = """import horovod.torch as hvd
from distdl_jupyter import launcher
batch_size, lr, epochs = 32, 0.01, 3

def train():
    hvd.init()
    return DigitsCNN, images.shape, batch_size, lr, epochs

launcher(train, vm_size="NC96ads_A100_v4", node_count=2, process_count_per_node="auto", name="digits")
"""


@pytest.fixture
def lab(own_lab: Lab) -> Lab:
    """A list of jobs that holds those of one picture only."""
    own_lab.settings("distdl-jupyter:plugin", {"notifications": "none"})
    own_lab.start()
    return own_lab


@pytest.fixture
def opened(lab: Lab, chromium: Browser) -> Iterator[Callable[..., Book]]:
    """Return a function that opens the notebook ``digits.ipynb`` of some cells."""
    books: list[Book] = []

    def opened_(cells: list[str], *, dark: bool = False, width: int = 1000, height: int = 1700) -> Book:
        lab.set_theme(f"JupyterLab {'Dark' if dark else 'Light'}")
        book = new_book(chromium, lab, width, height)
        books.append(book)
        lab.write("digits.ipynb", cells)
        (book.open_desk if width > 1300 else book.open)("digits.ipynb")
        return book

    yield opened_
    for book in books:
        assert not book.errors
        book.page.context.close()


def both(book: Book, name: str, *shown: Locator) -> None:
    """Keep a picture in either theme."""
    for dark in (False, True):
        book.theme(dark=dark)
        book.page.mouse.move(0, 0)
        gallery.keep(name, *shown, dark=dark)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_cell_that_trains(opened: Callable[..., Book], dark: bool) -> None:
    book = opened([PREPARE, TRAIN], dark=dark, width=1180, height=1160)
    book.run(0)
    cell = book.cell(1)
    cell.evaluate("cell => cell.scrollIntoView({ block: 'start' })")
    clip = gallery.around(cell)
    clip["height"] = 1130 - clip["y"]  # above the status bar
    kept = False

    def completed() -> bool:
        nonlocal kept
        state, done = cell.locator(".dd-pill"), cell.get_by_role("progressbar")
        if not kept and done.count() and int(done.first.get_attribute("aria-valuenow") or 0) >= 45:
            expect(cell.locator(".dd-hosts").get_by_text("node-1")).to_be_visible()
            gallery.keep("panel", cell, dark=dark)
            kept = True
        return state.count() > 0 and state.first.inner_text() == "Completed"

    book.choose(1)
    book.page.evaluate("() => { void window.jupyterapp.commands.execute('notebook:run-cell'); }")
    gallery.film("moving", book.page, clip, completed, dark=dark)
    assert kept


def test_the_whole_of_jupyterlab(opened: Callable[..., Book]) -> None:
    smaller = [(2, "digits-smoke", 10), (1, "digits", 40), (2, "digits", 40)]
    cells = [SMALL.replace("{ranks}", str(r)).replace("{name}", n).replace("{epochs}", str(e)) for r, n, e in smaller]
    book = opened([PREPARE, *cells, TRAIN], width=1440, height=980)
    for number in range(4):
        book.run(number)
    book.sidebar().widen(345)
    book.run(4)
    rows = book.page.locator(".dd-job[role=row]")
    expect(rows).to_have_count(4)
    id_ = rows.first.get_attribute("data-id")
    assert id_
    page = book.open_job(id_)
    bar = page.get_by_role("progressbar").first
    book.page.wait_for_function("bar => Number(bar.getAttribute('aria-valuenow')) >= 35", arg=bar.element_handle())
    both(book, "lab", book.page.locator("#main"))
    pages.says(page, "Completed")


def test_a_rank_that_fails(opened: Callable[..., Book]) -> None:
    book = opened([PREPARE, WRONG])
    book.run_all()
    shown = book.output(1)
    pages.says(shown, "Failed")
    expect(shown).to_contain_text("Rank 2 of 4 failed first")
    both(book, "failure", shown)


def test_the_launch_form(opened: Callable[..., Book]) -> None:
    book = opened([PREPARE, FORM], width=1240)
    for number in (0, 1):
        book.run(number)
    form = pages.form(book.output(1))
    expect(form.locator("tr.dd-chosen")).to_contain_text("NC96ads_A100_v4")
    expect(form.locator(".dd-form-head")).to_contain_text("checks passed")
    both(book, "launcher", form)


def test_cells_on_ranks(opened: Callable[..., Book]) -> None:
    book = opened(["1"])
    shutil.copy(ROOT / "notebooks" / "ranks.ipynb", book.lab.root)
    book.open("ranks.ipynb")
    for number in range(8):
        book.run(number)
    book.choose(0)
    both(book, "ranks", *[book.cell(number) for number in range(4, 8)])
