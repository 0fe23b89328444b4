"""What ranks use is sampled while they run, kept in the job's folder, and shown per rank."""

import time

import pytest

from distdl_jupyter import submit

pytestmark = pytest.mark.timeout(600)

MB = 1e6


def burn_or_hold(seconds, meeting):
    """Burn a core on rank 0 and hold 300 MB on rank 1, at the same time; return since when, and percent of a core."""
    import os
    import pathlib

    rank = int(os.environ["RANK"])
    held = bytearray(b"x" * int(300e6)) if rank else b""
    (pathlib.Path(meeting) / str(rank)).touch()
    while not (pathlib.Path(meeting) / str(1 - rank)).exists():
        time.sleep(0.01)
    begun, cpu = time.time(), time.process_time()
    while time.time() - begun < seconds:
        if rank:
            time.sleep(0.05)
    return {"begun": begun, "cpu": 100 * (time.process_time() - cpu) / (time.time() - begun), "held": len(held)}


def test_a_rank_that_burns_a_core_and_one_that_holds_memory_are_told_apart(tmp_path):
    job = submit(burn_or_hold, (6.0, str(tmp_path)), process_count_per_node=2, distributed_backend="torch")
    said = job.results(120)
    table = job.resources()
    frame = table.to_pandas()
    inside = frame[frame["time"].map(lambda t: t.timestamp()) > max(one["begun"] for one in said) + 1.2]
    burns, holds = (inside[inside["rank"] == rank] for rank in (0, 1))
    assert len(burns) >= 3
    assert burns["cpu"].mean() == pytest.approx(said[0]["cpu"], rel=0.1, abs=10)
    assert holds["cpu"].mean() < 10 < burns["cpu"].mean()
    # The last sample may be of ranks that end.
    assert holds["memory"].median() - burns["memory"].median() == pytest.approx(300 * MB, rel=0.1)
    assert (frame["node_memory"].dropna() < frame["node_limit"].dropna()).all()
    assert frame["host"].nunique() == 1
    assert [line.split()[0] for line in repr(table).splitlines()] == ["Rank", "0", "1"]
    assert table._repr_html_().count("<tr>") == 3
    assert {trace.name for trace in table.figure().data} >= {"rank 0", "rank 1"}


def test_a_job_without_samples_says_so(tmp_path):
    from distdl_jupyter.views.resources import ResourceTable

    table = ResourceTable(tmp_path / "resources.jsonl")
    assert (len(table), repr(table)[:11], len(table.to_pandas())) == (0, "No samples.", 0)
    table = ResourceTable(tmp_path / "resources.jsonl", is_pending=True)
    assert (len(table), repr(table)[:15]) == (0, "No samples yet.")
