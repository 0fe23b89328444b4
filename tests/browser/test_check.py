"""A check of training code: from the job's page to what it has found, and as a cell's own output."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Book, Lab

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(600)]

#: Both ranks go through the same samples in the same order.
TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 4)
for inputs, targets in DataLoader(TensorDataset(x, x[:, :1]), batch_size=8):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOAD = "%load_ext distdl_jupyter"
FINDING = "Processes train on the same samples"


@pytest.fixture
def lab(own_lab: Lab) -> Lab:
    """A list of jobs that holds those of this test only."""
    own_lab.start()
    return own_lab


def test_a_jobs_code_is_checked_from_its_page(desk: Callable[..., Book]) -> None:
    book = desk([LOAD, f"%%distributed -p 2 -b torch\n{TRAIN}"])
    book.run_all()
    book.sidebar()
    job = book.page.locator("#distdl-sidebar .dd-job[role=row]")
    expect(job).to_have_count(1)
    expect(job).to_have_attribute("data-state", "completed")
    job.dblclick()
    book.page.locator(".dd-page").get_by_role("button", name="Check", exact=True).click()
    page = book.page.locator(".dd-page").filter(has=book.page.locator(".dd-checkbox:visible"))
    found = page.locator(".dd-checkbox")
    expect(found.locator("li")).to_contain_text(FINDING)
    expect(found.get_by_role("button", name="Run on one process")).to_be_visible()
    expect(found.locator(".dd-check-notes")).to_contain_text("Compared")
    # The check is one job of the list, not one for each of its runs.
    expect(job).to_have_count(2)
    assert not book.errors
