"""Readers that begin at what is kept beside a log hold what those hold who read all of it."""

import math

import pytest

from distdl_jupyter.core.log import fold
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.view import JobView
from distdl_jupyter.jobs.reader import JobReader, PageReader
from tests.conftest import wait_for
from tests.widgets import recorded
from tests.written import all_written


@pytest.fixture
def story():
    told = recorded.begin(60)
    told.set_up()
    yield told
    told.close()


def all_of(story):
    return all_written(story.folder)


def view_of(story):
    view = JobView.of(story.spec)
    for event in all_of(story):
        view.apply(event)
    return view


@pytest.mark.parametrize("reader", [lambda folder: JobReader(folder, lines=True), JobReader, PageReader])
def test_all_readers_hold_one_view(story, reader):
    for chapter in range(3):
        story.train(100 * (chapter + 1))
        story.line(1, "a\\b\nC:\\new\n\n" + "é" * 10, "err")
    one = reader(story.folder)
    assert one.catch_up() == view_of(story)
    story.train(400)
    story.fail()
    assert one.catch_up() == view_of(story)


def test_curves_and_log_are_whole_however_a_reader_began(story):
    story.train(500)
    book = SeriesBook()
    for event in all_of(story):
        book.apply(event)
    one = PageReader(story.folder)
    one.catch_up()
    for reader in (one, JobReader(story.folder, curves=True)):
        reader.catch_up()
        assert reader.book.names == book.names
        for name in book.names:
            assert reader.book.band(name) == book.band(name)
            assert reader.book.count(name) == book.count(name)
    log = fold(all_of(story), 4)
    assert [row.to_json() for row in one.log.rows] == [row.to_json() for row in log.rows]
    assert (one.log.total, one.log.errors) == (log.total, log.errors)


def test_a_job_that_lost_its_writer_is_lost(story):
    story.train(100)
    story.train(120)
    story.lock.release()
    one = JobReader(story.folder)
    wait_for(lambda: one.catch_up().state.ended)
    assert one.view.state.value == "lost"
    assert one.view == view_of(story)
    assert math.isfinite(one.view.last_sign)
