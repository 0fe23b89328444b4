"""Clusters, values and small curves as rows and sentences."""

import math

from distdl_jupyter.cluster_handles.status import ClusterStatus
from distdl_jupyter.clusters.base import NodeInfo
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views import clusters, curve
from distdl_jupyter.views.job_table import default_metric, sparkline
from distdl_jupyter.views.wire import finite, to_json


def reported(*values):
    """Return a view and the curves of a job of two ranks that report the same values."""
    view = JobView.of(JobSpec(id="20261121-024912-k3f9x", name="digits", process_count_per_node=2))
    book = SeriesBook()
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
    assert [finite(value) for value in (1.5, 0.0, None, math.nan, math.inf)] == [1.5, 0.0, None, None, None]
    assert to_json({1: (2.0, math.nan)}) == {"1": [2.0, None]}


def test_a_small_curve_has_the_newest_mean_last_and_needs_two_points():
    assert sparkline(None) == ()
    assert sparkline(reported(1.0)[0].metrics["loss"]) == ()
    assert sparkline(reported(1.0, 2.0, 3.00001)[0].metrics["loss"]) == (1.5, 2.5, 3.5)
    assert (default_metric(["accuracy", "val_loss"]), default_metric(["accuracy"]), default_metric([])) == (
        "val_loss",
        "accuracy",
        "",
    )


def test_the_table_of_a_curve_names_the_lowest_and_the_highest_rank():
    _, book = reported(1.0, 2.0)
    assert curve.table(book.band("loss")) == [
        ["1", "2.50", "2 (0)", "3 (1)"],
        ["0", "1.50", "1 (0)", "2 (1)"],
    ]


LAB = ClusterStatus(ClusterConfig("lab", "ssh"), nodes=(NodeInfo("a", gpus=2), NodeInfo("b", "down", "no answer")))
RENTED = ClusterStatus(
    ClusterConfig("ml", "azureml"), nodes=(NodeInfo("x", billed=True, cost_per_hour=1.05, currency="USD"),)
)


def test_clusters_have_a_column_of_costs_when_one_costs_something():
    assert clusters.cluster_rows([LAB]) == [
        ("Name", "Kind", "Nodes", "GPUs", "Problem"),
        ("lab", "ssh", "1 of 2 up", "2", "b: no answer"),
    ]
    assert clusters.cluster_rows([LAB, RENTED]) == [
        ("Name", "Kind", "Nodes", "GPUs", "Cost", "Problem"),
        ("lab", "ssh", "1 of 2 up", "2", "", "b: no answer"),
        ("ml", "azureml", "1 of 1 up", "0", "1 node costs money: 1.05 USD/h", ""),
    ]
