"""Curves that were kept beside their log: equal to the fold, never believed when they do not fit, read at once."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core import events, keptcurves, snapshot
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.state import State
from distdl_jupyter.follow import Follower
from distdl_jupyter.reading import Outline, Reading
from tests import finished

STEPS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 3000)
METRICS = st.fixed_dictionaries({
    "v": st.just(1), "t": st.floats(0, 1e9), "type": st.just("metric"), "rank": st.integers(0, 3), "step": STEPS,
    "values": st.dictionaries(st.sampled_from(["loss", "accuracy", "é"]), st.floats(), max_size=3),
})  # fmt: skip
EVENTS = st.lists(METRICS | st.just({"v": 1, "t": 1.0, "type": "restart"}), max_size=60)


def fold(found, book=None):
    book = SeriesBook() if book is None else book
    for one in found:
        book.apply(one)
    return book


def told(book):
    """All that a book holds, as text: NaN equals itself there."""
    return json.dumps(keptcurves._told(book.metrics))


def again(book):
    return SeriesBook(keptcurves._made(json.loads(told(book))))


@given(EVENTS, EVENTS)
def test_curves_survive_and_fold_on_as_the_first_would(before, after):
    first = fold(before)
    restored = again(first)
    assert told(restored) == told(first)
    assert told(fold(after, restored)) == told(fold(after, first))
    for name in first.names:
        assert repr(restored.band(name)) == repr(first.band(name))
        assert repr(restored.lines(name)) == repr(first.lines(name))


def test_long_curves_survive(tmp_path):
    first = fold({"t": 1.0 * n, "type": "metric", "rank": n % 2, "step": n, "values": {"loss": 1 / (n + 1)}}
                 for n in range(20_000))  # fmt: skip
    assert told(again(first)) == told(first)
    assert len(told(first)) < 400_000


@pytest.fixture
def job():
    return finished.job()


def test_a_job_that_has_ended_has_its_curves_beside_it(job):
    book, cursor = keptcurves.read(job)
    assert cursor == job.events.stat().st_size == snapshot.read(job)[1]
    assert told(book) == told(fold(events.read_all(job.events)[0]))
    assert job.curves.stat().st_mode & 0o777 == 0o600


def test_a_reader_has_them_without_the_log(job):
    whole = Outline(job)
    whole.catch_up()
    # What stands in the log before the cursor is not read: other bytes of the same length make no difference.
    content = job.events.read_bytes()
    with job.events.open("r+b") as file:
        file.write(b" " * (len(content) - 1))
    reader = Reading(job)
    assert reader.book.names == ["accuracy", "loss"]
    assert not reader.draw()
    assert told(reader.book) == told(whole.book)


def test_what_came_after_them_is_folded_on(job):
    book, _ = keptcurves.read(job)
    writer = events.EventWriter(job.events)
    writer.write("metric", rank=1, step=7, values={"loss": 2.0})
    writer.close()
    reader = Outline(job)
    reader.catch_up()
    assert reader.book.count("loss") == book.count("loss") + 1


@pytest.mark.parametrize(
    "change", ["missing", "damaged", "cut", "another log", "an older version", "newer than the view"]
)
def test_what_does_not_fit_is_not_believed(job, change):
    expected = told(keptcurves.read(job)[0])
    if change == "missing":
        job.curves.unlink()
    elif change == "damaged":
        job.curves.write_bytes(job.curves.read_bytes().replace(b"Metric", b"Matrix"))
    elif change == "cut":
        job.curves.write_bytes(job.curves.read_bytes()[:-40])
    elif change == "another log":
        copy = job.events.with_name("copy")
        copy.write_bytes(job.events.read_bytes())
        os.replace(copy, job.events)
    elif change == "an older version":
        job.curves.write_bytes(job.curves.read_bytes().replace(keptcurves.VERSION.encode(), b"0-0"))
    else:
        job.snapshot.unlink()
        writer = events.EventWriter(job.events)
        writer.close()
    reader = Outline(job)
    reader.catch_up()
    assert told(reader.book) == expected
    Outline(job).catch_up()
    if change != "newer than the view":
        assert keptcurves.read(job) is not None, "the reader of an ended job keeps what it has folded"


def test_too_many_series_are_not_kept(job, monkeypatch):
    job.curves.unlink()
    monkeypatch.setattr(keptcurves, "MOST", 5)
    Outline(job).catch_up()
    assert not job.curves.exists()


def test_a_living_job_is_not_written_by_its_readers():
    job = finished.job(state=State.RUNNING)
    job.curves.unlink(missing_ok=True)
    reader = Reading(job)
    while reader.step():
        pass
    assert not job.curves.exists()
    assert Follower(job).catch_up() is not None
