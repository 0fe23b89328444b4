"""The selectors of the product's pages, each written once: of a job, of a form, of the sidebar."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page, expect
from playwright.sync_api import TimeoutError as PageTimeout

from tests.conftest import wait_for

# ---- a job: in a cell, on its page, in a panel ----


def says(where: Locator, state: str) -> None:
    """Wait until a job is in a state."""
    expect(where.locator(".dd-pill").first).to_have_text(state)


def card(where: Locator | Page) -> Locator:
    return where.locator(".dd-card")


def curves(where: Locator) -> Locator:
    return where.locator(".js-plotly-plot .scatterlayer path.js-line")


def lines(where: Locator) -> Locator:
    """The lines of the log that are drawn."""
    return where.locator(".dd-log .dd-text")


def log_body(where: Locator) -> Locator:
    """What scrolls of a log."""
    return where.locator(".dd-log-body")


def to_the_top(where: Locator) -> None:
    """Scroll a log to its beginning."""
    log_body(where).evaluate("(body) => { body.scrollTop = 0; }")


def hit_lines(where: Locator) -> Locator:
    """The lines of the user's code at which a rank failed."""
    return where.locator(".dd-line-hit")


# ---- the launch form ----


def form(where: Locator | Page) -> Locator:
    return where.locator(".dd-form")


def total(of: Locator) -> Locator:
    """How many processes a form asks for."""
    return of.locator(".dd-form-total")


def captured(of: Locator) -> Locator:
    """The names that travel with a form's job."""
    return of.locator(".dd-captured")


def backends(of: Locator) -> Locator:
    return of.locator(".dd-seg-form")


# ---- what a screen reader is told ----


def misheard(page: Page, selector: str) -> list[str]:
    """Return what of an element's accessibility tree, as Chromium has it, a screen reader could not say or reach."""
    session = page.context.new_cdp_session(page)
    root = session.send("DOM.getDocument")["root"]["nodeId"]
    element = session.send("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
    every = session.send("Accessibility.queryAXTree", {"nodeId": element})["nodes"]
    session.detach()
    nodes = {node["nodeId"]: node for node in every if not node["ignored"]}
    roles = {id_: str(node["role"]["value"]) for id_, node in nodes.items()}
    found = []
    for id_, node in nodes.items():
        role, name = roles[id_], str(node.get("name", {}).get("value", ""))
        had = {one["name"]: one["value"] for one in node.get("properties", ())}
        if had.get("focusable", {}).get("value") and role not in ("generic", "none", "scrollable") and not name:
            found.append(f"a {role} has no name")
        if role == "tab" and had.get("selected", {}).get("value") and "controls" not in had:
            found.append(f"the tab {name!r} shows nothing")
        if role == "option" and any(roles.get(child) == "button" for child in node.get("childIds", ())):
            found.append(f"the option {name!r} holds a button")
        if role == "row" and not any(roles.get(child, "").endswith(("cell", "header")) for child in node["childIds"]):
            found.append(f"the row {name!r} has no cell")
    assert nodes, "there is such an element"
    return found


# ---- what can be read ----


def too_faint(page: Page, selector: str = ".dd-card .dd *") -> list[str]:
    """Return texts whose contrast to the background below them is under 4.5:1 (disabled controls do not count)."""
    found: list[str] = page.evaluate(_CONTRASTS, selector)
    return found


_CONTRASTS = """(selector) => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgba = (color) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = (top, below) => top.slice(0, 3).map((v, i) => v * top[3] + below[i] * (1 - top[3]));
    const backdrop = (e) => {
        const layers = [];
        for (; e; e = e.parentElement) {
            const color = rgba(getComputedStyle(e).backgroundColor);
            layers.push(color);
            if (color[3] === 1) break;
        }
        return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
    };
    const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const ratio = (a, b) => {
        const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
        return (x + 0.05) / (y + 0.05);
    };
    const found = [];
    for (const e of document.querySelectorAll(selector)) {
        const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.offsetParent || e.closest(':disabled, .js-plotly-plot, [hidden], .dd-sr')) continue;
        const below = backdrop(e);
        const worst = ratio(over(rgba(getComputedStyle(e).color), below), below);
        if (worst < 4.5) found.push(`${e.className} "${e.textContent.slice(0, 30)}" ${worst.toFixed(2)}`);
    }
    return found;
}"""

# ---- the sidebar ----


class Sidebar:
    """Clusters, jobs and the sign-in beside the main area."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.root = page.locator("#distdl-sidebar")

    @property
    def banner(self) -> Locator:
        """What stands above all while the server does not respond as it should."""
        return self.root.locator(".dd-sidebar-banner")

    @property
    def jobs(self) -> Locator:
        """The rows of the jobs."""
        return self.root.get_by_role("grid", name="Jobs").get_by_role("row")

    def job(self, name: Any) -> Locator:
        return self.root.get_by_role("grid", name="Jobs").get_by_role("row", name=name)

    def cluster(self, name: str) -> Locator:
        return self.root.locator(f'.dd-cluster[data-name="{name}"]')

    def node(self, cluster: str, name: str) -> Locator:
        return self.cluster(cluster).locator(f'.dd-node[data-name="{name}"]')

    def summary(self, cluster: str) -> Locator:
        """How a cluster is, in a few words."""
        return self.cluster(cluster).locator(".dd-cluster-summary")

    def press(self, row: Locator, title: str) -> None:
        """Press a button of a row; it takes the pointer only while that is over the row, which may move meanwhile."""

        def pressed() -> bool:
            row.hover()
            try:
                row.get_by_title(title).click(timeout=2000)
            except PageTimeout:
                return False
            return True

        wait_for(pressed, what=f"the button {title!r} pressed")

    def widen(self, width: int) -> None:
        """Drag the edge until the sidebar is so wide."""
        box = self.root.bounding_box()
        assert box is not None
        mouse, y = self.page.mouse, box["y"] + box["height"] / 2
        mouse.move(box["x"] + box["width"] + 1, y)
        mouse.down()
        mouse.move(box["x"] + width + 1, y, steps=5)
        mouse.up()
        wait_for(lambda: (self.root.bounding_box() or {}).get("width") == width, what=f"a sidebar of {width} px")

    def cut_off(self) -> int:
        """Return by how many pixels the content is wider than the sidebar; 0 or less when it fits."""
        return int(self.root.evaluate("(bar) => bar.scrollWidth - bar.clientWidth"))
