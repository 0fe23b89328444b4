"""Bytes become log texts and reports without loss, wherever the stream is cut."""

import io
import itertools
import re

import pytest
import tqdm
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core.events import MAX_LOG_TEXT
from distdl_jupyter.core.redact import Redactor
from distdl_jupyter.supervisor.log_reader import MAX_LINE_BYTES, MAX_REPORT_BYTES, LineSplitter, LogText, RankReport
from distdl_jupyter.worker import channel

NONCE = "5ec2e7"


def split_at(data, cuts):
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def run(pieces, nonce=NONCE, *, in_order=True):
    splitter = LineSplitter(nonce, in_order=in_order)
    items = [item for piece in pieces for item in splitter.feed(piece)]
    return items + splitter.finish()


def read_in_pieces(data, size):
    """Return the items of a stream that is read in pieces of ``size`` bytes and shown after each of them."""
    splitter, items = LineSplitter(NONCE), []
    for at in range(0, len(data), size):
        items += [*splitter.feed(data[at : at + size]), *splitter.take_pending()]
    return items + splitter.finish()


def texts(items):
    return [line for item in items if isinstance(item, LogText) for line in item.text.split("\n")]


def reports(items):
    return [item.data for item in items if isinstance(item, RankReport)]


lines_without_control = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r\x1b\x1e"), max_size=30
)


def drawn_by_rich(show):
    """Return the bytes that rich writes to a terminal."""
    from rich.console import Console

    file = io.StringIO()
    environment = {"TERM": "xterm-256color", "TTY_INTERACTIVE": "1"}
    show(Console(file=file, force_terminal=True, width=60, _environ=environment))
    return file.getvalue().encode()


def track(console):
    from rich.progress import track

    for number in track(range(3), "Work", console=console, auto_refresh=False):
        console.print(f"[red]hello[/red] {number}")


def two_bars(console):
    from rich.progress import Progress

    with Progress(console=console, auto_refresh=False) as progress:
        tasks = [progress.add_task(name, total=2) for name in ("one", "two")]
        for task in tasks * 2:
            progress.advance(task)
            progress.refresh()


def status(console):
    with console.status("waiting"):
        pass


@pytest.mark.parametrize(
    ("show", "last"),
    [(track, ["hello 2", "Work 100%"]), (two_bars, ["one 100%", "two 100%"]), (status, ["waiting"])],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_live_display_leaves_its_colours_and_no_cursor_codes(show, last, size):
    data = drawn_by_rich(show)
    assert re.search(rb"\x1b\[(2K|1A|[?]25l)", data)
    items = read_in_pieces(data, size)
    assert not re.search(r"\x1b(?!\[[0-9;]*m)|\[[?]", "".join(texts(items)))
    said = texts([item for item in items if not item.redraws or item.closed])
    assert "\x1b[" in said[-1]
    bare = [" ".join(re.sub(r"\x1b\[[0-9;]*m|[^\x1b\x20-\x7e]", "", line).split()) for line in said]
    assert [line[: len(wanted)] for line, wanted in zip(bare[-len(last) :], last, strict=True)] == last
    assert "" not in bare


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("leave", [True, False])
def test_a_bar_below_a_bar_is_one_line_a_step_of_the_upper_one(size, leave):
    out = io.StringIO()
    for _ in tqdm.tqdm(range(3), desc="epoch", file=out, mininterval=0):
        for _ in tqdm.tqdm(range(50), desc="batch", file=out, mininterval=0, leave=leave, position=1):
            pass
    data = out.getvalue().encode()
    items = read_in_pieces(data, size)
    said = [item.text for item in items if isinstance(item, LogText) and (not item.redraws or item.closed)]
    assert len(said) <= 8, said
    assert sum("epoch" in line and "3/3" in line for line in said) == 1
    assert items[-1].end == len(data)


def test_lines_of_nothing_but_cursor_codes_are_none():
    assert texts(run([b"a\n\x1b[?25h\nb\n\x1b[?25l"])) == ["a", "b"]
    assert texts(run([b"\n\x1b[1;31mred\x1b[0m \x1b[3Cfar\n\x1b7x\x1b8\n"])) == ["", "\x1b[1;31mred\x1b[0m far", "x"]
    assert run([b"\x1b[?25h"]) == []


def test_a_progress_bar_becomes_one_redrawn_line():
    splitter = LineSplitter(NONCE)
    assert splitter.feed(b"\r 10%|#  ") == []
    assert splitter.take_pending() == [LogText(" 10%|#  ", redraws=1)]
    assert splitter.take_pending() == []
    splitter.feed(b"\r 50%|##")
    assert splitter.take_pending() == [LogText(" 50%|##", redraws=2)]
    assert splitter.feed(b"\r100%|###\nnext\n") == [
        LogText("100%|###", redraws=3, closed=True, end=27),
        LogText("next", end=32),
    ]


@given(st.lists(st.one_of(lines_without_control, st.integers(0, 9)), max_size=12), st.integers(0, 500))
def test_reading_again_behind_any_item_loses_and_repeats_nothing(parts, cut):
    data = b""
    for part in parts:
        line = channel.encode(NONCE, {"type": "progress", "done": part}) if isinstance(part, int) else part.encode()
        data += line.rstrip(b"\n") + b"\n"
    splitter = LineSplitter(NONCE)
    items = splitter.feed(data[: cut % (len(data) + 1)])
    read = max((item.end for item in items), default=0)
    whole, rest = run([data]), run([data[read:]])
    assert texts(items) + texts(rest) == texts(whole)
    assert reports(items) + reports(rest) == reports(whole)


# the same, line by line -----------------------------------------------------------------------


def line_by_line(data):
    """What a stream says, by the plainest of means: lines, ("drawn", last, how often) and reports in their order."""
    said, told = [], []
    for raw in (data.removesuffix(b"\n")).split(b"\n") if data else []:
        text, report = channel.split_line(raw, NONCE)
        if report is not None:
            told.append(report)
        if report is not None and not text:
            continue
        drawn = [part for part in text.split(b"\r") if part.strip()]
        if b"\r" in text.rstrip(b"\r"):
            said.append(("drawn", (drawn[-1] if drawn else b"").decode(errors="replace"), text.count(b"\r")))
        else:
            said.append(text.rstrip(b"\r").decode(errors="replace"))
    return said, told


def as_said(items):
    said = []
    for item in items:
        if isinstance(item, LogText) and item.redraws:
            said.append(("drawn", item.text, item.redraws))
        elif isinstance(item, LogText):
            said += item.text.split("\n")
    return said


METRIC = channel.encode(NONCE, {"type": "metric", "step": 1, "values": {"loss": 0.5}})
SCRAPS = st.one_of(
    st.sampled_from(
        [b"\n", b"\r", b"\r\n", b"\x1e", METRIC, METRIC[:-1], METRIC[:9], "\N{SNOWMAN}".encode(), b"\xe2\x98"]
    ),
    st.sampled_from(
        [
            channel.encode(NONCE, report)
            for report in ({"type": "ready"}, {"type": "progress", "done": 3}, {"type": "result", "ok": True})
        ]
    ),
    # Without codes that move a terminal's cursor, which are no text.
    st.binary(max_size=12).map(lambda scrap: scrap.replace(b"\x1b", b"")),
    st.integers(1, 400).map(lambda n: b"word " * n),
)


@given(st.lists(SCRAPS, max_size=30), st.lists(st.integers(0, 100_000), max_size=8), st.booleans())
def test_whatever_a_stream_holds_it_says_the_same_as_line_by_line(scraps, cuts, in_order):
    data = b"".join(scraps)
    items = run(split_at(data, cuts), in_order=in_order)
    assert (as_said(items), reports(items)) == line_by_line(data)
    ends = [item.end for item in items]
    assert max(ends, default=0) == len(data) + (bool(data) and not data.endswith(b"\n"))
    assert ends == sorted(ends) or not in_order


@given(st.lists(st.integers(0, 150_000), max_size=12), st.integers(0, 5))
def test_texts_are_cut_between_lines_and_each_tells_where_it_ends(lengths, newlines):
    data = b"".join(b"z" * length + b"\n" for length in lengths) + b"\n" * newlines
    items = run([data])
    assert "\n".join(item.text for item in items) == data.decode()[:-1]
    at = 0
    for item in items:
        at += len(item.text) + 1
        assert item.end == at
        assert len(item.text) < MAX_LOG_TEXT or "\n" not in item.text


# floods ---------------------------------------------------------------------------------------


def test_text_around_metrics_stays_together_and_a_result_stands_behind_its_text():
    result = channel.encode(NONCE, {"type": "result", "ok": True})
    items = LineSplitter(NONCE, in_order=False).feed((b"line\n" + METRIC) * 100 + b"last\n" + result + b"after\n")
    kinds = ["text" if isinstance(item, LogText) else item.data["type"] for item in items]
    assert kinds == ["text", *["metric"] * 100, "result", "text"]
    assert items[0].text.split("\n") == ["line"] * 100 + ["last"]


@pytest.mark.parametrize("byte", [b"x", b"\xff", "\N{SNOWMAN}".encode(), b"\x1e"])
def test_gigabytes_without_a_line_s_end_are_passed_on_and_not_kept(byte):
    splitter, said, fed = LineSplitter(NONCE), 0, 0
    block = (byte * 200_000)[:199_999]
    for _ in range(60):
        fed += len(block)
        said += sum(len(line.encode(errors="replace")) for line in texts(splitter.feed(block)))
        assert sum(map(len, splitter._tail)) <= MAX_LINE_BYTES + len(block)
    assert said >= fed - 2 * MAX_LINE_BYTES if byte != b"\xff" else said
    (report,) = reports(splitter.feed(METRIC))
    assert report["type"] == "metric"


def test_characters_are_not_broken_where_an_endless_line_is():
    data = ("\N{SNOWMAN}" * 1_000_000).encode()
    items = run([data[at : at + 65_521] for at in range(0, len(data), 65_521)])
    assert "".join(texts(items)) == data.decode()


def test_a_line_that_is_too_long_is_not_cut_inside_of_a_secret():
    secret = "s3cret-of-somebody"
    splitter = LineSplitter("", safe_end=Redactor([secret]).find_safe_end)
    begin, end = b"x" * (MAX_LINE_BYTES + 100), b"y" * MAX_LINE_BYTES + b"\n"
    # What has come when the line is too long ends in the middle of the secret.
    items = [*splitter.feed(begin + secret[:9].encode()), *splitter.feed(secret[9:].encode() + end)]
    assert len(items) > 1
    assert sum(secret in item.text for item in items) == 1


def test_a_progress_bar_that_never_ends_takes_no_memory_and_is_one_line():
    splitter = LineSplitter(NONCE)
    for n in range(60):
        assert splitter.feed(b"".join(b"\r step %9d" % (n * 5000 + i) for i in range(5000))) == []
        assert sum(map(len, splitter._tail)) <= MAX_LINE_BYTES + 100_000
    (shown,) = splitter.take_pending()
    assert (shown.text, shown.redraws) == (" step    299999", 300_000)
    assert splitter.feed(b"\nnext\n") == [
        LogText(" step    299999", redraws=300_000, closed=True, end=300_000 * 16 + 1),
        LogText("next", end=300_000 * 16 + 6),
    ]


def test_a_report_may_be_long_but_not_endless():
    report = {"type": "ready", "more": "v" * (3 * MAX_LINE_BYTES)}
    line = b"text " + channel.encode(NONCE, report)
    assert reports(run([line[at : at + 70_000] for at in range(0, len(line), 70_000)])) == [report]
    splitter, begun = LineSplitter(NONCE), channel.make_marker(NONCE) + b'{"type":"result","repr":"'
    splitter.feed(begun)
    items = [
        item for _ in range(MAX_REPORT_BYTES // MAX_LINE_BYTES + 3) for item in splitter.feed(b"v" * MAX_LINE_BYTES)
    ]
    assert texts(items)[0].startswith(begun.decode())
    assert sum(map(len, splitter._tail)) <= 3 * MAX_LINE_BYTES


def test_a_long_line_is_shown_by_its_beginning_while_it_has_no_end():
    splitter = LineSplitter(NONCE)
    splitter.feed(b"begin " + b"x" * 100_000)
    (shown,) = splitter.take_pending()
    assert shown.text.startswith("begin xx")
    assert len(shown.text) <= 8192
    splitter.feed(b"y" * 1000)
    assert splitter.take_pending() == [], "its beginning is the same"


def test_a_line_in_the_middle_of_a_flood_is_not_shown_before_its_end_but_one_that_stays_is():
    splitter = LineSplitter(NONCE)
    for n in range(5):
        splitter.feed(b"whole\nhal" if n == 0 else b"f\nhal")
        assert splitter.take_pending() == []
    assert splitter.take_pending() == [LogText("hal", redraws=1, end=6 + 4 * 5)]
    assert splitter.feed(b"f\n") == [LogText("half", redraws=1, closed=True, end=6 + 5 * 5)]
