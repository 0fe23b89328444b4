"""A job that waits, in a real JupyterLab: its panel, the machine's slots, another place for it, and word of its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from distdl_jupyter.node.devices import cores
from tests.browser.conftest import Book, Lab
from tests.hosts import Hosts, hosts_of, needs_hosts  # noqa: F401 - a fixture

pytestmark = [pytest.mark.browser, pytest.mark.full, needs_hosts, pytest.mark.timeout(300)]

BEGIN = """
import time
from distdl_jupyter import add_cluster, jobs, submit

add_cluster("lab", "ssh", **{options!r})

def digits(seconds):
    from distdl_jupyter import log, progress
    until = time.monotonic() + seconds
    for step in range(10**6):
        if time.monotonic() > until:
            break
        log(step=step, loss=2.0 / (step + 1))
        progress(step, 10 * seconds)
        time.sleep(0.1)

first = submit(digits, (600,), name="digits", cores={cores}, notify_when="loss < 0.01")
while first.state.value != "running":
    time.sleep(0.1)
"""
WAIT = """%%distributed -p 1 --cores {cores} --name vit-tiny -o job
print("moved")
"""


@pytest.fixture
def lab(own_lab: Lab) -> Lab:
    """A list of jobs that holds those of this test only."""
    own_lab.start()
    return own_lab


def test_a_job_that_waits_says_for_whom_and_starts_elsewhere(
    lab: Lab,
    desk: Callable[..., Book],
    hosts_of: Callable[..., Hosts],  # noqa: F811
) -> None:
    hosts = hosts_of(2)
    begin = BEGIN.format(options=hosts.options(), cores=cores())
    book = desk(["%load_ext distdl_jupyter", begin, WAIT.format(cores=cores())], width=1440)
    book.page.evaluate("window.jupyterapp.commands.execute('distdl:focus-sidebar')")
    book.run_all()
    panel = book.page.locator(".jp-OutputArea .dd-queue")
    expect(panel.locator(".dd-queue-place")).to_have_text("Position 1 of 1")
    expect(panel.locator(".dd-queue-why")).to_contain_text("held by digits")
    holders, reasons = panel.locator(".dd-queue-rows").all()
    expect(holders).to_contain_text("digits")
    expect(reasons).to_contain_text(f"needs {cores()} cores, 0 free")
    for row in panel.locator(".dd-queue-row").all():
        label, value = (row.locator(f".dd-queue-{part}").bounding_box() for part in ("label", "value"))
        assert label["y"] < value["y"] + value["height"] <= label["y"] + label["height"] + 8  # one line
        assert label["x"] + label["width"] < value["x"]
    # Whatever looks like a button is one.
    assert panel.locator(".dd-btn").count() == panel.get_by_role("button", include_hidden=True).count()
    slots = book.page.locator("#distdl-sidebar .dd-cluster[data-name=local]")
    expect(slots.locator(".dd-cluster-summary")).to_have_text("1 job, 1 queued")
    slots.locator(".dd-cluster-toggle").click()
    expect(slots.locator(".dd-slots")).to_contain_text(f"{cores()} of {cores()} cores")
    toast = book.page.locator(".Toastify__toast")
    expect(toast).to_contain_text("loss < 0.01")
    expect(panel.locator(".dd-queue-offer")).to_contain_text("lab has 2 idle nodes: the job would start there now")
    panel.get_by_role("button", name="Run elsewhere: lab").click()
    page = book.page.locator(".dd-document").last
    expect(page.locator(".dd-title").first).to_contain_text("vit-tiny")
    # The emulated hosts share this machine's cores, and so its queue.
    (first,) = [one.id for one in lab.store.list_folders() if one.read_spec().name == "digits"]
    lab.run("stop", first)
    expect(page.locator(".dd-pill").first).to_have_text("Completed")
    expect(book.page.locator(".jp-Notification-Status")).to_contain_text("2")  # no toast: its page is on the screen
    expect(slots.locator(".dd-cluster-summary")).to_have_text("idle")
    assert not book.errors
