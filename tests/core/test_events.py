"""The rules of the event log."""

import contextlib
import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core import logfile
from distdl_jupyter.core.events import encode, read, read_all
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.logfile import EventWriter


@pytest.fixture
def log(tmp_path):
    return tmp_path / "events.jsonl"


def write_some(log, count=20):
    writer = EventWriter(log)
    for step in range(count):
        writer.write("metric", rank=0, step=step, values={"loss": step / 3, "größe": math.nan})
    writer.close()


def test_a_reader_sees_exactly_the_whole_lines_at_every_cut_point(log, tmp_path):
    write_some(log, 6)
    data = log.read_bytes()
    whole = list(data.splitlines(keepends=True))
    cut = tmp_path / "cut.jsonl"
    for length in range(len(data) + 1):
        cut.write_bytes(data[:length])
        complete, total = 0, 0
        for line in whole:
            if total + len(line) > length:
                break
            complete, total = complete + 1, total + len(line)
        found, cursor = read(cut)
        assert len(found) == complete
        assert cursor == total


def test_reading_on_from_any_cursor_loses_and_repeats_nothing(log):
    write_some(log, 30)
    expected, end = read_all(log)
    for limit in (1, 7, 100, 10_000):
        found, cursor = [], 0
        while True:
            more, after = read(log, cursor, limit)
            if after == cursor:
                break
            found += more
            cursor = after
        assert found == expected
        assert cursor == end == log.stat().st_size


def test_a_torn_tail_is_ended_by_the_next_writer_and_skipped_by_readers(log):
    write_some(log, 3)
    with log.open("ab") as file:
        file.write(b'{"v":1,"t":1.0,"type":"sta')
    assert len(read_all(log)[0]) == 3
    write_some(log, 2)
    assert len(read_all(log)[0]) == 5


def test_numbers_that_are_not_finite_survive_as_strict_json(log):
    writer = EventWriter(log)
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.1}
    writer.write("metric", rank=0, step=1, values=values)
    writer.close()

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    line = json.loads(log.read_text(), parse_constant=refuse)
    back = {name: float(value) for name, value in line["values"].items()}
    assert math.isnan(back["a"])
    assert (back["b"], back["c"], back["d"]) == (math.inf, -math.inf, 0.1)


def test_a_number_that_is_not_finite_elsewhere_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"type": "progress", "done": math.inf})


@given(st.text(), st.integers(), st.lists(st.text()))
def test_any_text_stays_one_line(text, number, words):
    line = encode({"type": "note", "text": text, "n": number, "words": words})
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line) == {"type": "note", "text": text, "n": number, "words": words}


def test_invalid_lines_are_skipped(log):
    log.write_bytes(b'[1]\nnull\n{"type":3}\n\xff\xfe\n\n{"type":"future","t":1,"new":[]}\n')
    assert [event["type"] for event in read_all(log)[0]] == ["future"]


def test_printed_lines_are_in_their_own_file(log):
    writer = EventWriter(log)
    writer.write("state", state="running", reason='"type":"log"')
    with writer.batch_events():
        writer.write("log", rank=0, stream="out", text='{"v":1,"t":1,"type":"metric"}')
        writer.write("handle", cluster="ssh", data={"type": "log"})
        writer.write("mark", rank=0, stream="out", cell=1, label="a cell", ended=False)
        writer.write("log", rank=1, stream="err", text="end")
    writer.close()
    found, end = read(log)
    assert [event["type"] for event in found] == ["state", "handle"]
    assert end == log.stat().st_size
    lines, end = logfile.read(log.with_name("log.jsonl"))
    assert [line["type"] for line in lines] == ["log", "mark", "log"]
    assert end == log.with_name("log.jsonl").stat().st_size
    assert len(log.with_name("log.jsonl").read_bytes().splitlines()) == 3


def test_a_restart_is_written_to_the_log_too(log):
    writer = EventWriter(log)
    writer.write("restart", reason="", rank=0)
    writer.close()
    assert [event["type"] for event in read(log)[0]] == ["restart"]
    assert [line["type"] for line in logfile.read(log.with_name("log.jsonl"))[0]] == ["attempt"]


def test_the_lock_goes_over_to_a_child_without_a_free_moment_and_is_free_after_kill(tmp_path):
    path = tmp_path / "lock"
    lock = JobLock.acquire(path)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('here', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(lock.fd,),
    )
    child.stdout.readline()
    lock.release()
    assert JobLock.acquire(path) is None, "the child holds it"
    child.kill()
    child.communicate()
    free = JobLock.acquire(path)
    assert free is not None
    free.release()


def test_half_a_surrogate_pair_is_kept(log):
    event = {"type": "note", "text": "path \ud83d end"}
    log.write_bytes(encode(event))
    assert read(log)[0] == [event]


NAMES = st.text(max_size=5)
NUMBERS = st.floats(width=32)
WRITTEN = st.one_of(
    st.tuples(st.just("log"), st.integers(0, 2), st.text(max_size=40)),
    st.tuples(st.just("metric"), st.integers(0, 2), st.dictionaries(NAMES, NUMBERS, min_size=1, max_size=3)),
    st.tuples(st.just("note"), st.integers(0, 2), st.text(max_size=40)),
)


def write_one(writer, kind, rank, what, step):
    if kind == "metric":
        return writer.write("metric", rank=rank, step=step, values=what, at=step)
    return writer.write(kind, rank=rank, text=what)


def as_read(event):
    """What a reader gets: numbers that are not finite as words."""
    return json.loads(encode(event))


@given(st.lists(st.lists(WRITTEN, max_size=8), max_size=6))
def test_events_written_together_are_read_as_those_written_alone(tmp_path_factory, batches):
    log = tmp_path_factory.mktemp("log") / "events.jsonl"
    writer, written = EventWriter(log), []
    for batch in batches:
        with writer.batch_events():
            written += [write_one(writer, *one, len(written) + n) for n, one in enumerate(batch)]
        written += [write_one(writer, *one, len(written) + n) for n, one in enumerate(batch[:1])]
    writer.close()
    for found, cursor, file, kinds in (
        (*read(log), writer.events, ("metric", "note")),
        (*logfile.read(log.with_name("log.jsonl")), writer.log, ("log",)),
    ):
        assert found == [as_read(event) for event in written if event["type"] in kinds]
        assert cursor == file.size


def test_a_batch_is_written_even_if_its_writer_fails(log):
    writer = EventWriter(log)

    def interrupted():
        with writer.batch_events():
            writer.write("note", text="first")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    writer.write("note", text="second")
    writer.close()
    assert [event["text"] for event in read(log)[0]] == ["first", "second"]


def test_the_end_of_a_long_log_is_read_from_a_line_s_begin(log):
    writer = EventWriter(log)
    starts = []
    for step in range(40):
        starts.append(writer.log.size)
        writer.write("log", rank=0, text="x" * (step * 7919 % 100_000))
    writer.close()
    log = log.with_name("log.jsonl")
    for near in (*range(0, starts[-1], 9973), *starts, starts[-1] + 50):
        begin = logfile.find_line(log, near, log.stat().st_size)
        assert begin == min((at for at in starts if at >= near), default=log.stat().st_size)
    assert len(logfile.read(log, logfile.find_line(log, starts[36] + 1, log.stat().st_size))[0]) == 3


@pytest.mark.parametrize("together", [False, True])
def test_essential_events_are_synced_to_disk_at_once(tmp_path, monkeypatch, together):
    writer, synced = EventWriter(tmp_path / "events.jsonl"), []
    monkeypatch.setattr(logfile, "_sync", lambda fd: synced.append(os.fstat(fd).st_size))
    for type_, fields in (
        ("state", {"state": "running", "reason": ""}),
        ("log", {"rank": 0, "stream": "out", "text": "state"}),
        ("handle", {"cluster": "local", "data": {}, "nonce": ""}),
        ("result", {"rank": 0, "ok": True, "repr": ""}),
        ("state", {"state": "completed", "reason": ""}),
    ):
        before = len(synced)
        with writer.batch_events() if together else contextlib.nullcontext():
            writer.write(type_, **fields)
        kept = type_ in ("handle", "result") or fields.get("state") == "completed"
        assert synced[before:] == ([writer.events.size] if kept else [])
    writer.close()
