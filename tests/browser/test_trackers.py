"""Experiment trackers on the page of a job in a real JupyterLab: their runs, and the commands that show them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Book, Lab
from tests.tracking.packages import installed as tracker_packages

pytestmark = [pytest.mark.browser, pytest.mark.full, pytest.mark.timeout(600)]

TRAIN = """%%distributed -p 1 -b plain --name digits --track tensorboard,mlflow --wait
from distdl_jupyter import log

for step in range(20):
    log(step=step, loss=1 / (step + 1))
"""


class TrackedLab(Lab):
    """A JupyterLab whose environment has the packages of the trackers."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables, those packages among them."""
        return {**super().variables, "PYTHONPATH": str(tracker_packages()), "MLFLOW_DISABLE_TELEMETRY": "true"}


@pytest.fixture
def lab(own_lab: Lab) -> Lab:
    own_lab.__class__ = TrackedLab
    own_lab.start()
    return own_lab


def test_the_page_of_a_job_has_the_command_that_shows_each_tracker(desk: Callable[..., Book]) -> None:
    book = desk(["%load_ext distdl_jupyter", TRAIN])
    book.run_all()
    expect(book.page.locator(".jp-OutputArea .dd-pill").first).to_have_text("Completed")
    book.page.evaluate("window.jupyterapp.commands.execute('distdl:focus-sidebar')")
    book.page.locator("#distdl-sidebar .dd-job[role=row]").dblclick()
    page = book.page.locator(".dd-document").last
    page.get_by_role("tab", name="Outputs").click()
    expect(page.get_by_text("Complete", exact=True)).to_have_count(2)
    commands = page.locator(".dd-check-remedy code")
    for command in ("tensorboard --logdir", "mlflow ui --backend-store-uri sqlite:///"):
        expect(commands.filter(has_text=command)).to_have_count(1)
    assert book.page.locator("iframe").count() == 0
    # However long a path is, all columns are to be seen.
    for width in (1440, 1000):
        book.page.set_viewport_size({"width": width, "height": 900})
        table = page.locator(".dd-tablebox").first
        assert table.evaluate("(box) => box.scrollWidth - box.clientWidth") <= 0
        book.picture(f"trackers-{width}")
