"""A log whose middle was omitted, read from every position."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdl_jupyter.core import events, logfile
from distdl_jupyter.core.log import LogWindow
from distdl_jupyter.core.logfile import EventWriter, read_last_lines, split_lines
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.jobs.reader import JobReader, PageReader
from tests.written import all_written

SPEC = JobSpec(id="20261121-024912-k3f9x", name="x", kind="function", created=1.0, process_count_per_node=2)


class Writing:
    """A writer that begins a part where it is said, and all that it has written."""

    def __init__(self, path):
        self.folder = JobFolder(path)
        self.folder.spec_file.write_text(json.dumps(SPEC.to_json()))
        self.writer = EventWriter(self.folder.events)
        self.view = JobView.from_spec(SPEC)
        self.lines, self.first, self.steps = [], None, 0

    def log(self, rank, text, stream="out"):
        self.view.apply(self.writer.write("log", rank=rank, stream=stream, text=text))
        self.lines += [(rank, line) for line in text.split("\n")]

    def metric(self):
        self.steps += 1
        self.view.apply(self.writer.write("metric", rank=self.steps % 2, step=self.steps, values={"loss": 0.5}))

    def part(self):
        self.first = self.view.lines if self.first is None else self.first
        counts = {str(one.rank): [one.lines, one.error_lines] for one in self.view.ranks if one.lines}
        return self.writer.begin_part(lines=self.view.lines, first=self.first, counts=counts)

    def some(self, seed=0, many=50):
        pick = random.Random(seed)
        for _ in range(many):
            text = f"{len(self.lines)} {'x' * pick.randrange(300)}"
            self.log(pick.choice([0, 1, None]), text, pick.choice(["out", "err"]))
            if pick.random() < 0.3:
                self.metric()


@pytest.fixture
def long(tmp_path):
    """A log of a first file, two parts that were left out and two that are kept."""
    made = Writing(tmp_path)
    for seed in range(5):
        made.some(seed)
        if seed < 4:
            assert made.part() is (seed > 1)
    return made


class Reader:
    """Reads the log each time that it is asked, or not so often."""

    def __init__(self, writing, every=1):
        self.path, self.every = writing.folder.log, every
        self.seen, self.cursor, self.times = [], 0, 0

    def read(self, limit, *, always=False):
        self.times += 1
        if self.times % self.every and not always:
            return False
        before = self.cursor
        found, self.cursor = logfile.read(self.path, before, limit)
        self.seen += found
        return self.cursor > before


def steps_of(found):
    return [event["step"] for event in found if event["type"] == "metric"]


def lines(found):
    return [(line.rank, line.text) for line in split_lines(found) if not line.text.startswith("…")]


def fold(found):
    view = JobView.from_spec(SPEC)
    for event in found:
        view.apply(event)
    return view


def read_all(path):
    batches = list(events.read_batches(path, 0, logfile.read))
    return [line for found, _ in batches for line in found], batches[-1][1]


def test_first_and_last_part_are_read_with_one_line_between_that_counts_what_is_missing(long):
    found, cursor = read_all(long.folder.log)
    assert cursor == logfile.get_size(long.folder.log) == long.writer.log.size
    assert lines(found) == long.lines[:50] + long.lines[150:]
    assert steps_of(all_written(long.folder)) == list(range(1, long.steps + 1)), "no event is left out"
    begin, end = logfile.find_deleted_range(long.folder.log)
    (said,) = [line for line in split_lines(found) if line.text.startswith("…")]
    kilobytes = f"{(end - begin) / 1000:.0f} kB"
    assert (said.rank, said.stream) == (None, "sys")
    assert said.text == f"… 100 lines ({kilobytes}) omitted; raise max_log_bytes to keep more"


def test_view_is_that_of_the_writer_whether_log_lines_are_folded_or_counted(long):
    found = all_written(long.folder)
    assert steps_of(found) == list(range(1, long.steps + 1))
    assert fold(found) == long.view
    onlooker = JobReader(long.folder)
    onlooker.check_writer = lambda **_: False
    assert onlooker.catch_up() == long.view


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5000)), max_size=60), st.integers(0, 2**30))
@settings(max_examples=60, deadline=None)
def test_reader_that_lags_has_each_line_once_and_counts_all(tmp_path_factory, steps, seed):
    made = Writing(tmp_path_factory.mktemp("job"))
    readers = [Reader(made), Reader(made, every=7)]
    for kind, limit in steps:
        if kind == 0:
            made.part()
        elif kind == 1:
            made.some(seed + limit, 3)
        else:
            for reader in readers:
                reader.read(limit)
    for reader in readers:
        while reader.read(700, always=True):
            pass
        assert reader.cursor == logfile.get_size(made.folder.log)
        told = lines(reader.seen)
        assert [line for line in made.lines if line in set(told)] == told
        assert fold(reader.seen).lines == made.view.lines


def test_who_follows_the_log_sees_every_line_while_parts_come_and_go(tmp_path):
    made, seen = Writing(tmp_path), []
    follower = JobReader(made.folder, lines=True)
    follower.check_writer = lambda **_: False
    for seed in range(6):
        made.some(seed, 10)
        seen += follower.read()
        made.part()
        made.some(seed, 10)
        while found := follower.read():
            seen += found
    assert lines(seen) == made.lines
    assert not [line for line in split_lines(seen) if line.text.startswith("…")]
    assert follower.view == made.view


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_last_lines_reach_back_over_what_was_left_out(long, rank):
    kept = [line for line in long.lines[:50] + long.lines[150:] if rank is None or line[0] == rank]
    for many in (1, 20, 40, 1000):
        found, cursor = read_last_lines(long.folder.log, many, rank)
        assert cursor == long.writer.log.size
        shown = [(line.rank, line.text) for line in found if not line.text.startswith("…")]
        assert shown == kept[len(kept) - len(shown) :]
        assert len(found) == min(many, len(kept) + (rank is None))


def test_window_shows_the_last_rows_and_every_earlier_one_that_is_kept(long, monkeypatch):
    import distdl_jupyter.core.log as under_test

    for name, n in {"MAX_BACKLOG_BYTES": 2000, "CHUNK_BYTES": 1500}.items():
        monkeypatch.setattr(under_test, name, n)
    window, view = LogWindow(long.folder.log, 2, 20), JobView.from_spec(SPEC)
    while window.read_more(view):
        pass
    rows = window.read_rows_before(window.log.next_number, 10_000)
    while earlier := window.read_rows_before(rows[0].n, 7):
        assert earlier[-1].n < rows[0].n
        rows[:0] = earlier
    kept = [text for _, text in long.lines[:50] + long.lines[150:]]
    assert [row.text for row in rows if not row.text.startswith("…")] == kept
    assert [row.text[:11] for row in rows if row.text.startswith("…")] == ["… 100 lines"]
    assert view.lines == long.view.lines
    for rank in (0, 1):
        numbers = [row.lines[rank] for row in rows if rank in row.lines]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == sum(row.rank == rank for row in rows)


@pytest.mark.parametrize("behind", [1000, 10**6])
def test_window_that_was_there_all_the_time_shows_each_row_under_its_number(tmp_path, monkeypatch, behind):
    import distdl_jupyter.core.log as under_test

    for name, n in {"MAX_BACKLOG_BYTES": behind, "CHUNK_BYTES": 1500}.items():
        monkeypatch.setattr(under_test, name, n)
    made = Writing(tmp_path)
    window, view, seen = LogWindow(made.folder.log, 2, 20), JobView.from_spec(SPEC), {}
    for seed in range(40):
        made.some(seed, 7)
        if seed % 7 == 6:
            made.part()
        while window.read_more(view):
            seen |= {row.n: row.text for row in window.log.rows}
    rows = window.read_rows_before(window.log.next_number, 10_000)
    while earlier := window.read_rows_before(rows[0].n, 7):
        rows[:0] = earlier
    texts = [row.text for row in rows if not row.text.startswith("…")]
    assert texts == [text for _, text in made.lines[:49] + made.lines[196:]]
    begin = logfile.find_deleted_range(made.folder.log)[1]
    assert len(window._chunks) < 2 * (made.writer.log.size - begin + 20_000) // 1500
    assert {row.n for row in rows[50:]} & seen.keys()
    assert all(seen.get(row.n, row.text) == row.text for row in rows[50:])
    assert [row.n for row in rows] == sorted({row.n for row in rows})


def test_reader_that_began_before_parts_came_counts_each_line_and_each_point_once(tmp_path):
    made = Writing(tmp_path)
    made.some(1)
    reader = PageReader(made.folder)
    reader.check_writer = lambda **_: False
    reader.catch_up()
    for seed in range(3, 7):
        made.part()
        made.some(seed)
    assert logfile.find_deleted_range(made.folder.log)[1] > reader.window.cursor
    reader.catch_up()
    assert reader.curves.get("loss").count == made.steps == reader.view.metrics["loss"].count
    assert reader.view == made.view
    assert reader.view.lines == made.view.lines
