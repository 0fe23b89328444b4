"""Output and reports of ranks become events, within the limit of the log and at a limited rate."""

import dataclasses
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core import logfile
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.jobs.reader import JobReader
from distdl_jupyter.supervisor import recorder as under_test
from distdl_jupyter.supervisor import resume
from distdl_jupyter.supervisor.buffered_writer import BufferedEventWriter
from distdl_jupyter.supervisor.log_reader import LogText, RankReport
from distdl_jupyter.supervisor.recorder import EventRecorder
from tests.written import all_written, events_of, lines

OUT, ERR, LAUNCHER, KEPT = Stream(-1, 0, "out"), Stream(-1, 1, "err"), Stream(-1, None, "out"), Stream(-1, 0, "out", 10)


def spec(**changes):
    made = JobSpec(id="20261121-024912-k3f9x", name="x", kind="function", created=1.0, process_count_per_node=2)
    return dataclasses.replace(made, **changes)


def logs(folder):
    return [event["text"] for event in all_written(folder) if event["type"] == "log"]


def kinds(folder):
    return [event["type"] for event in all_written(folder)]


def metric(step, **values):
    return RankReport({"type": "metric", "step": step, "values": values or {"loss": 0.5}})


def metric_to(end, step):
    return metric(step)._replace(end=end)


def progress(done):
    return RankReport({"type": "progress", "done": done, "total": 100})


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20), min_size=1)),
       st.integers(1, 300))  # fmt: skip
def test_log_beyond_its_limit_keeps_the_first_and_the_last_lines_and_says_so_once(tmp_path_factory, texts, limit):
    folder = JobFolder(tmp_path_factory.mktemp("job"))
    recorder = EventRecorder(folder, spec(max_log_bytes=limit))
    recorder._part_bytes = part = max(1, limit // 4)
    for text in texts:
        recorder.take(OUT, [LogText("\n".join(text)), metric(1)])
    recorder.close()
    every = [line for text in texts for line in text]
    kept = [line for text in logs(folder) for line in text.split("\n")]
    notices = [line for line in kept if line.endswith("omitted; raise max_log_bytes to keep more")]
    missing = len(every) - len(kept) + len(notices)
    assert len(notices) == (missing > 0)
    first = kept.index(notices[0]) if notices else len(kept)
    last = kept[first + 1 :]
    assert kept[:first] == every[:first]
    assert last == every[len(every) - len(last) :]
    assert recorder.view.lines == len(every)
    if notices:
        assert notices[0].startswith(f"\u2026 {missing} line")
        assert sum(len(line.encode()) + 1 for line in every[: first + 1]) > limit // 2
        beyond = every[len(every) - len(last) - 1 :]
        assert sum(len(line.encode()) + 1 for line in beyond) > part
    notes = [event["code"] for event in all_written(folder) if event["type"] == "note"]
    assert notes == (["log-limit"] if missing else [])
    assert kinds(folder).count("metric") == len(texts)


def test_what_a_launcher_and_the_system_say_is_heard_and_written_beyond_the_limit(folder):
    recorder = EventRecorder(folder, spec(max_log_bytes=10))
    recorder.take(OUT, [LogText("y" * 50)])
    recorder.take(LAUNCHER, [LogText("rank 1 was killed")])
    recorder.log("2 ranks ended")
    recorder.close()
    assert recorder.launcher_output == ["rank 1 was killed\n"]
    assert logs(folder) == ["y" * 50, "rank 1 was killed", "2 ranks ended"]


def test_log_whose_parts_cannot_be_made_goes_on_where_it_is(folder):
    (folder.path / "parts").touch()
    recorder = EventRecorder(folder, spec(max_log_bytes=100))
    recorder._part_bytes = 25
    for n in range(50):
        recorder.take(OUT, [LogText(f"line {n}")])
    recorder.close()
    assert logs(folder) == [f"line {n}" for n in range(50)]


def test_progress_of_quick_succession_is_written_now_and_then_and_the_last_always(folder, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    recorder = EventRecorder(folder, spec())
    for n in range(50):
        recorder.take(OUT, [progress(n)])
        recorder.take(ERR, [progress(1000 + n)])
    now[0] += 0.05
    recorder.tick()
    assert kinds(folder) == ["progress", "progress"]
    now[0] += 0.06
    recorder.tick()
    recorder.take(OUT, [progress(77)])
    recorder.take(OUT, [RankReport({"type": "result", "ok": True, "repr": "1"})])
    told = [(event["type"], event["rank"], event.get("done")) for event in all_written(folder)]
    assert told == [
        ("progress", 0, 0), ("progress", 1, 1000), ("progress", 0, 49), ("progress", 1, 1049),
        ("progress", 0, 77), ("result", 0, None),
    ]  # fmt: skip
    recorder.take(OUT, [progress(78), progress(79)])
    recorder.close()
    assert recorder.view.done == 79
    assert kinds(folder).count("progress") == 6


def test_progress_of_a_long_job_is_written_less_often_and_each_report_is_a_sign_of_life(folder, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    recorder, signs = EventRecorder(folder, spec()), 0
    for hour in range(24):
        now[0] = 100.0 + 3600 * hour
        for n in range(600):
            now[0] += 0.1
            recorder.take(OUT, [progress(600 * hour + n)])
            signs += len(recorder.take_activity())
            recorder.tick()
    recorder.close()
    assert signs >= 24 * 600
    assert kinds(folder).count("progress") < 600 + 24 * 20
    assert recorder.view.done == 24 * 600 - 1


def test_what_a_kept_stream_says_carries_the_place_behind_it_also_when_it_is_written_later(folder):
    recorder = EventRecorder(folder, spec())
    recorder.take(KEPT, [progress(1)._replace(end=5), progress(2)._replace(end=9)])
    recorder.take(KEPT, [LogText("line", end=14), metric(1)._replace(end=20), metric(2)._replace(end=30)])
    recorder.close()
    found = all_written(folder)
    assert [(event["type"], event.get("at")) for event in found] == [
        ("progress", 15), ("metric", 30), ("metric", 40), ("log", 24), ("progress", 19),
    ]  # fmt: skip


def test_lines_are_counted_now_and_then_so_that_a_reader_need_not_read_all(folder, monkeypatch):
    monkeypatch.setattr(logfile, "COUNT_INTERVAL_BYTES", 5000)
    folder.spec_file.write_text(spec().dumps())
    recorder = EventRecorder(folder, spec())
    for number in range(1000):
        recorder.take(OUT, [LogText(f"line {number}\nof two"), LogText("x" * 40)])
    recorder.close()
    counted = [line["lines"] for line in lines(folder) if line["type"] == "count"]
    assert len(counted) == pytest.approx(3000 * 20 / 5000, abs=3)
    read, real = [], logfile.read_bytes
    monkeypatch.setattr(logfile, "read_bytes", lambda path, at, limit: read.append(at) or real(path, at, limit))
    reader = JobReader(folder)
    reader.check_writer = lambda **_: False
    assert reader.catch_up() == recorder.view
    assert min(read) > folder.log.stat().st_size / 2


def test_a_supervisor_that_died_between_its_two_files_leaves_each_line_and_each_report_once(folder, monkeypatch):
    """Of what came together the events are written first; what the log lacks is read once more."""
    kept = [LogText("one", end=4), metric_to(24, 1), LogText("two", end=28), metric_to(48, 2)]
    first = EventRecorder(folder, spec())
    first.take(KEPT, kept[:2])
    real = EventWriter.append_lines
    monkeypatch.setattr(BufferedEventWriter, "append_lines", lambda writer, file, lines: (
        real(writer, file, lines) if file is writer.events else None))  # fmt: skip
    first.take(KEPT, kept[2:])
    first._writer.close()
    monkeypatch.undo()
    history, second = resume.History(), EventRecorder(folder, spec())
    for event in events_of(folder):
        history.add(event)
        second.fold(event)
    for line in lines(folder):
        history.add(line)
        second.fold(line)
    second.continue_from(history)
    assert history.positions == {(0, "out"): KEPT.start + 4}
    again = [item for item in kept if KEPT.start + item.end > history.positions[0, "out"]]
    second.take(KEPT, again)
    second.take(KEPT, [metric_to(70, 3), LogText("three", end=76)])
    second.close()
    assert [line["text"] for line in lines(folder)] == ["one", "two", "three"]
    assert [event["step"] for event in events_of(folder) if event["type"] == "metric"] == [1, 2, 3]
    assert second.view.metrics["loss"].count == 3


def test_another_supervisor_goes_on_with_the_limit_and_with_the_connected_ranks(folder):
    def recorder():
        made = EventRecorder(folder, spec(max_log_bytes=200))
        made._part_bytes = 100
        for event in all_written(folder):
            made.fold(event)
        return made

    first = recorder()
    first.write("rank", rank=1, status="started", pid=77)
    first.write("rank", rank=1, status="ready")
    first.log("not counted " * 100)
    first.take(KEPT, [LogText("y" * 59, end=60)])
    first.close()
    second = recorder()
    assert (second.connected_ranks, second.ready_ranks) == ({1}, {1})
    assert second._free_bytes == 200 // 2 - 60
    second.take(KEPT, [LogText("z" * 39, end=100), LogText("a" * 49, end=150)])
    second.close()
    third = recorder()
    third.take(KEPT, [LogText("b" * 49, end=200), LogText("c" * 59, end=260), LogText("d" * 59, end=320)])
    third.close()
    assert len(logfile.list_parts(folder.log)) == 2
    fourth = recorder()
    assert fourth.view.lines == third.view.lines == 7
    fourth.take(KEPT, [LogText("e" * 39, end=360)])
    fourth.close()
    kept = [text[:8] for text in logs(folder)]
    assert kept == ["not coun", "y" * 8, "z" * 8, "\u2026 2 line", "c" * 8, "d" * 8, "e" * 8]
    assert kinds(folder).count("note") == 1


def test_a_stream_of_reports_alone_is_not_read_from_its_beginning_again(folder, monkeypatch):
    monkeypatch.setattr(under_test, "_POSITION_BYTES", 1000)
    recorder = EventRecorder(folder, spec())
    for step in range(100):
        recorder.take(KEPT, [metric_to(50 * step, step)])
    recorder.close()
    history = resume.History()
    for line in lines(folder):
        history.add(line)
    assert len(lines(folder)) == 4
    assert KEPT.start + 50 * 99 - 1100 < history.positions[0, "out"] <= KEPT.start + 50 * 99
