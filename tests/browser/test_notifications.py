"""Notifications of jobs in JupyterLab: short toasts, one for several jobs, withdrawn when they are no longer true."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Book, Lab
from tests.conftest import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

LOAD = "import os, time\nfrom distdl_jupyter import submit"
THREE = "for name in ('one', 'two', 'three'):\n    submit(time.sleep, (2,), name=name, distributed_backend='plain')"
SLEEPER = "job = submit(time.sleep, (4,), name='sleeper', distributed_backend='plain'); _ = job"
STUCK = """os.environ["DISTDL_STALL_SECONDS"] = "2"
def stuck():
    from distdl_jupyter import log
    for step in range(5):
        log(step=step, loss=1.0)
        time.sleep(0.1)
    time.sleep(600)

job = submit(stuck, name="stuck", distributed_backend="plain")"""


@pytest.fixture
def lab(own_lab: Lab) -> Lab:
    """A list of jobs that holds those of this test only."""
    own_lab.start()
    return own_lab


def toasts(book: Book) -> Locator:
    return book.page.locator(".Toastify__toast")


def bell(book: Book) -> Locator:
    """Open the notification center and return its items."""
    book.page.locator(".jp-Notification-Status").click()
    return book.page.locator(".jp-Notification-List li")


def test_jobs_that_end_together_are_one_toast_that_goes_and_stays_in_the_bell(
    lab: Lab, desk: Callable[..., Book]
) -> None:
    book = desk([LOAD, THREE], width=1366, height=768, scale=1)
    book.run_all()
    expect(toasts(book)).to_contain_text("three")
    assert toasts(book).count() < 3
    expect(toasts(book)).to_have_count(0, timeout=15_000)  # 8 s after the last of the jobs
    expect(bell(book).filter(has_text="three")).to_contain_text("Completed")


def test_no_toast_covers_the_page_that_shows_the_job(lab: Lab, desk: Callable[..., Book]) -> None:
    book = desk([LOAD, SLEEPER], width=1366, height=768, scale=1)
    book.run_all()
    (folder,) = wait_for(lambda: list(lab.store.list_folders()))
    page = book.open_job(folder.id)
    expect(page.locator(".dd-pill").first).to_have_text("Completed")
    expect(book.page.locator(".jp-Notification-Status")).to_contain_text("1")
    expect(toasts(book)).to_have_count(0)
    expect(bell(book).filter(has_text="sleeper")).to_contain_text("Completed")


def test_a_stall_is_withdrawn_when_its_job_is_canceled(lab: Lab, desk: Callable[..., Book]) -> None:
    book = desk([LOAD, STUCK], width=1366, height=768, scale=1)
    book.run_all()
    expect(toasts(book)).to_contain_text("stuck")
    (folder,) = lab.store.list_folders()
    lab.run("stop", folder.id)
    expect(toasts(book)).to_have_count(0, timeout=7_000)
    expect(bell(book).filter(has_text="stuck")).to_have_count(0)
