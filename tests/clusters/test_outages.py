"""A service that does not answer is told of once, and that it answers again only where that was told."""

import time

import pytest

from distdl_jupyter.clusters.base import OutageNotifier, RunNotice

SILENT, ANSWERS = RunNotice("warning", "It is silent.", "silent"), RunNotice("info", "It answers.", "answers")


@pytest.fixture
def now():
    return time.monotonic()


def test_a_long_silence_is_told_once_and_so_is_its_end(now):
    outages = OutageNotifier(5.0)
    outages.record_failure(now - 6, SILENT)
    outages.record_failure(now, SILENT)
    outages.record_response(ANSWERS)
    outages.record_response(ANSWERS)
    assert outages.take_notices() == [SILENT, ANSWERS]
    assert outages.take_notices() == []
    outages.record_failure(now - 6, SILENT)
    assert outages.take_notices() == [SILENT], "another silence is told as well"


def test_a_short_silence_is_not_told_unless_it_must_be_at_once(now):
    outages = OutageNotifier(5.0)
    outages.record_failure(now, SILENT)
    outages.record_response(ANSWERS)
    assert outages.take_notices() == []
    outages.record_failure(now, SILENT, immediately=True)
    assert outages.take_notices() == [SILENT]


def test_a_silence_counts_from_the_first_question_without_an_answer(now):
    outages = OutageNotifier(5.0)
    outages.record_failure(now - 6, SILENT)
    outages.take_notices()
    outages.record_response(ANSWERS)
    outages.record_failure(now - 1, SILENT)
    assert outages.take_notices() == [ANSWERS]
