"""The folded log: nothing lost, equal lines of ranks together, redrawn lines as one, updates by message only."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core.humanize import MAX_LINE_LENGTH, printable, styled
from distdl_jupyter.core.log import FoldedLog
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView

ESC = "\x1b"


def log(text, rank=0, t=0.0, stream="out", **more):
    return {"v": 1, "type": "log", "t": t, "rank": rank, "stream": stream, "text": text, **more}


EVENTS = st.lists(
    st.builds(
        log,
        st.lists(st.sampled_from(["a", "b", "loss 1", "", "é\tx"]), min_size=1, max_size=4).map("\n".join),
        st.sampled_from([0, 1, 2, None]),
        st.integers(0, 12).map(float),
        st.sampled_from(["out", "err"]),
    )
    | st.builds(
        lambda text, rank, redraws, closed: log(text, rank, 5.0, "err", redraws=redraws, closed=closed),
        st.sampled_from(["10%", "20%"]),
        st.integers(0, 2),
        st.integers(1, 9),
        st.booleans(),
    ),
    max_size=40,
).map(lambda events: sorted(events, key=lambda event: event["t"]))


def fold(events, process_count=0):
    """Return the log of a whole sequence of events."""
    book = FoldedLog(process_count)
    for event in events:
        book.apply(event)
    return book


def view_of(events, process_count):
    """Return the view, which counts the lines."""
    view = JobView.from_spec(JobSpec(id="20261121-024912-k3f9", name="x", process_count_per_node=process_count))
    for event in events:
        view.apply(event)
    return view


def content(row):
    return row.n, row.t, row.rank, row.stream, row.text, row.redraws, len(row.lines), row.lines


class Mirror:
    """What a view holds that only appends and replaces."""

    def __init__(self):
        self.rows, self.open, self.revision = {}, [], 0

    def take(self, book, most=None):
        """Take the next changes; return how many are left."""
        changed, self.revision, more = book.get_changes(self.revision, most)
        assert len(changed) == (most if more else len(changed))
        self.rows.update((row.n, content(row)) for row in changed)
        self.rows = {n: row for n, row in self.rows.items() if n >= book.first_number}
        self.open = [content(row) for row in book.open_rows.values()]
        return more


def shown(book):
    return [(row.rank, row.text, len(row.lines)) for row in book.rows]


@given(EVENTS)
def test_every_line_is_in_exactly_one_row(events):
    book = fold(events, 3)
    view = view_of(events, 3)
    assert sum(max(1, len(row.lines)) for row in book.rows) == view.lines
    assert sum(row.rank is None for row in book.rows) + sum(rank.lines for rank in view.ranks) == view.lines
    for rank in range(3):
        printed = [
            (event["stream"], line)
            for event in events
            if event["rank"] == rank and (not event.get("redraws") or event["closed"])
            for line in event["text"].split("\n")
        ]
        assert [(row.stream, row.text) for row in book.get_rank_rows(rank)] == printed
        assert view.ranks[rank].lines == len(printed)
    errors = [e for e in events if e["stream"] == "err" and e["rank"] is not None and not e.get("redraws")]
    assert sum(rank.error_lines for rank in view.ranks) == sum(e["text"].count("\n") + 1 for e in errors)


@given(EVENTS, st.lists(st.integers(0, 40), max_size=5), st.integers(1, 10), st.integers(1, 4))
def test_a_view_that_takes_a_few_rows_at_a_time_ends_up_equal(events, looks, tail, most):
    book, mirror = FoldedLog(3, tail=tail), Mirror()
    for number, event in enumerate(events):
        if number in looks:
            mirror.take(book, most)
        book.apply(event)
    while mirror.take(book, most):
        pass
    assert [mirror.rows[n] for n in sorted(mirror.rows)] == [content(row) for row in book.rows]
    assert mirror.revision == book.revision
    assert book.get_changes(book.revision) == ([], book.revision, 0)


@given(EVENTS, st.integers(1, 30), st.integers(0, 60), st.integers(0, 60))
def test_rows_can_be_asked_for_by_number(events, tail, first, before):
    book = FoldedLog(3, tail=tail)
    for event in events:
        book.apply(event)
    assert book.get_rows(first, before) == [row for row in book.rows if first <= row.n < before]


@given(EVENTS, st.integers(0, 40))
def test_batches_of_lines_and_single_lines_fold_alike(events, cut):
    single = [
        {**event, "text": line}
        for event in events
        for line in ([event["text"]] if event.get("redraws") else event["text"].split("\n"))
    ]
    assert [content(row) for row in fold(events, 3).rows] == [content(row) for row in fold(single, 3).rows]


def test_equal_lines_of_all_ranks_are_one_row():
    book = fold([log("Horovod 0.28.1", rank, t=rank / 10) for rank in range(4)], 4)
    assert shown(book) == [(0, "Horovod 0.28.1", 4)]
    assert sum(len(row.lines) for row in book.rows) == 4


def test_lines_of_other_times_streams_and_the_same_rank_stay_apart():
    book = fold(
        [log("x"), log("x"), log("x", 1, stream="err"), log("x", 1, t=1.0), log("x", 2, t=9.0), log("x", None, t=9.0)],
        3,
    )
    assert shown(book) == [(0, "x", 2), (0, "x", 1), (1, "x", 1), (2, "x", 1), (None, "x", 0)]


def test_a_rank_on_its_own_reads_in_the_order_it_printed():
    book = fold([log("epoch 3 done", 0), log("rank 1: 0.12\nepoch 3 done", 1)], 2)
    assert shown(book) == [(0, "epoch 3 done", 2), (1, "rank 1: 0.12", 1)]
    assert [row.text for row in book.get_rank_rows(1)] == ["rank 1: 0.12", "epoch 3 done"]


def test_a_redrawn_line_is_open_until_it_ends():
    book, view = FoldedLog(1), view_of([], 1)
    for n in (1, 40, 743):
        book.apply(log(f"{n}/1200", stream="err", redraws=n))
    assert not book.rows
    assert [(row.text, row.redraws) for row in book.open_rows.values()] == [("743/1200", 743)]
    for event in (log("epoch 1"), log("1200/1200", stream="err", redraws=1200, closed=True)):
        book.apply(event)
        view.apply(event)
    assert not book.open_rows
    assert [(row.text, row.redraws) for row in book.rows] == [("epoch 1", 0), ("1200/1200", 1200)]
    assert (view.lines, view.ranks[0].lines, view.ranks[0].error_lines) == (2, 2, 0)


def test_a_prompt_without_newline_that_ended_folds_as_a_line():
    book = fold([log("done", rank, redraws=1, closed=True) for rank in range(2)], 2)
    assert shown(book) == [(0, "done", 2)]


def test_the_tail_is_bounded_and_the_counts_are_not():
    book, mirror, view = FoldedLog(2), Mirror(), view_of([], 2)
    for number in range(300):
        event = log("\n".join(f"line {number} {k}" for k in range(100)), number % 2, t=number / 100)
        book.apply(event)
        view.apply(event)
        if number % 50 == 0:
            mirror.take(book)
    mirror.take(book)
    assert len(book.rows) == len(mirror.rows) == 5000
    assert (view.lines, [rank.lines for rank in view.ranks]) == (30_000, [15_000, 15_000])
    assert book.first_number == 25_000


def test_escape_sequences_go_and_text_stays():
    assert printable(f"{ESC}[1;31mred{ESC}[0m {ESC}]0;title\x07tail {ESC}(B{ESC}[2Kend") == "red tail end"
    assert printable(f"{ESC}]8;;https://example.org{ESC}\\link{ESC}]8;;{ESC}\\") == "link"
    assert printable("a\x9b31mb") == "ab"
    assert printable(f"cut {ESC}[3") == "cut [3"


def test_control_characters_become_visible():
    assert printable("a\x00b\x07c\x7f") == "a␀b␇c␡"
    assert printable("file\u202egnp.exe") == "file<U+202E>gnp.exe"
    assert printable("x\u2028y\x85z") == "x<U+2028>y<U+0085>z"
    assert printable("bad \ud800 text").encode() == "bad \N{REPLACEMENT CHARACTER} text".encode()
    assert printable("tab\tÄ 日本 👩‍🚀 שלום") == "tab\tÄ 日本 👩‍🚀 שלום"


def test_backspaces_and_returns_draw_over():
    assert printable("  1/100\b\b\b\b\b\b\b 99/100") == " 99/100"
    assert printable("loading\rdone") == "doneing"
    assert printable("windows line\r") == "windows line"


def test_a_very_long_line_is_cut_with_its_length():
    text = printable("x" * 64_000)
    assert len(text) < MAX_LINE_LENGTH + 40
    assert text.endswith("x … (64,000 characters)")
    assert printable("x" * MAX_LINE_LENGTH) == "x" * MAX_LINE_LENGTH


@given(st.text())
def test_whatever_comes_is_printable(text):
    assert re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e]", printable(text)) is None
    printable(text).encode()


def test_colours_stand_beside_the_text_that_javascript_counts():
    line = f"{ESC}[36m(pid=7){ESC}[0m \U0001f600 {ESC}[1;35mbad{ESC}[22m,{ESC}[m {ESC}]0;title\x07{ESC}[44mend"
    text, styles = styled(line)
    assert text == printable(line) == "(pid=7) \U0001f600 bad, end"
    units = text.encode("utf-16-le")
    found = [(units[2 * begin : 2 * end].decode("utf-16-le"), style) for begin, end, style in styles]
    assert found == [("(pid=7)", "36"), ("bad", "1 35"), (",", "35"), ("end", "44")]


@pytest.mark.parametrize(
    ("codes", "style"),
    [
        ("31", "31"), ("01;31", "1 31"), ("97;104", "97 104"), ("38;5;9", ""), ("48;2;0;0;9", ""),
        ("4;3", "3 4"), ("31;39", ""), ("1;2;22;4;24", ""), ("31;0", ""), ("5", ""),
        ("8", ""),
    ],
)  # fmt: skip
def test_the_styles_of_a_line(codes, style):
    assert styled(f"{ESC}[{codes}mtext") == ("text", ((0, 4, style),) if style else ())


@given(st.text(alphabet=st.sampled_from(f"{ESC}[0134578;m\r\bäx\U0001f600\x00"), max_size=60))
def test_with_its_styles_a_line_is_the_same(text):
    shown, styles = styled(text)
    assert shown == printable(text)
    assert all(0 <= begin < end <= len(shown.encode("utf-16-le")) // 2 for begin, end, _ in styles)


def test_rows_and_open_lines_have_styles():
    book = fold([log(f"{ESC}[32mgood{ESC}[0m news"), log(f"{ESC}[31m10%", redraws=3), log("plain")])
    assert [row.styles for row in book.rows] == [((0, 4, "32"),), ()]
    assert [row.styles for row in book.open_rows.values()] == [((0, 3, "31"),)]
