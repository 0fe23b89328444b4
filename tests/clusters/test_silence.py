"""A service that does not answer is told of once, and that it answers again only where that was told."""

import time

import pytest

from distdl_jupyter.clusters.base import Notice
from distdl_jupyter.clusters.silence import Silence

SILENT, ANSWERS = Notice("warning", "It is silent.", "silent"), Notice("info", "It answers.", "answers")


@pytest.fixture
def now():
    return time.monotonic()


def test_a_long_silence_is_told_once_and_so_is_its_end(now):
    silence = Silence(5.0)
    silence.missed(now - 6, SILENT)
    silence.missed(now, SILENT)
    silence.answered(ANSWERS)
    silence.answered(ANSWERS)
    assert silence.notices() == [SILENT, ANSWERS]
    assert silence.notices() == []
    silence.missed(now - 6, SILENT)
    assert silence.notices() == [SILENT], "another silence is told as well"


def test_a_short_silence_is_not_told_unless_it_must_be_at_once(now):
    silence = Silence(5.0)
    silence.missed(now, SILENT)
    silence.answered(ANSWERS)
    assert silence.notices() == []
    silence.missed(now, SILENT, at_once=True)
    assert silence.notices() == [SILENT]


def test_a_silence_counts_from_the_first_question_without_an_answer(now):
    silence = Silence(5.0)
    silence.missed(now - 6, SILENT)
    silence.notices()
    silence.answered(ANSWERS)
    silence.missed(now - 1, SILENT)
    assert silence.notices() == [ANSWERS]
