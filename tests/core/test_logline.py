"""The last lines of a long log are the end of all its lines."""

import json

import pytest

from distdl_jupyter.core import events, logfile


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Some megabytes of log with metrics between, rank 1 silent after its first line."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    log = {"v": 1, "t": 1.0, "type": "log", "stream": "out"}
    lines = [{**log, "rank": 1, "text": "early"}]
    for k in range(3000):
        lines.append({**log, "rank": 0, "text": "\n".join(f"line {k} {n} {'.' * 60}" for n in range(20))})
        lines.append({"v": 1, "t": 1.0, "type": "metric", "rank": 0, "step": k, "values": {"loss": 0.5}})
    lines.append({**log, "rank": 0, "text": "half", "redraws": 3})
    lines.append({**log, "rank": 0, "text": "bar", "redraws": 7, "closed": True})
    path.write_bytes(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines) + b'{"v":1,')
    return path


@pytest.mark.parametrize("rank", [None, 0, 1, 2])
@pytest.mark.parametrize("many", [0, 1, 7, 10_000, 100_000])
def test_the_last_lines_are_the_end_of_all(long, rank, many):
    found = [event for batch, _ in events.read_batches(long, 0, logfile.read) for event in batch]
    every = [line for line in logfile.split_lines(found) if rank is None or line.rank == rank]
    last, cursor = logfile.read_last_lines(long, many, rank)
    assert last == (every[-many:] if many else [])
    assert cursor == long.stat().st_size - len(b'{"v":1,')


def test_a_job_without_output_has_no_last_lines(tmp_path):
    assert logfile.read_last_lines(tmp_path / "log.jsonl", 5) == ([], 0)
