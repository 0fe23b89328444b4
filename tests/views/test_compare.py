"""Jobs side by side: their curves, and the options that differ."""

import dataclasses
import json
from itertools import combinations

import plotly.graph_objects as go

from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.spec import Captured, CodeSource, JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views import compare
from distdl_jupyter.views.wire import to_json


def subject(id_, metrics=(), state="completed", seconds=60.0, **changes):
    changes.setdefault("name", "digits")
    spec = JobSpec(id=f"20261121-024900-{id_}", created=1000.0,
                   source=CodeSource(notebook="/x/quickstart.ipynb", execution_count=7), **changes)  # fmt: skip
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
    return {row.field: row for row in compare.differing_rows(subjects)}


def test_only_what_differs_is_side_by_side():
    batch = lambda n: (Captured(name="batch", kind="value", detail=f"int = {n}", size=5),)  # noqa: E731
    one = subject("aaaaa", captured=batch(32))
    two = subject("bbbbb", process_count_per_node=2, distributed_backend="horovod-gloo", captured=batch(64))
    found = lines([one, two])
    assert found["process_count"].values == ("1 process", "1 × 2 = 2 processes")
    assert found["distributed_backend"].values == ("plain", "horovod-gloo")
    assert (found["captured.batch"].label, found["captured.batch"].values) == ("batch", ("32", "64"))
    assert found.keys() == {"process_count", "distributed_backend", "captured.batch"}
    assert lines([one, one]) == {}


def test_the_metric_to_begin_with_is_the_loss_that_most_jobs_have():
    jobs = [subject("aaaaa", [{"aux_loss": 1.0, "accuracy": 0.5}]), subject("bbbbb", [{"accuracy": 0.6, "loss": 2.0}]),
            subject("ccccc", [{"loss": 3.0}])]  # fmt: skip
    assert compare.metric_names(jobs) == ("accuracy", "loss", "aux_loss")
    assert compare.most_reported_metric(jobs) == "loss"
    assert compare.most_reported_metric([subject("aaaaa")]) == ""


def test_each_job_is_one_line_of_means_in_the_given_order():
    one = subject("aaaaa", [{"loss": 2.0 - step / 100} for step in range(100)])
    two = subject("bbbbb", [{"loss": 3.0} for _ in range(10)], process_count_per_node=2)
    curve = compare.compared_curve([one, two], "loss")
    assert curve.summary == "Curves of loss: aaaaa ends at 1.01 after 99 steps, bbbbb ends at 3 after 9 steps"
    assert [trace["name"] for trace in curve.data] == ["digits aaaaa", "digits bbbbb"]
    assert [len(trace["x"]) for trace in curve.data] == [100, 10]
    assert curve.layout["showlegend"]
    assert (curve.mode, curve.count) == ("compare", 120)
    json.dumps(to_json(dataclasses.asdict(curve)), allow_nan=False)


def test_twelve_jobs_are_all_told_apart_and_four_by_colour_alone_and_dash_alone():
    looks = [(one["color"], one["dash"]) for one in map(compare.style, range(12))]
    assert len(set(looks)) == 12
    for one, other in combinations(looks[:4], 2):
        assert one[0] != other[0]
        assert one[1] != other[1]


def test_jobs_without_the_metric_or_with_nothing_finite_have_an_empty_line():
    nothing, nan = subject("aaaaa"), subject("bbbbb", [{"loss": float("nan")}] * 3)
    curve = compare.compared_curve([nothing, nan], "loss")
    assert curve.data[0]["x"] == []
    assert all(value is None for value in curve.data[1]["y"])
    assert compare.compared_curve([nothing], "").summary == "Curves of no metric: no values yet"
    go.Figure(data=curve.data, layout=curve.layout)


def test_a_name_is_text():
    curve = compare.compared_curve([subject("aaaaa", [{"loss": 1.0}], name="<b>x</b>")], "loss")
    assert "<b>x" not in curve.data[0]["name"]
