"""Values and small curves as rows and sentences."""

import math

from distdl_jupyter.core.series import MetricStore
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views import curve
from distdl_jupyter.views.job_table import choose_metric, make_sparkline
from distdl_jupyter.views.wire import to_finite, to_json


def reported(*values):
    """Return a view and the curves of a job of two ranks that report the same values."""
    view = JobView.from_spec(JobSpec(id="20261121-024912-k3f9x", name="digits", process_count_per_node=2))
    book = MetricStore()
    for step, value in enumerate(values):
        for rank in range(2):
            event = {
                "t": step + rank / 10,
                "type": "metric",
                "rank": rank,
                "step": step,
                "values": {"loss": value + rank},
            }
            view.apply(event)
            book.apply(event)
    return view, book


def test_only_finite_numbers_have_a_place_in_json():
    assert [to_finite(value) for value in (1.5, 0.0, None, math.nan, math.inf)] == [1.5, 0.0, None, None, None]
    assert to_json({1: (2.0, math.nan)}) == {"1": [2.0, None]}


def test_a_small_curve_has_the_newest_mean_last_and_needs_two_points():
    assert make_sparkline(None) == ()
    assert make_sparkline(reported(1.0)[0].metrics["loss"]) == ()
    assert make_sparkline(reported(1.0, 2.0, 3.00001)[0].metrics["loss"]) == (1.5, 2.5, 3.5)
    assert (choose_metric(["accuracy", "val_loss"]), choose_metric(["accuracy"]), choose_metric([])) == (
        "val_loss",
        "accuracy",
        "",
    )


def test_a_curve_in_words():
    assert curve.summarize("loss", reported(1.0, 3.0, 2.0)[1].get("loss").get_band()) == (
        "Curve of loss over 2 steps: from 1.50 to 2.50, lowest 1, highest 4"
    )
    assert curve.summarize("loss", MetricStore().get("loss").get_band()) == "Curve of loss: no values yet"
