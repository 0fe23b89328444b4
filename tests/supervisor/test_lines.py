"""From bytes to log texts and reports: nothing lost, nothing misread, whatever the cuts."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.supervisor.lines import MAX_LINE, LineSplitter, Report, Text
from distdl_jupyter.worker import protocol

NONCE = "5ec2e7"


def split_at(data, cuts):
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def run(pieces, nonce=NONCE):
    splitter = LineSplitter(nonce)
    items = [item for piece in pieces for item in splitter.feed(piece)]
    return items + splitter.finish()


def texts(items):
    return [line for item in items if isinstance(item, Text) for line in item.text.split("\n")]


def reports(items):
    return [item.data for item in items if isinstance(item, Report)]


lines_without_control = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r\x1e"), max_size=30
)


@given(st.lists(lines_without_control, max_size=20), st.lists(st.integers(0, 10_000), max_size=6))
def test_plain_lines_come_back_whole_for_any_cuts(lines, cuts):
    data = "".join(line + "\n" for line in lines).encode()
    assert texts(run(split_at(data, cuts))) == lines


@given(
    st.lists(st.one_of(lines_without_control, st.integers(0, 99)), max_size=20),
    st.lists(st.integers(0, 10_000), max_size=6),
)
def test_reports_between_lines_and_unfinished_text_are_told_apart(parts, cuts):
    data, expected_text, expected_reports = b"", "", []
    for part in parts:
        if isinstance(part, int):
            report = {"type": "metric", "step": part, "values": {"loss": 0.5}}
            data += protocol.encode(NONCE, report)
            expected_reports.append(report)
            expected_text += "\n" if expected_text and not expected_text.endswith("\n") else ""
        else:
            data += (part + "\n").encode()
            expected_text += part + "\n"
    items = run(split_at(data, cuts))
    assert reports(items) == expected_reports
    assert texts(items) == expected_text.split("\n")[:-1]


def test_a_report_glued_behind_text_leaves_the_text():
    items = run([b"epoch 1 ... " + protocol.encode(NONCE, {"type": "hello"})])
    assert reports(items) == [{"type": "hello"}]
    assert texts(items) == ["epoch 1 ... "]


def test_a_forged_report_stays_text():
    forged = protocol.encode("000000", {"type": "metric", "step": 1, "values": {"loss": 0.0}})
    items = run([forged])
    assert reports(items) == []
    assert len(texts(items)) == 1


def test_a_progress_bar_becomes_one_redrawn_line():
    splitter = LineSplitter(NONCE)
    assert splitter.feed(b"\r 10%|#  ") == []
    assert splitter.pending() == [Text(" 10%|#  ", redraws=1)]
    assert splitter.pending() == []
    splitter.feed(b"\r 50%|##")
    assert splitter.pending() == [Text(" 50%|##", redraws=2)]
    assert splitter.feed(b"\r100%|###\nnext\n") == [
        Text("100%|###", redraws=3, closed=True, end=27),
        Text("next", end=32),
    ]


@given(st.lists(st.one_of(lines_without_control, st.integers(0, 9)), max_size=12), st.integers(0, 500))
def test_reading_again_behind_any_item_loses_and_repeats_nothing(parts, cut):
    data = b""
    for part in parts:
        line = protocol.encode(NONCE, {"type": "progress", "done": part}) if isinstance(part, int) else part.encode()
        data += line.rstrip(b"\n") + b"\n"
    splitter = LineSplitter(NONCE)
    items = splitter.feed(data[: cut % (len(data) + 1)])
    read = max((item.end for item in items), default=0)
    whole, rest = run([data]), run([data[read:]])
    assert texts(items) + texts(rest) == texts(whole)
    assert reports(items) + reports(rest) == reports(whole)


def test_windows_line_ends_are_plain_lines():
    assert run([b"one\r\ntwo\r\n"]) == [Text("one\ntwo", end=10)]


def test_invalid_utf8_and_nul_are_shown_and_nothing_is_lost():
    items = run([b"a\xffb\0c\n"])
    assert texts(items) == ["a\ufffdb\0c"]


def test_an_endless_line_is_passed_on_in_pieces():
    items = run([b"x" * (MAX_LINE // 2)] * 5)
    assert sum(len(text) for text in texts(items)) == 5 * (MAX_LINE // 2)
    assert len(texts(items)) >= 2


def test_text_events_stay_below_the_limit():
    items = run([b"y" * 999 + b"\n"] * 500)
    assert all(len(item.text) <= 66_000 for item in items)
    assert len(texts(items)) == 500
