"""Clusters of other machines in JupyterLab: hosts with a network and an sshd of their own, added through the form."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from distdl_jupyter.clusters import processes
from distdl_jupyter.core.store import JobStore
from tests.browser.conftest import ARTIFACTS, PATIENCE, Book, Lab
from tests.hosts import Hosts, needs_hosts
from tests.installation import Installation

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
def own_lab(installed: Installation, tmp_path: Path) -> Iterator[Lab]:
    """A JupyterLab whose user has named no cluster."""
    lab = Lab(installed, tmp_path)
    lab.settings("@jupyterlab/apputils-extension:notification", {"fetchNews": "false", "checkForUpdates": False})
    lab.settings("@jupyterlab/docmanager-extension:plugin", {"autosave": False})
    try:
        yield lab
    finally:
        for folder in JobStore(lab.home / "distdl").folders():
            processes.kill_all(folder.id)
        lab.stop()


@pytest.fixture
def desk_of(own_lab: Lab, chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Book]]:
    """Return ``open(cells, dark=False) -> Book``: JupyterLab as a whole with its sidebar of distributed training."""
    made: list[Book] = []

    def open_(cells: list[str], *, dark: bool = False) -> Book:
        if not own_lab.url:
            own_lab.start()
        own_lab.set_theme("JupyterLab Dark" if dark else "JupyterLab Light")
        context = chromium.new_context(viewport={"width": 1440, "height": 980}, device_scale_factor=1.5)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(PATIENCE * 1000)
        book = Book(context.new_page(), own_lab)
        name = f"clusters-{len(made)}.ipynb"
        own_lab.write(name, cells)
        book.open_desk(name)
        book.page.evaluate("() => window.jupyterapp.commands.execute('distdl:focus-sidebar')")
        made.append(book)
        return book

    yield open_
    for number, book in enumerate(made):
        book.page.screenshot(path=ARTIFACTS / f"last-{re.sub(r'[^a-z0-9]+', '-', request.node.name)}-{number}.png")
        book.page.context.close()


def sidebar(page: Page) -> Locator:
    return page.locator("#distdl-sidebar")


def cluster(page: Page, name: str) -> Locator:
    return sidebar(page).locator(f'.dd-cluster[data-name="{name}"]')


def node(page: Page, name: str) -> Locator:
    return cluster(page, "lab").locator(f'.dd-node[data-name="{name}"]')


def add_lab(where: Locator, hosts: Hosts, home: Path, name: str) -> None:
    """Add the cluster as a user would: hosts first, as they are offered, ssh's configuration in the fold."""
    (home / ".ssh").mkdir()
    (home / ".ssh" / "config").write_text(f"Include {hosts.ssh_config}\n")
    where.get_by_role("button", name="Add cluster").click()
    form = where.get_by_role("form", name="Add cluster")
    form.get_by_role("textbox", name="Name").fill("lab")
    form.get_by_role("combobox", name="Kind").select_option("ssh")
    form.get_by_role("button", name="Add", exact=True).click()
    expect(form).to_contain_text("The cluster names no host.")
    expect(form.get_by_role("textbox", name=re.compile("^Hosts"))).to_be_focused()
    offered = form.get_by_role("group", name="Suggestions")
    for host in hosts.names:
        offered.get_by_role("button", name=host).click()
    expect(form.get_by_role("textbox", name=re.compile("^Hosts"))).to_have_value(", ".join(hosts.names))
    expect(form).not_to_contain_text("The cluster names no host.")
    expect(form.get_by_role("textbox", name=re.compile("^SSH config"))).to_be_hidden()
    form.get_by_text("More options").click()
    form.get_by_role("textbox", name=re.compile("^SSH config")).fill(str(hosts.ssh_config))
    picture(where, name)
    form.get_by_role("button", name="Add", exact=True).click()
    expect(form).to_be_hidden()


def picture(element: Locator, name: str) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    element.screenshot(path=ARTIFACTS / f"{name}.png")


def widen(page: Page, width: int) -> None:
    box: Any = sidebar(page).bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] + 1, y)
    page.mouse.down()
    page.mouse.move(box["x"] + width + 1, y, steps=5)
    page.mouse.up()


def all_up(page: Page, hosts: Hosts) -> None:
    for name in hosts.names:
        expect(node(page, name)).to_have_attribute("data-state", re.compile("idle|busy"), timeout=PATIENCE * 1000)


def test_hosts_are_shown_live_checked_used_and_let_go(
    desk_of: Callable[..., Book], three_hosts: Hosts, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    book = desk_of(["%load_ext distdl_jupyter", CELL.format(gate=str(gate))])
    page = book.page
    widen(page, 380)
    add_lab(sidebar(page), three_hosts, book.lab.home, "clusters-add")
    try:
        all_up(page, three_hosts)
        expect(node(page, "node-a")).to_contain_text(re.compile(r"Python 3\.\d+\.\d+, \d+ cores?, load \d"))
        expect(cluster(page, "lab")).to_contain_text("3 of 3 nodes")
        picture(sidebar(page), "clusters-up")

        # One is cut off: it turns red with the reason, the others and this machine stay as they are.
        three_hosts.cut("node-c")
        expect(node(page, "node-c")).to_have_attribute("data-state", "down", timeout=30_000)
        expect(node(page, "node-c")).to_contain_text(re.compile(r"no answer since \d\d:\d\d"))
        for name in ("node-a", "node-b"):
            expect(node(page, name)).to_have_attribute("data-state", "idle")
        expect(cluster(page, "lab")).to_contain_text("2 of 3 nodes")
        expect(cluster(page, "local").locator(".dd-cluster-summary")).to_have_text("idle")
        picture(sidebar(page), "clusters-one-down")

        # Its row leads to the checks, which say what is wrong and what to do.
        node(page, "node-c").get_by_role("button", name="Check").click()
        checks = cluster(page, "lab").get_by_role("region", name="Checks of lab")
        expect(checks).to_contain_text("Checking every node")
        row = checks.locator('.dd-check-item[data-level="error"]', has_text="node-c").first
        expect(row).to_be_visible(timeout=60_000)
        expect(row.locator(".dd-check-remedy")).not_to_be_empty()
        row.get_by_role("button", name="Copy").first.click()
        assert page.evaluate("() => navigator.clipboard.readText()").strip()
        picture(sidebar(page), "clusters-checked-red")

        three_hosts.join("node-c")
        expect(node(page, "node-c")).to_have_attribute("data-state", "idle", timeout=60_000)
        checks.get_by_role("button", name="Check again").click()
        expect(checks).to_contain_text(re.compile("passed"), timeout=60_000)
        expect(checks.locator('.dd-check-item[data-level="error"]')).to_have_count(0)
        picture(sidebar(page), "clusters-checked")
        checks.get_by_role("button", name="Close").click()

        # A job from a cell: its ranks are seen on their nodes, and its value comes back.
        book.run_all()
        for name in ("node-a", "node-b"):
            expect(node(page, name)).to_have_attribute("data-state", "busy", timeout=PATIENCE * 1000)
            expect(node(page, name)).to_contain_text("running across")
            expect(node(page, name)).to_contain_text("1 rank", timeout=PATIENCE * 1000)
        expect(node(page, "node-c")).to_have_attribute("data-state", "idle")
        picture(sidebar(page), "clusters-busy")
        gate.touch()
        output = page.locator(".jp-Notebook .jp-Cell").nth(1).locator(".jp-OutputArea-output")
        expect(output.first).to_contain_text("Completed", timeout=180_000)
        (folder,) = JobStore(book.lab.home / "distdl").folders()
        logs = folder.events.read_text()
        assert "on node-a rank 0" in logs
        assert "on node-b rank 1" in logs
        expect(node(page, "node-a")).to_contain_text("idle", timeout=PATIENCE * 1000)
        book.picture("clusters-job")

        for width in (300, 250):
            widen(page, width)
            overflow = sidebar(page).evaluate("(bar) => bar.scrollWidth - bar.clientWidth")
            assert overflow <= 0
            picture(sidebar(page), f"clusters-{width}")

        cluster(page, "lab").hover()
        cluster(page, "lab").get_by_role("button", name="Remove").click()
        cluster(page, "lab").get_by_role("group", name=re.compile("^Remove lab")).get_by_role(
            "button", name="Remove"
        ).click()
        expect(cluster(page, "lab")).to_have_count(0, timeout=PATIENCE * 1000)
        assert book.errors == []
    finally:
        three_hosts.join("node-c")


def test_the_launch_form_shows_the_hosts_and_refuses_too_many(desk_of: Callable[..., Book], three_hosts: Hosts) -> None:
    book = desk_of(["import torch\n1 + 1"], dark=True)
    page = book.page
    page.evaluate("() => window.jupyterapp.commands.execute('distdl:run-cell')")
    form = page.get_by_role("region", name="Run distributed")
    expect(form).to_be_visible()
    add_lab(form, three_hosts, book.lab.home, "clusters-form-add-dark")
    clusters = form.get_by_role("combobox", name="Cluster", exact=True)
    expect(clusters).to_have_value("lab")
    expect(clusters).to_be_focused()
    all_up(page, three_hosts)
    picture(sidebar(page), "clusters-up-dark")
    place = form.locator(".dd-place-now")
    for name in three_hosts.names:
        expect(place).to_contain_text(name, timeout=PATIENCE * 1000)
    expect(place.get_by_role("status")).to_contain_text(re.compile("passed|finding"), timeout=PATIENCE * 1000)
    nodes = form.get_by_role("spinbutton", name="Nodes", exact=True)
    nodes.fill("4")
    nodes.press("Enter")
    expect(form).to_contain_text("lab has 3 hosts, but 4 nodes are asked for.", timeout=PATIENCE * 1000)
    expect(form).to_contain_text("add hosts to the cluster")
    expect(form.get_by_role("button", name="Submit")).to_be_disabled()
    picture(form, "clusters-form-dark")
    nodes.fill("3")
    nodes.press("Enter")
    expect(form.get_by_role("button", name="Submit")).to_be_enabled(timeout=PATIENCE * 1000)
    picture(form, "clusters-form")
    three_hosts.cut("node-c")
    try:
        expect(node(page, "node-c")).to_have_attribute("data-state", "down", timeout=30_000)
        place.get_by_role("button", name="Check again").click()
        row = place.locator('.dd-check-item[data-level="error"]', has_text="node-c")
        expect(row).to_be_visible(timeout=60_000)
        expect(row.get_by_role("button", name="Copy")).to_be_visible()
        picture(form, "clusters-form-red")
    finally:
        three_hosts.join("node-c")
    assert book.errors == []


def test_the_launch_form_of_a_cell_lets_a_cluster_go_when_no_job_runs_there(
    desk_of: Callable[..., Book], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    cell = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.2)\n'seen'"
    book = desk_of(["%load_ext distdl_jupyter", cell])
    page = book.page
    book.run(0)
    form = page.get_by_role("region", name="Run distributed")

    def opened() -> Locator:
        page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
        page.evaluate("() => window.jupyterapp.commands.execute('distdl:run-cell')")
        expect(form).to_be_visible()
        return form.get_by_role("combobox", name="Cluster", exact=True)

    clusters = opened()
    expect(clusters).to_have_value("local")
    form.get_by_role("button", name="Add cluster").click()
    adding = form.get_by_role("form", name="Add cluster")
    adding.get_by_role("textbox", name="Name").fill("lab")
    adding.get_by_role("combobox", name="Kind").select_option("local")
    picture(form, "clusters-form-add")
    adding.get_by_role("button", name="Add", exact=True).click()
    expect(clusters).to_have_value("lab")
    expect(cluster(page, "lab")).to_be_visible(timeout=PATIENCE * 1000)
    expect(form.locator("footer")).to_contain_text("--compute-target lab", timeout=PATIENCE * 1000)
    form.get_by_role("button", name="Submit").click()
    output = page.locator(".jp-Notebook .jp-Cell").nth(1).locator(".jp-OutputArea-output")
    expect(output.first).to_contain_text("Running", timeout=180_000)
    expect(form).to_have_count(0)

    opened()
    expect(clusters).to_have_value("lab")
    form.get_by_role("button", name="Remove lab").click()
    question = form.get_by_role("group", name="Remove lab from your clusters?")
    picture(form, "clusters-form-remove")
    question.get_by_role("button", name="Remove").click()
    refusal = form.get_by_role("alert").filter(has_text="1 job of lab has not ended. Cancel")
    expect(refusal).to_be_visible(timeout=PATIENCE * 1000)
    expect(clusters).to_have_value("lab")
    picture(form, "clusters-form-remove-refused")
    gate.touch()
    expect(output.first).to_contain_text("Completed", timeout=180_000)
    form.get_by_role("button", name="Remove lab").click()
    question.get_by_role("button", name="Remove").click()
    expect(clusters).to_have_value("local", timeout=PATIENCE * 1000)
    expect(clusters.get_by_role("option", name="lab")).to_have_count(0, timeout=PATIENCE * 1000)
    expect(form.locator("footer")).not_to_contain_text("--compute-target", timeout=PATIENCE * 1000)
    expect(cluster(page, "lab")).to_have_count(0, timeout=PATIENCE * 1000)
    expect(output.first).to_contain_text("Completed")
    assert book.errors == []
