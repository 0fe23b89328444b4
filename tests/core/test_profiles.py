"""Recorded steps of ranks are brought to one clock and merged."""

import gzip
import json

import pytest

from distdl_jupyter.core import profiles
from distdl_jupyter.core.errors import InvalidSpec


def summary(rank, host, ahead=0.0, waits=(30.0, 10.0), operators=()):
    """A rank of two steps of 100 us, with an all-reduce at the end of each, on a clock that is ``ahead`` us ahead."""
    spans = [["wait", 100.0 * (at + 1) - long + ahead, 100.0 * (at + 1) + ahead] for at, long in enumerate(waits)]
    steps = [[100.0 * at + ahead, 100.0 * (at + 1) + ahead] for at in range(len(waits))]
    return {"rank": rank, "host": host, "pid": 1, "first": 7, "steps": steps, "waits": spans, "operators": operators,
            "computing": 100.0 * len(waits) - sum(waits), "events": 0, "left_out": 0, "gpu": False}  # fmt: skip


def test_ranks_of_one_host_are_not_moved():
    moved, says = profiles.shifts([summary(0, "a"), summary(1, "a")], {0: (0.0, 0.0), 1: (0.0, 0.0)})
    assert set(moved.values()) == {0.0}
    assert "one host" in says


def test_clocks_of_hosts_agree_where_ranks_leave_together():
    """The round trip says 500 us with an error of 100 us; the ends of four operations say 540 us."""
    waits = (30.0,) * 4
    found = [summary(0, "a", waits=waits), summary(1, "b", ahead=540.0, waits=waits)]
    moved, says = profiles.shifts(found, {0: (0.0, 0.0), 1: (500e-6, 100e-6)})
    assert moved[0] == 0.0
    assert moved[1] == pytest.approx(-540.0)
    assert "4 collective operations" in says


def test_a_clock_is_moved_no_further_than_its_error():
    waits = (30.0,) * 4
    found = [summary(0, "a", waits=waits), summary(1, "b", ahead=900.0, waits=waits)]
    moved, _ = profiles.shifts(found, {0: (0.0, 0.0), 1: (500e-6, 100e-6)})
    assert moved[1] == pytest.approx(-600.0)


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


def test_traces_are_merged_in_the_order_of_time_without_secrets(tmp_path):
    paths = {}
    for rank, shift in ((0, 0.0), (1, -100.0)):
        path = tmp_path / f"rank-{rank}.jsonl.gz"
        lines = [{"ts": 0, "pid": rank, "tid": 0, "ph": "M", "name": "process_name", "args": {"name": f"rank {rank}"}}]
        lines += [{"ts": at - shift, "pid": rank, "tid": 0, "ph": "X", "name": "the token hunter2x", "dur": 1.0}
                  for at in (10.0 + rank, 20.0 + rank)]  # fmt: skip
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
        paths[path] = shift
    target = tmp_path / "trace.json.gz"
    profiles.merge(paths, target, lambda name: name.replace("hunter2x", "***"), {"job": "x"})
    found = json.loads(gzip.decompress(target.read_bytes()))["traceEvents"]
    assert [one["ts"] for one in found if one["ph"] != "M"] == [10.0, 11.0, 20.0, 21.0]
    assert {one["name"] for one in found if one["ph"] != "M"} == {"the token ***"}
    assert "hunter2x" not in gzip.decompress(target.read_bytes()).decode()


def test_ranks_of_a_flag():
    assert profiles.rank_numbers("0,1") == [0, 1]
    assert profiles.rank_numbers("") is None
    with pytest.raises(InvalidSpec, match="numbers such as 0,1"):
        profiles.rank_numbers("first")
