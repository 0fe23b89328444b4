"""Under a real JupyterHub: what two users do and see, through the hub's login and its proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser import pages
from tests.browser.conftest import Book, new_book
from tests.browser.hub import Hub, HubLab
from tests.browser.test_faults import TRAIN, Story, reload
from tests.conftest import wait_for
from tests.installation import Installation

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

LOAD = "%load_ext distdl_jupyter"


@pytest.fixture(scope="module")
def hub(installed: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    hub = Hub(installed, tmp_path_factory.mktemp("hub"), ("ada", "bob"))
    try:
        hub.start()
        yield hub
    finally:
        for lab in hub.labs.values():
            lab.forget_jobs()
        hub.end()


@pytest.fixture(scope="module")
def lab(hub: Hub) -> HubLab:
    """The JupyterLab of the first user."""
    return hub.labs["ada"]


@pytest.fixture
def books(books: Callable[..., Book], hub: Hub, lab: HubLab) -> Callable[..., Book]:
    """Return a function that makes a page for a new notebook, in which the first user is logged in."""

    def make(*args: object, **kwargs: object) -> Book:
        book = books(*args, **kwargs)
        hub.log_in(book.page, lab.user)
        return book

    return make


@pytest.fixture
def bob(hub: Hub, chromium: Browser) -> Iterator[Book]:
    """A page in which the second user is logged in."""
    book = new_book(chromium, hub.labs["bob"], 1100, 900)
    hub.log_in(book.page, "bob")
    yield book
    book.page.context.close()


def ours(urls: list[str], lab: HubLab) -> list[str]:
    """Return the addresses of our own API among those of WebSockets."""
    return [url for url in urls if url.startswith(f"{lab.url}distdl/".replace("http", "ws", 1))]


def status(book: Book, lab: HubLab, path: str) -> int:
    """Ask a user's server for an address of the API, with the cookies of a page; return the status of the answer."""
    return book.page.context.request.get(f"{lab.url}distdl/api/{path}", max_redirects=0).status


#: Whether the server takes a WebSocket of this page, and what it answers the token of this page.
ASK = """async (url) => {
    const { token } = window.jupyterapp.serviceManager.serverSettings;
    const connects = await new Promise((done) => {
        const socket = new WebSocket(`${url.replace(/^http/, 'ws')}distdl/api/events`);
        socket.onopen = () => { socket.close(); done(true); };
        socket.onerror = () => done(false);
    });
    const answer = await fetch(`${url}distdl/api/jobs`, { headers: { Authorization: `token ${token}` } });
    return [token !== '', connects, answer.status];
}"""

#: What JupyterHub logs of a WebSocket whose browser leaves Sec-Fetch-Mode out, as Chromium does without TLS.
WARNING = "Skipping XSRF check for insecure request GET /jupyter/user/ada/distdl/api/events"


@pytest.mark.full
@pytest.mark.readme("JupyterHub")
def test_a_cell_trains_behind_the_hub_and_the_other_user_sees_nothing_of_it(
    desk: Callable[..., Book], hub: Hub, lab: HubLab, bob: Book
) -> None:
    cell = TRAIN.format(name="digits", end=str(lab.root / "digits.end")).replace("\n", " -o job\n", 1)
    book = desk([LOAD, cell, "from distdl_jupyter import panel\npanel(job)"], height=1400)
    sockets: list[str] = []
    book.page.on("websocket", lambda socket: sockets.append(socket.url))
    book.run_all()
    output, panel = book.output(1), book.output(2)
    for shown in (output, panel):
        pages.says(shown, "Running")
        expect(pages.curves(shown).first).to_be_attached()
        expect(pages.lines(shown).filter(has_text="of rank").first).to_be_visible()
    id_ = lab.newest().id
    # The page has connected by now; to connect is warned of once.
    warnings, connections = hub.log.read_text().count(WARNING), len(ours(sockets, lab))

    assert bob.page.context.request.get(f"{bob.lab.url}distdl/api/jobs").json() == []
    assert status(bob, bob.lab, f"jobs/{id_}") == 404
    assert [status(bob, lab, path) for path in ("jobs", f"jobs/{id_}", f"jobs/{id_}/log", "events")] == [403] * 4
    bob.name = "bob"
    bob.open_lab()
    expect(bob.sidebar().root.get_by_text("No jobs yet")).to_be_visible()
    assert bob.page.evaluate(ASK, bob.lab.url) == [True, True, 200]
    assert bob.page.evaluate(ASK, lab.url) == [True, False, 403]
    visit = bob.page.goto(f"{lab.url}lab")
    assert visit is not None
    assert visit.status == 403

    (lab.root / "digits.end").touch()
    for shown in (output, panel):
        pages.says(shown, "Completed")
    assert len(ours(sockets, lab)) == connections, "it has connected once more"
    assert hub.log.read_text().count(WARNING) == warnings, "each question who this is logs a warning"
    assert not book.errors
    assert not bob.errors


@pytest.mark.full
def test_a_server_that_is_stopped_and_started_loses_nothing(desk: Callable[..., Book], lab: HubLab) -> None:
    """The page that stays says why it shows nothing new, and what to do: its login ends with the server."""
    story = Story(desk, lab, "watched")
    banner = story.book.sidebar().banner
    story.lab.stop()
    there = sum(1 for _ in story.job.logs(0))
    expect(banner).to_contain_text("JupyterHub server no longer running")
    wait_for(lambda: sum(1 for _ in story.job.logs(0)) > there + 2, what="lines of the job without a server")
    story.lab.start()
    expect(banner).to_contain_text("Reload the page to log in again")
    reload(story)
    story.moves()
    story.finish()
