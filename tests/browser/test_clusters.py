"""Clusters of other machines in JupyterLab: hosts with a network and an sshd of their own, added through the form."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Book, Lab
from tests.browser.pages import Sidebar
from tests.hosts import Hosts, needs_hosts

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900), needs_hosts]

CELL = """
%%distributed -N 2 -p 1 -b torch --compute-target lab --name across -o job
import os, socket, time
import torch
import torch.distributed as dist
from distdl_jupyter import log
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
for step in range(5):
    log(step=step, loss=1 / (step + 1))
while not os.path.exists({gate!r}):
    time.sleep(0.2)
print("on", socket.gethostname(), "rank", os.environ["RANK"])
(socket.gethostname(), total.item())
"""


@pytest.fixture
def lab(own_lab: Lab) -> Lab:
    """A JupyterLab whose user has named no cluster."""
    own_lab.start()
    return own_lab


def node(bar: Sidebar, name: str) -> Locator:
    return bar.node("lab", name)


def add_lab(book: Book, where: Locator, hosts: Hosts, name: str) -> None:
    """Add the cluster as a user would: hosts first, as they are offered, ssh's configuration in the fold."""
    home = book.lab.home
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").write_text(hosts.ssh_config.read_text())
    where.get_by_role("button", name="Add cluster").click()
    form = where.get_by_role("form", name="Add cluster")
    form.get_by_role("textbox", name="Name").fill("lab")
    form.get_by_role("combobox", name="Kind").select_option("ssh")
    form.get_by_role("button", name="Add", exact=True).click()
    expect(form).to_contain_text("The cluster has no hosts.")
    expect(form.get_by_role("textbox", name=re.compile("^Hosts"))).to_be_focused()
    offered = form.get_by_role("group", name="Suggestions")
    for host in hosts.names:
        offered.get_by_role("button", name=host).click()
    expect(form.get_by_role("textbox", name=re.compile("^Hosts"))).to_have_value(", ".join(hosts.names))
    expect(form).not_to_contain_text("The cluster has no hosts.")
    expect(form.get_by_role("textbox", name=re.compile("^SSH config"))).to_be_hidden()
    form.get_by_text("More options").click()
    form.get_by_role("textbox", name=re.compile("^SSH config")).fill(str(hosts.ssh_config))
    form.get_by_role("button", name="Add", exact=True).click()
    expect(form).to_be_hidden()


def all_up(bar: Sidebar, hosts: Hosts) -> None:
    for name in hosts.names:
        expect(node(bar, name)).to_have_attribute("data-state", re.compile("idle|busy"))


@pytest.mark.full
def test_hosts_are_shown_live_checked_used_and_let_go(
    desk: Callable[..., Book], three_hosts: Hosts, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    book = desk(["%load_ext distdl_jupyter", CELL.format(gate=str(gate))])
    bar = book.sidebar()
    bar.widen(380)
    add_lab(book, bar.root, three_hosts, "clusters-add")
    try:
        all_up(bar, three_hosts)
        expect(node(bar, "node-a")).to_contain_text(re.compile(r"Python 3\.\d+\.\d+, \d+ cores?, load \d"))
        expect(bar.cluster("lab")).to_contain_text("3 of 3 nodes")

        # One is cut off: it turns red with the reason, the others and this machine stay as they are.
        three_hosts.cut("node-c")
        expect(node(bar, "node-c")).to_have_attribute("data-state", "down", timeout=90_000)
        expect(node(bar, "node-c")).to_contain_text("The host does not respond.")
        for name in ("node-a", "node-b"):
            expect(node(bar, name)).to_have_attribute("data-state", "idle")
        expect(bar.cluster("lab")).to_contain_text("2 of 3 nodes")
        expect(bar.summary("local")).to_have_text("idle")

        # Its row leads to the checks, which say what is wrong and what to do.
        node(bar, "node-c").get_by_role("button", name="Check").click()
        checks = bar.cluster("lab").get_by_role("region", name="Checks of lab")
        expect(checks).to_contain_text("Checking every node")
        row = checks.locator('.dd-check-item[data-level="error"]', has_text="node-c").first
        expect(row).to_be_visible(timeout=60_000)
        expect(row.locator(".dd-check-remedy")).not_to_be_empty()
        row.get_by_role("button", name="Copy").first.click()
        assert book.copied().strip()

        three_hosts.join("node-c")
        expect(node(bar, "node-c")).to_have_attribute("data-state", "idle", timeout=90_000)
        checks.get_by_role("button", name="Check again").click()
        expect(checks).to_contain_text(re.compile("passed"), timeout=60_000)
        expect(checks.locator('.dd-check-item[data-level="error"]')).to_have_count(0)
        checks.get_by_role("button", name="Close").click()

        # A job from a cell: its ranks are seen on their nodes, and its value comes back.
        book.run_all()
        for name in ("node-a", "node-b"):
            expect(node(bar, name)).to_have_attribute("data-state", "busy", timeout=90_000)
            expect(node(bar, name)).to_contain_text("running across")
            expect(node(bar, name)).to_contain_text("1 rank")
        expect(node(bar, "node-c")).to_have_attribute("data-state", "idle", timeout=90_000)
        gate.touch()
        output = book.cell(1).locator(".jp-OutputArea-output")
        expect(output.first).to_contain_text("Completed", timeout=180_000)
        (folder,) = book.lab.store.list_folders()
        logs = folder.log.read_text()
        assert "on node-a rank 0" in logs
        assert "on node-b rank 1" in logs
        expect(node(bar, "node-a")).to_contain_text("idle")

        for width in (300, 250):
            bar.widen(width)
            assert bar.cut_off() <= 0

        bar.cluster("lab").hover()
        bar.cluster("lab").get_by_role("button", name="Remove").click()
        bar.cluster("lab").get_by_role("group", name=re.compile("^Remove lab")).get_by_role(
            "button", name="Remove"
        ).click()
        expect(bar.cluster("lab")).to_have_count(0)
        assert book.errors == []
    finally:
        three_hosts.join("node-c")
