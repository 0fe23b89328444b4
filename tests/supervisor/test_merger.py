"""More reports of metrics than a curve can show: the log grows slowly, and every curve is what it would have been."""

import dataclasses
import math
import random
import time

import pytest

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core.events import encode_number
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.supervisor import merger
from distdl_jupyter.supervisor.log_reader import RankReport
from distdl_jupyter.supervisor.recorder import EventRecorder
from tests.written import events_of

SPEC = JobSpec(id="20261121-024912-k3f9x", name="x", kind="function", created=1.0, process_count_per_node=4)
STREAMS = [Stream(-1, rank, "out") for rank in range(4)]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(merger, "_MAX_UNMERGED", 1500)


def metrics(folder):
    return [event for event in events_of(folder) if event["type"] == "metric"]


def curves(reports, restarts=()):
    """What curves show of (rank, step, values), but for the times."""
    book = SeriesBook()
    for number, (rank, step, values) in enumerate(reports):
        if number in restarts:
            book.apply({"type": "restart"})
        book.apply({"type": "metric", "t": 0.0, "rank": rank, "step": step, "values": values})
    return shown(book)


def shown(book):
    return {
        name: [
            [dataclasses.replace(row, time=0.0, mean=row.mean and round(row.mean, 9)) for row in band.rows],
            band.marks, book.count_points(name), repr(band.last), band.last_step,
            [(n.rank, n.steps, n.count, repr(n.last)) for n in book.get_curves(name)],
            [[value and round(value, 9) for value in one.values] for one in book.get_curves(name)],
        ]
        for name in book.names for band in (book.get_band(name),)
    }  # fmt: skip


def read_curves(folder):
    book = SeriesBook()
    for event in events_of(folder):
        book.apply(event)
    return shown(book)


def values_of(pick, step):
    values = {"loss": math.sin(step / 300) + pick.random(), "acc": pick.random()}
    if pick.random() < 0.01:
        values["loss"] = pick.choice([math.nan, math.inf, -math.inf])
    if step % 50 == 0:
        values["eval"] = pick.random()
    return values


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("disorder", [0.0, 0.02])
def test_curves_and_view_of_thinned_metrics_are_those_of_all(folder, ranks, disorder):
    pick, recorder, reports = random.Random(ranks), EventRecorder(folder, SPEC), []
    for step in range(12_000 // ranks):
        for rank in range(ranks):
            at = step - pick.randrange(500) if pick.random() < disorder else step
            reports.append((rank, at, values_of(pick, step)))
            values = {name: encode_number(value) for name, value in reports[-1][2].items()}
            recorder.take(STREAMS[rank], [RankReport({"type": "metric", "step": at, "values": values})])
    recorder.close()
    written = metrics(folder)
    assert len(written) < 0.9 * len(reports)
    assert sum(event.get("reports", 1) for event in written) == len(reports)
    assert read_curves(folder) == curves(reports)
    view = JobView.from_spec(SPEC)
    for event in events_of(folder):
        view.apply(event)
    assert view.to_json() == recorder.view.to_json()
    assert {name: one.count for name, one in view.metrics.items()} == {
        name: sum(name in values for *_, values in reports) for name in ("loss", "acc", "eval")
    }
    last = [values for rank, _, values in reports if rank == 0][-1]
    assert repr(view.metrics["loss"].values[0]) == repr(last["loss"])


def test_events_of_ten_times_as_many_reports_are_only_some_more(folder):
    recorder, counts = EventRecorder(folder, SPEC), []
    for step in range(100_000):
        recorder.record_metric(0, step, {"loss": step / 7})
        if step in (9999, 99_999):
            recorder.flush()
            counts.append(len(metrics(folder)))
    recorder.close()
    assert counts[0] < 6000
    assert counts[1] - counts[0] < 2 * 998 * 4, "two for each bucket, and four times the buckets become half as many"


def test_what_is_held_back_is_written_after_a_while_and_before_the_rank_ends_or_restarts(folder, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    recorder = EventRecorder(folder, SPEC)
    for step in range(3000):
        recorder.record_metric(0, step, {"loss": float(step)})

    def held():
        recorder.take_activity()
        for _ in range(3):
            recorder.record_metric(0, 2999, {"loss": 5.0})
        assert recorder.take_activity() == {0: True}, "held reports are signs of progress"
        return len(metrics(folder))

    before = held()
    recorder.tick()
    assert len(metrics(folder)) == before, "not yet"
    now[0] += merger._MAX_DELAY_SECONDS
    recorder.tick()
    assert len(metrics(folder)) == before + 1
    for write in (
        lambda: recorder.take(STREAMS[0], [RankReport({"type": "result", "ok": True, "repr": "1"})]),
        lambda: recorder.write("rank", rank=0, status="ended", code=1),
        lambda: recorder.write("restart", reason="it failed", rank=0),
    ):
        held()
        write()
        types = [event["type"] for event in events_of(folder)]
        assert types[-2] == "metric"
        assert metrics(folder)[-1]["reports"] == 3


def test_report_after_a_restart_replaces_what_was_reported_again(folder):
    recorder, reports = EventRecorder(folder, SPEC), []

    def report(step):
        reports.append((0, step, {"loss": float(step % 977)}))
        recorder.record_metric(*reports[-1])

    for step in range(20_000):
        report(step)
    recorder.write("restart", reason="it failed", rank=0)
    for step in range(12_345, 30_000):
        report(step)
    recorder.close()
    assert read_curves(folder) == curves(reports, restarts=[20_000])


def test_another_supervisor_goes_on_thinning(folder):
    reports = [(0, step, {"loss": float(step % 977)}) for step in range(20_000)]
    for part in (reports[:7000], reports[7000:]):
        recorder = EventRecorder(folder, SPEC)
        for event in events_of(folder):
            recorder.fold(event)
        for one in part:
            recorder.record_metric(*one)
        recorder.close()
    assert read_curves(folder) == curves(reports)
    assert len(metrics(folder)) < 8000
