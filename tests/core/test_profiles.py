"""Recorded steps of ranks are compared, and their traces have no secrets."""

import gzip
import json

import pytest

from distdl_jupyter.core import profiles


def summary(rank, *operators):
    """A rank of two steps of 100 us."""
    return {"rank": rank, "host": "a", "first": 7, "steps": 2, "seconds": 2e-4, "operators": operators, "gpu": False}


def test_an_operator_has_its_mean_and_the_time_of_each_rank(tmp_path):
    ranks = [summary(rank, ["aten::mm", "compute", 2, own]) for rank, own in enumerate((40.0, 80.0))]
    found = profiles.parse_profile(1, {"t": 1.0, "ranks": ranks}, tmp_path)
    (one,) = found.operators
    assert (found.steps, found.seconds) == (2, pytest.approx(100e-6))
    assert (one.calls, one.by_rank) == (1.0, pytest.approx({0: 20e-6, 1: 40e-6}))
    assert one.share == pytest.approx(0.3)


def test_secrets_in_the_names_of_a_trace_are_masked(tmp_path):
    path = tmp_path / "rank-0.json.gz"
    events = [{"ph": "X", "name": "the token hunter2x", "ts": at, "dur": 1.0} for at in range(3)]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}, indent=1).encode()))
    profiles.mask_names(path, lambda name: name.replace("hunter2x", "***"))
    found = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert found == [{**one, "name": "the token ***"} for one in events]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
