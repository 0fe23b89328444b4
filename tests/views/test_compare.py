"""Jobs side by side: what differs, what is best, and that nothing is said which was not measured."""

import dataclasses
import json

import pytest

from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.spec import Captured, JobSpec, Source
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views import compare
from distdl_jupyter.views.wire import to_json


def subject(id_, metrics=(), state="completed", seconds=60.0, **changes):
    spec = JobSpec(id=f"20261121-024900-{id_}", name="digits", created=1000.0,
                   source=Source(notebook="/x/quickstart.ipynb", execution_count=7), **changes)  # fmt: skip
    view, book = JobView.of(spec), SeriesBook()
    events = [{"type": "state", "t": 1001.0, "state": "running"}]
    for step, values in enumerate(metrics):
        events += [{"type": "metric", "t": 1002.0 + step, "rank": r, "step": step, "values": values}
                   for r in range(spec.process_count)]  # fmt: skip
    if state != "running":
        events.append({"type": "state", "t": 1000.0 + seconds, "state": state, "reason": ""})
    for event in events:
        view.apply(event)
        book.apply(event)
    return compare.ComparedJob(spec, view, book)


def lines(subjects):
    return {row.field: row for row in compare.comparison_rows(subjects, now=1100.0)}


def test_what_was_asked_is_side_by_side_and_says_what_differs():
    batch = lambda n: (Captured(name="batch", kind="value", detail=f"int = {n}", size=5),)  # noqa: E731
    one = subject("aaaaa", captured=batch(32))
    two = subject("bbbbb", process_count_per_node=2, distributed_backend="horovod-gloo", captured=batch(64))
    found = lines([one, two])
    assert found["process_count"].values == ("1 process", "1 × 2 = 2 processes")
    assert found["distributed_backend"].values == ("plain", "horovod-gloo")
    assert (found["captured.batch"].label, found["captured.batch"].values) == ("batch", ("32", "64"))
    assert {name for name, row in found.items() if row.differs} == {
        "process_count", "distributed_backend", "captured.batch",
    }  # fmt: skip
    assert found["source"].values == ("cell [7], quickstart.ipynb",) * 2
    assert {row.best for row in found.values() if row.section == "Spec"} == {None}
    assert "name" not in found


def test_the_best_is_the_lowest_loss_the_highest_accuracy_the_shortest_time():
    one = subject("aaaaa", [{"train/loss": 0.5, "val_accuracy": 0.9, "lr": 0.1}], seconds=80)
    two = subject("bbbbb", [{"train/loss": 0.4, "val_accuracy": 0.8, "lr": 0.2}], seconds=90)
    found = lines([one, two])
    assert (found["metric.train/loss"].values, found["metric.train/loss"].best) == (("0.500", "0.400"), 1)
    assert (found["metric.val_accuracy"].label, found["metric.val_accuracy"].best) == ("Final val_accuracy", 0)
    assert (found["metric.lr"].differs, found["metric.lr"].best) == (True, None)
    assert (found["elapsed"].values, found["elapsed"].best) == (("1 min 20 s", "1 min 30 s"), 0)


def test_nothing_is_best_alone_in_a_tie_or_among_jobs_that_did_not_finish():
    assert lines([subject("aaaaa", [{"loss": 0.5}])])["metric.loss"].best is None
    tie = lines([subject("aaaaa", [{"loss": 0.5}]), subject("bbbbb", [{"loss": 0.5}])])
    assert (tie["metric.loss"].best, tie["metric.loss"].differs) == (None, False)
    unfinished = lines([subject("aaaaa", state="failed", seconds=5), subject("bbbbb")])
    assert (unfinished["elapsed"].best, unfinished["state"].values) == (None, ("Failed", "Completed"))
    nan = lines([subject("aaaaa", [{"loss": float("nan")}]), subject("bbbbb", [{"loss": 0.5}])])
    assert (nan["metric.loss"].values, nan["metric.loss"].best) == (("nan", "0.500"), None)


def test_a_value_that_a_job_has_not_is_empty_and_lines_without_any_are_left_out():
    found = lines([subject("aaaaa", [{"loss": 0.5}]), subject("bbbbb", [{"accuracy": 0.5}]), subject("ccccc")])
    assert found["metric.loss"].values == ("0.500", "", "")
    assert found["step"].values == ("0", "0", "")
    assert "reason" not in found


@pytest.mark.parametrize(
    ("name", "better"),
    [("loss", "min"), ("val_loss", "min"), ("eval/loss", "min"), ("RMSE", "min"), ("perplexity", "min"),
     ("acc", "max"), ("top1 acc", "max"), ("F1", "max"), ("mAP", "max"), ("lr", ""), ("accelerations", ""),
     ("grad_norm", ""), ("samples/s", ""), ("closs", "min")],
)  # fmt: skip
def test_which_way_is_better_is_only_said_where_the_name_does(name, better):
    found = compare._better_choice(name)
    assert (found.__name__ if found else "") == better


def test_the_metric_to_begin_with_is_the_loss_that_most_jobs_have():
    jobs = [subject("aaaaa", [{"aux_loss": 1.0, "accuracy": 0.5}]), subject("bbbbb", [{"accuracy": 0.6, "loss": 2.0}]),
            subject("ccccc", [{"loss": 3.0}])]  # fmt: skip
    assert compare.metric_names(jobs) == ("accuracy", "loss", "aux_loss")
    assert compare.chosen_metric(jobs, "") == "loss"
    assert compare.chosen_metric(jobs, "accuracy") == "accuracy"
    assert compare.chosen_metric([subject("aaaaa")], "") == ""


def test_the_curve_is_told_in_words_and_as_a_table():
    one = subject("aaaaa", [{"loss": 2.0 - step / 100} for step in range(100)])
    two = subject("bbbbb", [{"loss": 3.0} for _ in range(10)])
    curve = compare.compared_curve([one, two], "loss", against="elapsed")
    assert curve.summary == "Curves of loss: aaaaa ends at 1.01 after 99 steps, bbbbb ends at 3 after 9 steps"
    assert len(curve.table) == 24
    assert curve.table[0] == ("1.0 s", "2", "3")  # since the start
    assert curve.table[-1][1:] == ("1.01", "")
    assert (curve.mode, curve.count) == ("compare", 110)
    json.dumps(to_json(dataclasses.asdict(curve)), allow_nan=False)


def test_jobs_without_any_metric_compare_all_the_same():
    curve = compare.compared_curve([subject("aaaaa"), subject("bbbbb", state="running")], "")
    assert curve.summary == "Curves of no metric: no values yet"
    assert curve.table == ()
    assert lines([subject("aaaaa"), subject("bbbbb", state="running")])["elapsed"].values == ("1 min", "1 min 40 s")
