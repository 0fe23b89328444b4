"""A log that is read from its end has the same rows as one that is read from its beginning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core import events, log, logfile
from distdl_jupyter.core.log import LogWindow
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from tests.core.test_log import fold

TEXTS = ["a", "b", "loss 1", "", "é\tx", "C:\\new", 'say "n"', "日本", "\ud800", '"redraws":1', "x" * 300]
LOGS = st.builds(
    lambda texts, rank, t, stream: {"rank": rank, "t": t, "stream": stream, "text": "\n".join(texts)},
    st.lists(st.sampled_from(TEXTS), min_size=1, max_size=5),
    st.sampled_from([0, 1, 2, None]),
    st.integers(0, 3).map(float),
    st.sampled_from(["out", "err"]),
)
DRAWN = st.builds(
    lambda text, rank, redraws, closed: {
        "rank": rank, "t": 1.0, "stream": "err", "text": text, "redraws": redraws, "closed": closed, "at": 7},
    st.sampled_from(["10%", "2\\n"]), st.integers(0, 2), st.integers(1, 9), st.booleans(),
)  # fmt: skip
OTHERS = st.builds(lambda step: {"type": "metric", "t": 2.0, "rank": 0, "step": step, "values": {"loss": 0.5}},
                   st.integers(0, 9))  # fmt: skip
JOB = JobSpec(id="20261121-024912-k3f9", name="digits", process_count_per_node=3)


def whole(event):
    return {"v": 1, "t": event["t"], "type": event.get("type", "log"), **event}


STORIES = st.lists(st.one_of(LOGS, DRAWN, OTHERS).map(whole), max_size=60).map(
    lambda found: sorted(found, key=lambda event: event["t"])
)


def write(path, story):
    path.write_bytes(b"".join(map(events.encode, story)))


def counted(story):
    view = JobView.from_spec(JOB)
    for event in story:
        if event["type"] == "log":
            view.apply(event)
    return view


def small(monkeypatch, **sizes):
    for name, size in sizes.items():
        monkeypatch.setattr(log, name, size)


def lines(rows):
    """Each line of each rank with its number there; what nobody printed as it is."""
    return [(rank, number, row.stream, row.text) for row in rows for rank, number in row.lines.items()] + [
        (None, 0, row.stream, row.text) for row in rows if row.rank is None
    ]


def printed(rows):
    """What each rank printed, in its order."""
    found = {}
    for rank, number, stream, text in sorted(lines(rows), key=lambda one: (one[0] is None, one[:2])):
        found.setdefault(rank, []).append((stream, text))
        assert rank is None or number > 0
    return found


@given(STORIES, st.lists(st.integers(1, 60), max_size=4), st.integers(1, 7), st.integers(1, 9))
def test_a_log_is_whole_and_each_line_once_however_it_is_read(tmp_path_factory, story, cuts, kept, most):
    """With steps, skips and chunks of a few hundred bytes all of it happens in logs of a few lines."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        small(patch, CHUNK_BYTES=300, MAX_BACKLOG_BYTES=700)
        window, view = LogWindow(path, 3, kept), JobView.from_spec(JOB)
        for cut in [*sorted(cuts), len(story)]:
            write(path, story[:cut])
            while window.read_more(view):
                pass
            assert window.cursor == path.stat().st_size
            assert view == counted(story[:cut])
            rows = everything(window, most)
            expected = fold(story[:cut], 3)
            assert printed(rows) == printed(expected.rows)


def everything(window, most):
    """All rows as a page gets them that scrolls up to the top."""
    rows = list(window.log.rows)
    n = window.log.first_number
    for _ in range(10_000):
        older = window.read_rows_before(n, most)
        if not older:
            return rows
        assert [row.n for row in older] == sorted({row.n for row in older})
        assert older[-1].n < n
        assert len(older) <= most
        n = older[0].n
        rows = older + rows
    raise AssertionError("There is no end to it.")


def test_a_reader_that_is_far_behind_goes_on_at_the_end_and_reads_little(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    text = "\n".join(f"{k:099d}" for k in range(500))
    story = [whole({"rank": 0, "t": 1.0, "stream": "out", "text": text}) for _ in range(400)]
    for number in range(396, 0, -4):
        story.insert(
            number, {"v": 1, "t": 1.0, "type": "count", "lines": 500 * number, "counts": {"0": [500 * number, 0]}}
        )
    write(path, story)
    assert path.stat().st_size > 2 * log.MAX_BACKLOG_BYTES
    window, read, view = LogWindow(path, 1), [], JobView.from_spec(JOB)
    real = logfile.read_bytes
    monkeypatch.setattr(logfile, "read_bytes", lambda p, at, limit: read.append(limit) or real(p, at, limit))
    while window.read_more(view):
        pass
    assert sum(read) < 2 * 2**20
    assert view.lines == 200_000
    assert window.log.rows[-1].text == f"{499:099d}"
    assert not window.log.has_revision(5), "a revision of a log that began elsewhere"
    assert window.log.has_revision(window.log.revision)
    assert window.log.revision < 2**53
    older = window.read_rows_before(window.log.first_number, 10)
    assert [row.n for row in older] == list(range(window.log.first_number - 10, window.log.first_number))
