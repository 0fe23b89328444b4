"""A job whose ranks use different amounts of memory, and what must be known of it on every kind of cluster."""

HELD = 100_000_000


def holds(seconds):
    import os
    import time

    held = bytearray(b"x" * (100_000_000 if os.environ["DISTDL_RANK"] == "1" else 1))
    time.sleep(seconds)
    return len(held)


def check(job, hosts):
    """Check that both ranks of a job that ran ``holds`` were sampled on their hosts, each once a moment."""
    table = job.resources()
    frame = table.to_pandas()
    assert not frame.duplicated(["time", "rank"]).any()
    last = frame.groupby("rank").last()
    assert list(last.index) == [0, 1]
    assert list(last["host"]) == hosts
    assert abs(last["memory"][1] - last["memory"][0] - HELD) < 0.1 * HELD
    assert (frame.groupby("rank")["cpu"].count() >= 2).all()
    assert (last["node_memory"] < last["node_limit"]).all()
