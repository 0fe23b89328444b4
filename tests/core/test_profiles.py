"""Recorded steps of ranks are compared, and their traces have no secrets."""

import gzip
import json

import pytest

from distdl_jupyter.core import profiles
from distdl_jupyter.core.errors import InvalidSpec


def summary(rank, host, waits=(30.0, 10.0), operators=()):
    """A rank of two steps of 100 us, with an all-reduce at the end of each."""
    spans = [["wait", 100.0 * (at + 1) - long, 100.0 * (at + 1)] for at, long in enumerate(waits)]
    steps = [[100.0 * at, 100.0 * (at + 1)] for at in range(len(waits))]
    return {"rank": rank, "host": host, "pid": 1, "first": 7, "steps": steps, "waits": spans, "operators": operators,
            "computing": 100.0 * len(waits) - sum(waits), "left_out": 0, "gpu": False}  # fmt: skip


def test_what_a_rank_waits_longer_than_the_last_it_waits_for_it(tmp_path):
    data = {"t": 1.0, "ranks": [summary(0, "a", waits=(30.0, 10.0)), summary(1, "a", waits=(5.0, 10.0))]}
    first, second = profiles.profile(1, data, tmp_path).ranks
    assert first.seconds == pytest.approx(100e-6)
    assert (first.waiting, first.communication) == (pytest.approx(12.5e-6), pytest.approx(7.5e-6))
    assert (second.waiting, second.communication) == (0.0, pytest.approx(7.5e-6))
    assert first.compute == pytest.approx(80e-6)


def test_the_rank_that_needs_longer_for_an_operator_stands_out(tmp_path):
    rows = [[["aten::mm", "compute", 2, 40.0, 40.0]], [["aten::mm", "compute", 2, 80.0, 80.0]]]
    data = {"t": 1.0, "ranks": [summary(rank, "a", operators=row) for rank, row in enumerate(rows)]}
    (one,) = profiles.profile(1, data, tmp_path).operators
    assert (one.stands_out, one.times, one.calls) == (1, pytest.approx(2.0), 1.0)
    assert one.share == pytest.approx(0.3)


def test_secrets_in_the_names_of_a_trace_are_masked(tmp_path):
    path = tmp_path / "rank-0.json.gz"
    events = [{"ph": "X", "name": "the token hunter2x", "ts": at, "dur": 1.0} for at in range(3)]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}, indent=1).encode()))
    profiles.clean_names(path, lambda name: name.replace("hunter2x", "***"))
    found = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert found == [{**one, "name": "the token ***"} for one in events]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_ranks_of_a_flag():
    assert profiles.rank_numbers("0,1") == [0, 1]
    assert profiles.rank_numbers("") is None
    with pytest.raises(InvalidSpec, match="numbers such as 0,1"):
        profiles.rank_numbers("first")
