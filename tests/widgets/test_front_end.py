"""The parts of the front end that need no page, run by Node: words, and the log's rows."""

import math
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distdl_jupyter.core import humanize
from distdl_jupyter.core.events import PHASES, State
from distdl_jupyter.core.log import FoldedLog
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views.job_page import make_log_row as _row
from distdl_jupyter.worker.secret_patterns import looks_secret
from tests.front_end import Program, bundle


class Node(Program):
    """A Node process that evaluates JavaScript with `words`, `log`, `LogSearch` and `looksSecret` of the page."""

    def __init__(self, folder):
        for name in ("ui/format", "job/logstore", "job/logsearch", "ui/secretnames"):
            bundle(name, folder / f"{Path(name).name}.mjs")
        (folder / "loop.mjs").write_text(
            "import * as words from './format.mjs';\nimport * as log from './logstore.mjs';\n"
            "import { LogSearch } from './logsearch.mjs';\nimport { looksSecret } from './secretnames.mjs';\n"
            "import { createInterface } from 'node:readline';\n"
            "for await (const line of createInterface({ input: process.stdin })) {\n"
            "  const [code, given] = JSON.parse(line);\n"
            "  const f = new Function('words', 'log', 'LogSearch', 'looksSecret', 'given', code);\n"
            "  process.stdout.write(JSON.stringify(await f(words, log, LogSearch, looksSecret, given)) + '\\n');\n}\n"
        )
        super().__init__(folder / "loop.mjs")

    def __call__(self, code, given=None):
        return self.ask([f"return {code};", given])


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    process = Node(tmp_path_factory.mktemp("node"))
    yield process
    process.close()


def is_tie(value):
    """Whether rounding to a half could go either way: the two languages break exact ties differently."""
    return any((value * 10**places) % 1 == 0.5 for places in range(9))


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_number_is_written_as_python_writes_it(node, value):
    if not is_tie(abs(value)):
        assert node("words.number(given)", value) == humanize.number(value)


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([0, 1], "ranks 0, 1"), ([0, 1, 2, 5], "ranks 0-2, 5"), ([1, 3], "ranks 1, 3")]
)
def test_consecutive_ranks_are_written_as_a_range(node, ranks, text):
    assert node("words.rankSpans(given)", ranks) == text


PARTS = ["MY", "token", "Key", "KEY", "Tokenizers", "TOKEN", "sas", "Connection", "String", "_", "-", "db", "PassWord",
         "pass", "PAT", "max", "keys", "2", "API", "conn", "str", "auth", "PWD", "dsn", "id", "webhook"]  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=4).map("".join))
def test_a_name_looks_secret_before_it_is_sent_as_it_does_afterwards(node, name):
    assert node("looksSecret(given)", name) == looks_secret(name)


@given(st.floats(0, 1e7), st.integers(0, 10**12))
def test_times_and_counts_are_written_as_python_writes_them(node, seconds, whole):
    if not is_tie(seconds):
        assert node("words.duration(given)", seconds) == humanize.duration(seconds)
        assert node("words.secondsTaken(given)", seconds) == humanize.seconds_taken(seconds)
        assert node("words.money(given, 'USD')", seconds / 100) == humanize.money(seconds / 100, "USD")
    assert node("words.ago(given)", seconds) == humanize.ago(seconds)
    assert node("words.count(given)", whole) == humanize.count(whole)
    assert node("words.processCount(given)", whole) == humanize.plural(whole, "process")
    assert node("words.lineCount(given)", whole) == humanize.plural(whole, "line")


@example(1996, 1999, [0])
@given(st.integers(0, 2000), st.integers(1, 2000), st.lists(st.integers(0, 99), min_size=1, max_size=9))
def test_shares_sums_and_ranks_are_written_as_python_writes_them(node, done, total, ranks):
    if not is_tie(100 * done / total):
        assert node("words.percent(given[0], given[1])", [done, total]) == humanize.percent(done, total)
    assert node("words.processes(given[0], given[1])", [done + 1, total]) == humanize.processes(done + 1, total)
    assert node("words.ranks(given)", ranks) == humanize.ranks(ranks)


def test_other_words_are_the_same(node):
    now = time.time()
    assert node("words.clock(given)", now) == humanize.clock(now)
    assert node("words.shortId('20261121-024912-k3f9')") == humanize.short_id("20261121-024912-k3f9")
    assert node("words.PHASES") == list(PHASES)
    words = [humanize.STATE_LABELS[state] for state in State]
    assert node("given.map(words.stateWord)", [state.value for state in State]) == words
    assert node("words.PHASES.map(words.phaseWord)") == [humanize.PHASE_LABELS[phase] for phase in PHASES]
    assert node("[NaN, Infinity, -Infinity].map(words.number)") == [
        humanize.number(x) for x in (math.nan, math.inf, -math.inf)
    ]


JOB = JobSpec(id="20261121-024912-k3f9", name="x", process_count_per_node=3)
LINE = st.tuples(st.integers(0, 2), st.sampled_from(["out", "err"]), st.sampled_from(["a", "b", "loss 1", "ÄB"]))


@given(st.lists(st.lists(LINE, max_size=6), min_size=1, max_size=6))
def test_a_page_that_takes_the_changes_shows_what_the_book_holds(node, batches):
    book, view, messages, mark = FoldedLog(3, tail=8), JobView.from_spec(JOB), [], 0
    for number, batch in enumerate(batches):
        for rank, stream, text in batch:
            event = {"type": "log", "t": number * 1.0, "rank": rank, "stream": stream, "text": text}
            book.apply(event)
            view.apply(event)
        rows, mark, _ = book.get_changes(mark)
        messages.append(
            {"rows": [_row(row) for row in rows], "open": [], "first": book.first_number, "total": view.lines,
             "errors": {str(rank.rank): rank.error_lines for rank in view.ranks}}
        )  # fmt: skip
    shown = node(
        "(() => { const s = new log.LogStore(); for (const m of given) s.apply(m);"
        "const texts = (rank) => s.rows(rank).map((row) => [row.n, row.text, row.lines.size]);"
        "return [texts(null), texts(0), texts(1), texts(2), s.total]; })()",
        messages,
    )
    assert shown[0] == [[row.n, row.text, len(row.lines)] for row in book.rows]
    for rank in range(3):
        assert shown[1 + rank] == [[row.n, row.text, len(row.lines)] for row in book.get_rank_rows(rank)]
    assert shown[4] == view.lines == sum(map(len, batches))


@given(st.text(max_size=30), st.text(min_size=1, max_size=3))
def test_found_places_hold_the_query(node, text, query):
    for begin, end in node("log.places(given[0], given[1])", [text, query]):
        utf16 = text.encode("utf-16-le", "surrogatepass")
        found = utf16[2 * begin : 2 * end].decode("utf-16-le", "surrogatepass")
        assert found.lower() == query.lower()


ROWS = st.lists(st.sampled_from(["loss 1", "LOSS 2", "accuracy", "", "a loss, a loss"]), max_size=60)


@given(ROWS, st.lists(st.integers(0, 60), max_size=6), st.integers(0, 30), st.sampled_from(["loss", "a", "zzz"]))
def test_a_search_in_slices_finds_what_a_search_of_all_finds(node, texts, looks, dropped, query):
    """Rows come while it searches, from the newest to the oldest, and old ones are dropped."""
    rows = [[n, 0.0, 0, "out", text, 0, {"0": n + 1}] for n, text in enumerate(texts)]
    cuts = sorted({min(look, len(rows)) for look in looks} | {len(rows)})
    found = node(
        "(() => { const [rows, cuts, dropped, query] = given; const store = new log.LogStore();"
        "const search = new LogSearch(query); let at = 0;"
        "const put = (to, first) => {"
        " store.apply({ rows: rows.slice(at, to), open: [], first, total: to, errors: {} }); at = to; };"
        "for (const cut of cuts) { put(cut, 0); search.step(store.lines(null), 0); }"
        "put(rows.length, Math.min(dropped, rows.length)); while (!search.step(store.lines(null), 5));"
        "const all = Array.from({ length: search.count }, (_, k) => search.match(k));"
        "return [all, all.map((place) => search.indexOf(place)), search.indexOf(-5)]; })()",
        [rows, cuts, dropped, query],
    )
    expected = [n for n, text in enumerate(texts) if query in text.lower() and n >= dropped]
    assert found == [expected, list(range(len(expected))), -1]


@given(ROWS, st.integers(1, 20), st.integers(1, 9), st.integers(0, 20))
def test_older_rows_come_in_front_of_those_that_are_there(node, texts, newest, chunk, kept_from):
    """The newest rows first, the rest in pieces, the oldest not kept any more; one changes before it is fetched."""
    rows = [[n, 0.0, n % 3, "out", text, 0, {str(n % 3): n // 3 + 1}] for n, text in enumerate(texts)]
    first = min(kept_from, max(0, len(rows) - newest))
    late = [*rows[first][:6], {**rows[first][6], "7": 1}] if rows else None
    code = """(() => {
      const [rows, newest, chunk, first, late] = given;
      const store = new log.LogStore();
      const older = async (before) => ({ rows: rows.slice(Math.max(first, before - chunk), before) });
      const changes = { open: [], first, next: rows.length, total: rows.length, errors: {} };
      store.apply({ ...changes, rows: rows.slice(first).slice(-newest), older }, true);
      if (late) store.apply({ ...changes, rows: [late] });
      const seen = [];
      return (async () => {
        for (let k = 0; !store.whole && k < 100; k += 1) seen.push(await store.load());
        const texts = (rank) => store.rows(rank).map((row) => [row.n, row.text, row.lines.size]);
        return [texts(null), texts(0), texts(1), texts(2), seen.every(Boolean)];
      })();
    })()"""
    shown = node(code, [rows, newest, chunk, first, late])
    expected = [[n, text, 2 if n == first else 1] for n, text in enumerate(texts) if n >= first]
    assert shown[0] == expected
    for rank in range(3):
        assert shown[1 + rank] == [row for row in expected if row[0] % 3 == rank]
    assert shown[4]


ERRORS = """(async () => {
    const row = (n, stream, rank = 0, redraws = 0) => [n, n, rank, stream, `row ${n}`, redraws, { [rank]: n + 1 }];
    const all = Array.from({ length: given.rows }, (_, n) => row(n, n % 3 ? 'out' : 'err', n % 2, n % 9 ? 0 : 5));
    const rest = { open: [], first: 0, next: all.length, total: all.length, errors: {} };
    const message = (rows, more = {}) => ({ rows, ...rest, ...more });
    const older = async (before) => message(all.slice(Math.max(0, before - 40), before));
    const store = new log.LogStore(170);
    const shown = (rank) => {
        const lines = store.lines(rank, true);
        return Array.from({ length: lines.to - lines.from }, (_, index) => lines.at(lines.from + index)[0]);
    };
    store.apply(message(all.slice(-50, -10), { older }), true);
    const seen = [shown(null)];
    store.apply(message(all.slice(-10)));
    seen.push(shown(null));
    while (!store.whole) await store.load();
    seen.push(shown(null), shown(1));
    store.apply(message([]));
    seen.push(shown(1));
    return seen;
})()"""


def test_the_lines_on_stderr_are_kept_while_rows_come_and_go_at_both_ends(node):
    rows = 200
    errors = [n for n in range(rows) if n % 3 == 0 and n % 9]
    first, then, whole, of_rank, cut = node(ERRORS, {"rows": rows})
    assert first == [n for n in errors if rows - 50 <= n < rows - 10]
    assert then == [n for n in errors if n >= rows - 50]
    assert whole == errors
    assert of_rank == [n for n in errors if n % 2]
    assert cut == [n for n in of_rank if n >= 30]


FLOOD = """(async () => {
    const row = (n, line) => [n, n, 0, 'out', `line ${line}`, 0, { 0: n + 1 }];
    // 1,000 lines of which 700 to 899 were left out when the other side went on at a number far ahead of its own.
    const early = Array.from({ length: 700 }, (_, n) => row(n, n));
    const skipped = Array.from({ length: 200 }, (_, k) => row(59_800 + k, 700 + k));
    const late = Array.from({ length: 100 }, (_, k) => row(60_000 + k, 900 + k));
    const rest = { open: [], first: 60_000, next: 60_100, total: 1000, errors: {} };
    const asked = [];
    const older = async (before) => {
        asked.push(before);
        const piece = [late, skipped, early].find((rows) => rows[0][0] < before) ?? [];
        return { ...rest, rows: piece.filter(([n]) => n < before).slice(-150) };
    };
    const store = new log.LogStore();
    store.apply({ ...rest, rows: late.slice(-40), older }, true);
    const seen = [[store.earlier, store.whole]];
    while (!store.whole) await store.load();
    seen.push([store.earlier, store.lines(null).from]);
    while (store.earlier) await store.load(true);
    const lines = store.lines(null);
    seen.push([store.earlier, lines.to - lines.from, store.rows(null).map((one) => one.text)]);
    seen.push(store.rows(0).map((one) => one.text));
    store.apply({ ...rest, rows: [row(60_100, 1000)], next: 60_101, total: 1001 });
    seen.push([store.earlier, store.rows(0).at(-1).text, store.rows(null).length, await store.load(true)]);
    seen.push(asked);
    return seen;
})()"""


def test_lines_that_were_left_out_are_fetched_and_stand_where_they_belong(node):
    first, whole, all_, of_rank, more, asked = node(FLOOD)
    assert first == [960, False]
    assert whole == [900, 60_000]
    assert all_ == [0, 1000, [f"line {n}" for n in range(1000)]]
    assert of_rank == all_[2]
    assert more == [0, "line 1000", 1001, False]
    assert asked == [60_060, 60_000, 59_850, 59_800, *range(550, 0, -150)]


PINNED = """(() => {
    const row = (n) => [n, n, 0, 'out', `line ${n}`, 0, { 0: n + 1 }];
    const rows = (from, to) => Array.from({ length: to - from }, (_, k) => row(from + k));
    const message = (from, to) => ({ rows: rows(from, to), open: [], first: from, next: to, total: to, errors: {} });
    const store = new log.LogStore(100);
    const older = async () => message(0, 0);
    const now = () => [store.rows(null)[0].n, store.rows(null).at(-1).n, store.arrived, store.total, store.earlier];
    store.apply({ ...message(0, 50), older }, true);
    store.pin(true);
    const seen = [now()];
    store.apply({ ...message(500, 520), older }, true);
    store.apply(message(520, 530));
    seen.push(now());
    store.apply({ ...message(900, 1000), older }, true);
    seen.push(now());
    store.pin(false);
    seen.push(now());
    store.apply(message(1000, 1200));
    seen.push(now());
    return seen;
})()"""


def test_rows_that_a_reader_looks_at_stay_while_the_log_goes_far_ahead(node):
    before, behind, far_behind, back, kept = node(PINNED)
    assert before == [0, 49, 50, 50, 0]
    assert behind == [0, 49, 530, 530, 0]
    assert far_behind == [0, 49, 1000, 1000, 0]
    assert back == [900, 999, 1000, 1000, 900]
    assert kept == [1100, 1199, 1200, 1200, 1100]


def test_labels_of_an_axis_have_equal_decimals(node):
    assert node("words.tickLabels([1, 1.5, 2])") == ["1.0", "1.5", "2.0"]
    assert node("words.tickLabels([0, 0.25, 0.5, 0.75])") == ["0.00", "0.25", "0.50", "0.75"]
    assert node("words.tickLabels([-1000, 0, 1000])") == ["-1,000", "0", "1,000"]
    assert node("words.tickLabels([0, 2e-7])") == ["0", "2e-7"]
    assert node("words.tickLabels([])") == []
