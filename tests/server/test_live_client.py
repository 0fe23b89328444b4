"""The page's live client against a real server: one subscription, late views, restarts, proxies, older rows."""

import http.server
import threading

import httpx
import pytest

from tests.conftest import wait_for
from tests.server.node_page import NodePage
from tests.server.running import API, QUICK, TOKEN, serve
from tests.server.test_events import kept
from tests.widgets import recorded

pytestmark = pytest.mark.timeout(600)

BAND = {"metric": "", "mode": "band", "log": False}
RANKS = {"metric": "accuracy", "mode": "ranks", "log": False}


@pytest.fixture
def pages(tmp_path):
    """Makes pages, and closes them."""
    made = []

    def make(url):
        folder = tmp_path / f"node-{len(made)}"
        folder.mkdir()
        made.append(NodePage(folder, f"{url}{API}/", TOKEN))
        return made[-1]

    yield make
    for one in made:
        one.close()


def expected(job):
    return [[n, row[4], len(row[6])] for n, row in sorted(kept(job).items())]


def asked(page):
    """The subscriptions that the page has sent."""
    return page("return asked;")


def test_all_views_share_one_connection_and_a_late_one_knows_at_once_what_is_known(quick, story, pages):
    page = pages(quick.url)
    story.train(100)
    page(
        "globalThis.lists = []; live.watchJobs((jobs) => lists.push(jobs));"
        "live.watchClusters((clusters) => { globalThis.c = clusters; });"
    )
    page("watch('cell', given[0], { log: true, curve: given[1] });", [story.id, BAND])
    page.until("seen.cell.curves.length > 0 && lists.length > 0 && globalThis.c?.length > 0")
    assert page("return rows('cell');") == expected(story)
    assert page("return lists.at(-1).map((row) => row.id);") == [story.id]
    assert len(asked(page)) == 1

    page("watch('tab', given[0], { log: true, curve: given[1] });", [story.id, RANKS])
    assert page("return rows('tab');") == expected(story), "what is known is told before anything is asked"
    page.until("seen.tab.curves.length > 0")
    assert page("return [seen.cell.curves.at(-1).metric, seen.tab.curves.at(-1).metric];") == ["loss", "accuracy"]
    assert len(asked(page)) == 2
    assert page("return [seen.cell.wholes, lists.length];") == [1, 1], "what the page knows is not told again"

    story.train(140)
    for name in ("cell", "tab"):
        page.until(f"seen.{name}.jobs.at(-1).card.step === 140")
        wait_for(lambda name=name: page(f"return rows('{name}');") == expected(story), what="all rows")
    # A view that is drawn anew looks away and again at once.
    page(
        "watches.cell.dispose(); watches.cell.dispose(); watch('cell', given[0], { log: true, curve: given[1] });",
        [story.id, BAND],
    )
    story.train(180)
    page.until("seen.cell.jobs.at(-1)?.card.step === 180")
    wait_for(lambda: page("return rows('cell');") == expected(story), what="all rows")
    assert len(asked(page)) == 2
    page("for (const one of Object.values(watches)) one.dispose();")
    wait_for(lambda: asked(page)[-1]["job"] == {}, what="nothing is asked of the job")
    assert page("return sockets();") == 1


def test_a_page_without_views_has_no_connection(quick, story, pages):
    page = pages(quick.url)
    page("watch('cell', given, { log: false, curve: null });", story.id)
    page.until("seen.cell.jobs.length > 0")
    page("watches.cell.dispose();")
    wait_for(lambda: not quick.extension.feeds.pages, what="no connection")
    page("watch('cell', given, { log: true, curve: null });", story.id)
    page.until("seen.cell.logs > 0")
    assert page("return rows('cell');") == expected(story)


def test_a_server_that_is_started_again_is_found_and_nothing_is_lost(root, story, pages):
    story.train(100)
    with serve(root, traits=QUICK) as server:
        page = pages(server.url)
        page("watch('cell', given[0], { log: true, curve: given[1] });", [story.id, BAND])
        page.until("seen.cell.curves.length > 0")
        assert page("return live.state;") == "live"
    page.until("live.state === 'down' && live.nextTry > 0 && live.lastHeard > 0")
    story.train(160)
    with serve(root, traits=QUICK) as server:
        page("move(given); live.tryNow();", f"{server.url}{API}/")
        page.until("live.state === 'live'")
        page.until("seen.cell.jobs.at(-1).card.step === 160")
        wait_for(lambda: page("return rows('cell');") == expected(story), what="all rows")
        assert page("return seen.cell.wholes;") == 1
        assert page("return [live.nextTry, live.problem];") == [None, None]
        assert "connecting" in page("return states;")


def test_a_deleted_job_and_a_refusal_are_told(quick, pages):
    ended = recorded.tell("failed")
    ended.close()
    page = pages(quick.url)
    page("watch('cell', given, { log: true, curve: null });", ended.id)
    page.until("seen.cell.logs > 0")
    page("await api.removeJob(given);", ended.id)
    page.until("seen.cell.gone === 1")
    refused = page(
        "try { await api.job(given); } catch (e) { return [e.type, e.status, e.message, e.hint.length > 0]; }", ended.id
    )
    assert refused[:2] == ["JobNotFound", 404]
    assert refused[2].endswith(".")
    page("move('http://127.0.0.1:9/');")
    assert page("try { await api.clusters(); } catch (e) { return [e.type, e.status]; }") == ["NetworkError", 0]


def test_a_job_that_is_gone_stays_gone_while_the_server_is_the_same(quick, pages):
    page = pages(quick.url)
    nobody = "20200101-000000-aaaaa"
    page("watch('first', given, { log: false, curve: null });", nobody)
    page.until("seen.first.gone === 1")
    page("live.watchJobs((jobs) => { globalThis.jobs = jobs; });")
    page.until("globalThis.jobs !== undefined")
    assert len(asked(page)) == 2
    page("watch('second', given, { log: false, curve: null });", nobody)
    assert page("return [seen.first.gone, seen.second.gone];") == [1, 1], "it is known, and not told again"


def test_pauses_between_tries_grow_up_to_the_longest(pages):
    page = pages("http://127.0.0.1:9")
    page(
        "globalThis.pauses = []; live.watchJobs(() => {});"
        "globalThis.tries = new Set();"
        "live.onState(() => { if (live.state !== 'down' || tries.has(live.nextTry)) return;"
        " tries.add(live.nextTry); pauses.push(live.nextTry - Date.now() / 1000); });"
    )
    page.until("pauses.length > 4")
    pauses = page("return pauses;")
    assert 0.05 < pauses[0] < 0.13
    assert 0.35 < pauses[4] < 0.61


def test_a_server_without_the_extension_is_said_to_be_one(quick, pages):
    page = pages(quick.url)
    page("move(given); live.watchJobs(() => {});", f"{quick.url}/nowhere/")
    page.until("live.problem !== null && live.state === 'down'")
    assert page("return live.problem.status;") == 404


class PassesNoSockets(http.server.BaseHTTPRequestHandler):
    """A proxy that hands every request on without the wish to make a WebSocket of it."""

    protocol_version = "HTTP/1.1"
    target = ""

    def do_GET(self):
        kept = {name: self.headers[name] for name in ("Authorization", "Accept") if name in self.headers}
        answer = httpx.get(self.target + self.path, headers=kept, timeout=60)
        self.send_response(answer.status_code)
        self.send_header("Content-Type", answer.headers["content-type"])
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_):
        pass


@pytest.fixture
def proxy(quick):
    """The address of such a proxy before the server."""
    handler = type("PassesNoSockets", (PassesNoSockets,), {"target": quick.url})
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{proxy.server_address[1]}"
    proxy.shutdown()
    proxy.server_close()
    thread.join()


def test_a_proxy_that_passes_no_websockets_on_is_said_to_be_one(proxy, pages):
    page = pages(proxy)
    page("live.watchJobs(() => {});")
    page.until("live.problem !== null")
    state, status, message, hint = page(
        "return [live.state, live.problem.status, live.problem.message, live.problem.hint];"
    )
    assert (state, status) in (("down", 426), ("connecting", 426))
    assert "may not forward WebSockets" in message
    assert "proxy" in hint


def test_older_rows_are_fetched_when_they_are_asked_for(quick, pages):
    long = recorded.begin(60)
    long.set_up()
    for number in range(60):
        long.line(number % 4, "\n".join(f"line {number * 100 + k}" for k in range(100)), after=3)
    page = pages(quick.url)
    page("watch('cell', given, { log: true, curve: null });", long.id)
    page.until("seen.cell.logs > 0")
    assert page("return [rows('cell').length, seen.cell.store.whole];") == [1000, False]
    assert page("const { from, to, held } = seen.cell.store.lines(null); return [from, to - held];") == [0, 1000]
    assert page("return await seen.cell.store.load();")
    assert len(page("return rows('cell');")) == 2000
    long.line(2, "news", after=3)
    page.until("seen.cell.store.rows(null).at(-1).text === 'news'")
    page("watch('tab', given, { log: true, curve: null });", long.id)
    assert page("return rows('tab').length;") == 1001, "a late view is told what the stream told"
    for name in ("cell", "tab"):
        page(f"while (!seen.{name}.store.whole) await seen.{name}.store.load();")
        assert page(f"return rows('{name}');") == expected(long)
    ranks = page("return [0, 1, 2, 3].map((rank) => seen.tab.store.rows(rank).map((row) => row.text));")
    rows = kept(long)
    for rank in range(4):
        of_rank = sorted((row for row in rows.values() if str(rank) in row[6]), key=lambda row, r=str(rank): row[6][r])
        assert ranks[rank] == [row[4] for row in of_rank]
    long.close()
