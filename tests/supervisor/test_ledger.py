"""What ranks say becomes events: up to the log's limit and not a byte more, and never too many."""

import dataclasses
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core import parts, snapshot
from distdl_jupyter.core.events import read_all
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.supervisor import ledger as under_test
from distdl_jupyter.supervisor import resume
from distdl_jupyter.supervisor.items import Report, Text
from distdl_jupyter.supervisor.ledger import Ledger

OUT, ERR, LAUNCHER, KEPT = Stream(-1, 0, "out"), Stream(-1, 1, "err"), Stream(-1, None, "out"), Stream(-1, 0, "out", 10)


def spec(**changes):
    made = JobSpec(id="20261121-024912-k3f9x", name="x", kind="function", created=1.0, process_count_per_node=2)
    return dataclasses.replace(made, **changes)


@pytest.fixture
def folder(tmp_path):
    return JobFolder(tmp_path)


def logs(folder):
    return [event["text"] for event in read_all(folder.events)[0] if event["type"] == "log"]


def kinds(folder):
    return [event["type"] for event in read_all(folder.events)[0]]


def metric(step, **values):
    return Report({"type": "metric", "step": step, "values": values or {"loss": 0.5}})


def progress(done):
    return Report({"type": "progress", "done": done, "total": 100})


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20), min_size=1)),
       st.integers(1, 300))  # fmt: skip
def test_log_beyond_its_limit_keeps_the_first_and_the_last_lines_and_says_so_once(tmp_path_factory, texts, limit):
    folder = JobFolder(tmp_path_factory.mktemp("job"))
    ledger = Ledger(folder, spec(max_log_bytes=limit))
    ledger._part_room = part = max(1, limit // 4)
    for text in texts:
        ledger.take(OUT, [Text("\n".join(text)), metric(1)])
    ledger.close()
    every = [line for text in texts for line in text]
    kept = [line for text in logs(folder) for line in text.split("\n")]
    notices = [line for line in kept if line.endswith("left out here; raise max_log_bytes to keep more")]
    missing = len(every) - len(kept) + len(notices)
    assert len(notices) == (missing > 0)
    first = kept.index(notices[0]) if notices else len(kept)
    last = kept[first + 1 :]
    assert kept[:first] == every[:first]
    assert last == every[len(every) - len(last) :]
    assert ledger.view.lines == len(every)
    if notices:
        assert notices[0].startswith(f"\u2026 {missing} line")
        assert sum(len(line.encode()) + 1 for line in every[: first + 1]) > limit // 2
        beyond = every[len(every) - len(last) - 1 :]
        assert sum(len(line.encode()) + 1 for line in beyond) > part
    notes = [event["code"] for event in read_all(folder.events)[0] if event["type"] == "note"]
    assert notes == (["log-limit"] if missing else [])
    assert kinds(folder).count("metric") == len(texts)


def test_what_a_launcher_and_the_system_say_is_heard_and_written_beyond_the_limit(folder):
    ledger, heard = Ledger(folder, spec(max_log_bytes=10)), []
    ledger.overheard = heard.append
    ledger.take(OUT, [Text("y" * 50)])
    ledger.take(LAUNCHER, [Text("rank 1 was killed")])
    ledger.say("2 ranks ended")
    ledger.close()
    assert heard == ["rank 1 was killed\n"]
    assert logs(folder) == ["y" * 50, "rank 1 was killed", "2 ranks ended"]


def test_a_line_that_is_drawn_over_counts_each_time_that_it_is_written(folder):
    ledger = Ledger(folder, spec(max_log_bytes=1000))
    ledger._part_room = 250
    for n in range(1, 200):
        ledger.take(ERR, [Text(f"bar {n}".ljust(99), redraws=n)])
    ledger.close()
    assert [text.split()[1] for text in logs(folder)] == ["1", "2", "3", "4", "5", "0", "196", "197", "198", "199"]


def test_log_whose_parts_cannot_be_made_goes_on_where_it_is(folder):
    (folder.path / "parts").touch()
    ledger = Ledger(folder, spec(max_log_bytes=100))
    ledger._part_room = 25
    for n in range(50):
        ledger.take(OUT, [Text(f"line {n}")])
    ledger.close()
    assert logs(folder) == [f"line {n}" for n in range(50)]


def test_progress_of_quick_succession_is_written_now_and_then_and_the_last_always(folder, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    ledger = Ledger(folder, spec())
    for n in range(50):
        ledger.take(OUT, [progress(n)])
        ledger.take(ERR, [progress(1000 + n)])
    now[0] += 0.05
    ledger.tick()
    assert kinds(folder) == ["progress", "progress"]
    now[0] += 0.06
    ledger.tick()
    ledger.take(OUT, [progress(77)])
    ledger.take(OUT, [Report({"type": "result", "ok": True, "repr": "1"})])
    told = [(event["type"], event["rank"], event.get("done")) for event in read_all(folder.events)[0]]
    assert told == [
        ("progress", 0, 0), ("progress", 1, 1000), ("progress", 0, 49), ("progress", 1, 1049),
        ("progress", 0, 77), ("result", 0, None),
    ]  # fmt: skip
    ledger.take(OUT, [progress(78), progress(79)])
    ledger.close()
    assert ledger.view.done == 79
    assert kinds(folder).count("progress") == 6


def test_what_a_kept_stream_says_carries_the_place_behind_it_also_when_it_is_written_later(folder):
    ledger = Ledger(folder, spec())
    ledger.take(KEPT, [dataclasses.replace(progress(1), end=5), dataclasses.replace(progress(2), end=9)])
    ledger.take(
        KEPT, [Text("line", end=14), dataclasses.replace(metric(1), end=20), dataclasses.replace(metric(2), end=30)]
    )
    ledger.close()
    found = read_all(folder.events)[0]
    assert [(event["type"], event.get("at")) for event in found] == [
        ("progress", 15), ("log", 24), ("metric", 40), ("metric", 40), ("progress", 19),
    ]  # fmt: skip


@pytest.mark.parametrize("report", [{"type": "metric"}, {"type": "metric", "step": 1, "values": {"a": []}},
                                    {"type": "metric", "step": 1, "values": 5}, {"type": "progress"}])  # fmt: skip
def test_a_report_that_is_none_ends_nothing(folder, report):
    ledger = Ledger(folder, spec())
    ledger.take(OUT, [Report(report), Text("after")])
    ledger.tick()
    ledger.close()
    assert kinds(folder) == ["log"]


def test_what_came_together_is_one_moment_and_the_view_is_what_a_reader_folds(folder):
    ledger = Ledger(folder, spec())
    ledger.take(OUT, [Text("a\nb"), *(metric(n, loss=n / 7, acc=float("inf")) for n in range(1000)), progress(3)])
    ledger.state(State.PREPARING)
    ledger.close()
    view = JobView.of(spec())
    for event in read_all(folder.events)[0]:
        view.apply(event)
    assert view.to_json() == ledger.view.to_json()
    assert folder.events.stat().st_size < 60_000


def test_the_view_is_kept_at_the_end_and_before_as_the_log_grows(folder, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    ledger = Ledger(folder, spec())
    ledger.take(OUT, [Text("x" * 60_000 + f"\n{n}") for n in range(5)])
    ledger.tick()
    assert snapshot.read(folder) is None, "it would cost more than it saves"
    now[0] += 5.1
    ledger.tick()
    view, cursor = snapshot.read(folder)
    assert (view.lines, cursor) == (10, folder.events.stat().st_size)
    ledger.take(OUT, [Text("last")])
    ledger.close()
    view, cursor = snapshot.read(folder)
    assert (view.to_json(), cursor) == (ledger.view.to_json(), folder.events.stat().st_size)
    assert json.loads(folder.snapshot.read_text())["cursor"] == cursor
    assert under_test._KEEP_SHARE < 1


def test_another_supervisor_goes_on_with_the_limit_and_with_who_has_greeted(folder):
    def ledger():
        made = Ledger(folder, spec(max_log_bytes=200))
        made._part_room = 100
        for event in read_all(folder.events)[0]:
            made.fold(event)
        return made

    first = ledger()
    first.write("rank", rank=1, status="started", pid=77)
    first.write("rank", rank=1, status="ready")
    first.say("not counted " * 100)
    first.take(KEPT, [Text("y" * 59, end=60)])
    first.close()
    second = ledger()
    assert (second.greeted, second.ready) == ({1}, {1})
    assert second._room == 200 // 2 - 60
    second.take(KEPT, [Text("z" * 39, end=100), Text("a" * 49, end=150)])
    second.close()
    third = ledger()
    third.take(KEPT, [Text("b" * 49, end=200), Text("c" * 59, end=260), Text("d" * 59, end=320)])
    third.close()
    assert len(parts.parts(folder.events)) == 2
    fourth = ledger()
    assert fourth.view.lines == third.view.lines == 7
    fourth.take(KEPT, [Text("e" * 39, end=360)])
    fourth.close()
    kept = [text[:8] for text in logs(folder)]
    assert kept == ["not coun", "y" * 8, "z" * 8, "\u2026 2 line", "c" * 8, "d" * 8, "e" * 8]
    assert kinds(folder).count("note") == 1


def test_of_a_long_past_only_what_matters_is_kept():
    past = resume.Past()
    past.add({"type": "handle", "data": {"hosts": []}, "nonce": "n"})
    for n in range(10_000):
        past.add({"type": "log", "rank": 0, "stream": "err", "at": n})
        past.add({"type": "metric", "rank": 1, "at": 2 * n})
        past.add({"type": "log", "rank": None, "stream": "sys", "at": 7})
    past.add({"type": "resume"})
    assert len(past.events) == 3
    assert resume.handle(past.events) == ({"hosts": []}, "n")
    assert resume.asked_for(past.events)
    assert past.positions == {(0, "err"): 9999, (1, "out"): 19_998, (-1, "sys"): 7}
