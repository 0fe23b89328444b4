"""Checksums of weights that ranks report become one sentence when a rank departs."""

import dataclasses

import pytest

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.supervisor import reports
from distdl_jupyter.supervisor.log_reader import RankReport
from distdl_jupyter.supervisor.recorder import EventRecorder
from tests.supervisor.test_recorder import spec

GOOD = {"type": "weights", "t": 1.0, "optimizer": 0, "step": 1, "sum": "ab", "device": "cpu x86_64 AVX2"}


@pytest.fixture
def recorder(tmp_path):
    made = EventRecorder(JobFolder(tmp_path), dataclasses.replace(spec(), process_count_per_node=4))
    yield made
    made.close()


def take(recorder, sums, **more):
    for rank, total in enumerate(sums):
        recorder.take(Stream(-1, rank, "out"), [RankReport({**GOOD, "sum": total, **more})])


def said(recorder):
    return [note["text"] for note in recorder.view.notes]


def test_the_rank_that_departs_is_named_once_with_the_steps_between_which_it_did(recorder):
    take(recorder, "aaaa", step=8)
    assert not said(recorder)
    take(recorder, "bbcb", step=16)
    take(recorder, "ddef", step=32)
    assert len(said(recorder)) == 1
    assert said(recorder)[0].startswith(
        "The weights of rank 2 of 4 differ from the others after step 16, and the same after step 8: "
    )
    assert recorder.view.notes[0]["code"] == "weights-depart"
    assert recorder.view.notes[0]["level"] == "warning"


def test_ranks_on_another_kind_of_processor_round_otherwise(recorder):
    for rank, (total, device) in enumerate([("a", "A100"), ("a", "A100"), ("b", "V100"), ("b", "V100")]):
        recorder.take(Stream(-1, rank, "out"), [RankReport({**GOOD, "sum": total, "device": device})])
    assert not said(recorder)


def test_steps_that_not_all_ranks_make_are_not_compared_and_a_restart_begins_anew(recorder):
    take(recorder, "abc")
    recorder.write("restart", rank=1, ranks=None, reason="Rank 1 failed.")
    take(recorder, "dddd")
    assert not said(recorder)
    take(recorder, "aabb", optimizer=1, step=2)
    assert len(said(recorder)) == 1


@pytest.mark.parametrize("wrong", [{"step": -1}, {"sum": 5}, {"device": None}, {"optimizer": 0.5}, {"sum": "a" * 501}])
def test_what_is_no_report_of_weights_is_text(wrong):
    assert reports.parse(GOOD)
    with pytest.raises(reports.InvalidReport):
        reports.parse({**GOOD, **wrong})
