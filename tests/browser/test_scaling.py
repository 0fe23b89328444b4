"""A scaling study in a real JupyterLab: its panel while it runs, as it ends, and its row in the list of jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Book, Lab

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(600)]

#: Rank 1 is 20 ms late in each step.
MEASURE = """
def train(lr=0.01):
    import time
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(800, 4)), batch_size=8)
    while True:
        for (x,) in data:
            loss = model(x).pow(2).mean()
            time.sleep(0.03 + 0.06 * torch.distributed.get_rank())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

from distdl_jupyter import scale
found = scale(train, [1, 2], backends="torch", seconds=1, epoch_samples=50_000, price_per_hour="3 USD", name="digits")
found
"""


@pytest.fixture
def lab(own_lab: Lab) -> Lab:
    """A list of jobs that holds those of this test only."""
    own_lab.start()
    return own_lab


def test_a_study_fills_its_panel_and_is_one_row_of_the_list(desk: Callable[..., Book]) -> None:
    book = desk([MEASURE])
    book.run_all()
    panel = book.page.locator(".dd-scaling")
    pill = panel.locator(".dd-pill")
    expect(pill).to_have_text("Running")
    expect(pill).to_have_text("Completed")
    # Shown once, though the function's value stands last in the cell as well.
    expect(panel).to_have_count(1)
    expect(panel.locator(".dd-scalefinding")).to_contain_text("2 processes reach")
    expect(panel.locator(".dd-scalefinding")).to_contain_text("waiting for rank 1; without it:")
    expect(panel.locator(".dd-dots")).to_contain_text("weak scaling: batch of 8 per process")
    figure = panel.get_by_role("img")
    for text in ("measured", "forecast", "ideal", "without rank 1's delay"):
        expect(figure.get_by_text(text)).to_be_visible()
    rows = panel.locator(".dd-scaletable").first.locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(1)).to_contain_text("0.02")
    expect(panel).to_contain_text("Prices: set by you.")
    book.picture("scaling", panel)
    study = book.page.locator("#distdl-sidebar .dd-job[role=row]")
    book.page.evaluate("window.jupyterapp.commands.execute('distdl:focus-sidebar')")
    expect(study).to_have_count(1)
    expect(study).to_contain_text("Scaling of digits")
    expect(study).to_contain_text("2 of 2 measured")
    study.locator(".dd-unfold").click()
    assert study.count() >= 1 + 4
    assert not book.errors


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 760)])
def test_a_study_whose_kernel_was_restarted_goes_on_by_its_button(
    desk: Callable[..., Book], dark: bool, width: int
) -> None:
    book = desk([MEASURE], dark=dark, width=width)
    book.run_all()
    panel = book.page.locator(".dd-scaling")
    pill, go_on = panel.locator(".dd-pill"), panel.get_by_role("button", name="Go on")
    rows = panel.locator(".dd-scaletable").first.locator("tbody tr")
    expect(rows.first).to_be_visible()
    expect(go_on).to_have_count(0)
    book.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    expect(pill).to_have_text("Canceled")
    book.picture(f"scaling-broken-off-{'dark' if dark else 'light'}", panel)
    go_on.click()
    expect(pill).to_have_text("Running")
    expect(pill).to_have_text("Completed")
    expect(rows).to_have_count(4)
    expect(go_on).to_have_count(0)
    assert not book.errors
