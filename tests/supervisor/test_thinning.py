"""More reports of metrics than a curve can show: the log grows slowly; counts, last values and NaN marks stay exact."""

import math
import random
import time

import pytest

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core.series import MetricStore
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.supervisor import reports
from distdl_jupyter.supervisor.log_reader import RankReport
from distdl_jupyter.supervisor.recorder import EventRecorder
from tests.written import events_of

SPEC = JobSpec(id="20261121-024912-k3f9x", name="x", kind="function", created=1.0, process_count_per_node=4)
STREAMS = [Stream(-1, rank, "out") for rank in range(4)]


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(reports, "_MAX_UNTHINNED", 1500)


def metrics(folder):
    return [event for event in events_of(folder) if event["type"] == "metric"]


def values_of(pick, step):
    values = {"loss": math.sin(step / 300) + pick.random(), "acc": pick.random()}
    if pick.random() < 0.01:
        values["loss"] = pick.choice([math.nan, math.inf, -math.inf])
    if step % 50 == 0:
        values["eval"] = pick.random()
    return values


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("disorder", [0.0, 0.02])
def test_counts_and_last_values_of_thinned_metrics_are_exact(folder, clock, ranks, disorder):
    pick, recorder, reports = random.Random(ranks), EventRecorder(folder, SPEC), []
    for step in range(12_000 // ranks):
        clock[0] += 0.002
        for rank in range(ranks):
            at = step - pick.randrange(500) if pick.random() < disorder else step
            reports.append((rank, at, values_of(pick, step)))
            values = {name: value if math.isfinite(value) else str(value) for name, value in reports[-1][2].items()}
            recorder.take(STREAMS[rank], [RankReport({"type": "metric", "step": at, "values": values})])
    recorder.close()
    written = metrics(folder)
    assert len(written) < 0.5 * len(reports)
    assert sum(event.get("reports", 1) for event in written) == len(reports)
    view = JobView.from_spec(SPEC)
    for event in events_of(folder):
        view.apply(event)
    assert repr(view) == repr(recorder.view)
    assert {name: one.count for name, one in view.metrics.items()} == {
        name: sum(name in values for *_, values in reports) for name in ("loss", "acc", "eval")
    }
    for rank in range(ranks):
        last = [values for other, _, values in reports if other == rank][-1]
        assert repr(view.metrics["loss"].values[rank]) == repr(last["loss"])
    # Metrics that are reported rarely, and beside the others, are not thinned.
    evaluated = sorted((event["rank"], event["step"]) for event in written if "eval" in event["values"])
    assert evaluated == sorted((rank, at) for rank, at, values in reports if "eval" in values)


def test_the_first_value_that_is_not_finite_is_not_omitted(folder, clock):
    recorder = EventRecorder(folder, SPEC)
    for step in range(10_000):
        clock[0] += 0.002
        recorder.record_metric(0, step, {"loss": math.nan if step >= 7777 else 1.0})
    recorder.close()
    book = MetricStore()
    for event in events_of(folder):
        book.apply(event)
    assert min(mark.step for mark in book.get("loss").get_band().marks) == 7777


def test_events_of_ten_times_as_many_reports_are_only_some_more(folder, clock):
    recorder, counts = EventRecorder(folder, SPEC), []
    for step in range(100_000):
        clock[0] += 0.01
        recorder.record_metric(0, step, {"loss": step / 7})
        if step in (9999, 99_999):
            recorder.flush()
            counts.append(len(metrics(folder)))
    recorder.close()
    assert counts[0] < 2500
    assert counts[1] - counts[0] < 2500, "one in a thousandth of the time so far"


def test_what_is_held_back_is_written_after_a_while_and_before_the_rank_ends_or_restarts(folder, clock):
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
    clock[0] += reports._MAX_PAUSE_SECONDS
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


def test_another_supervisor_continues_to_thin(folder, clock):
    reports = [(0, step, {"loss": float(step % 977)}) for step in range(20_000)]
    for part in (reports[:7000], reports[7000:]):
        recorder = EventRecorder(folder, SPEC)
        for event in events_of(folder):
            recorder.fold(event)
        for one in part:
            clock[0] += 0.002
            recorder.record_metric(*one)
        recorder.close()
    written = metrics(folder)
    assert sum(event.get("reports", 1) for event in written) == len(reports)
    assert written[-1]["step"] == 19_999
    assert len(written) < 3000
