"""The rows of studies, made of those of their runs: for lists as text and for JupyterLab."""

import dataclasses
import time

from distdl_jupyter.core.events import State
from distdl_jupyter.jobs import study_rows
from distdl_jupyter.jobs.job_list import JobIndex
from distdl_jupyter.views.job_table import RowGroup
from tests.finished import job


def of(group, number, state=State.COMPLETED, **more):
    """Return the row of a run, which ended a while ago."""
    folder = job(number, state=state)
    row = next(one.row for one in JobIndex().read_all() if one.row.id == folder.id)
    return dataclasses.replace(row, group=group, ended=time.time() - 60, message="", **more)


def sweep(value):
    return RowGroup("sweep", "20261121-024912-sweep", "digits", 3, value, "acc", maximize=True)


def test_a_job_of_no_study_stays_as_it_is():
    row = of(None, 0)
    assert study_rows.list_studies([row]) == []
    assert study_rows.fold_rows([row]) == [row]


def test_a_sweep_is_one_row_in_the_place_of_its_newest_trial():
    other = of(None, 9)
    runs = [of(sweep(0.9), 3), of(sweep(0.7), 2), of(sweep(None), 1, State.CANCELED)]
    runs[2] = dataclasses.replace(runs[2], message="Pruned: lower than the median at step 3")
    (shown, rest) = study_rows.fold_rows([runs[0], other, *runs[1:]])
    assert rest is other
    assert study_rows.is_study(shown)
    assert not any(map(study_rows.is_study, runs))
    # Its folder is gone, so what is known stands in its trials.
    assert (shown.name, shown.state, shown.done, shown.total) == ("Sweep of digits", "completed", 3, 3)
    assert (shown.metric, shown.value, shown.message) == ("best acc", 0.9, "1 pruned")
    assert (shown.created, shown.ended) == (runs[-1].created, runs[0].ended)
    (shown,) = study_rows.list_studies(runs[:2])
    assert (shown.state, shown.message[:35]) == ("lost", "The folder of the sweep was deleted")


def scale(value):
    return RowGroup("scale", "20261121-024912-scale", "digits", 2, value)


def test_a_scaling_study_says_how_near_to_ideal_the_most_processes_come():
    runs = [of(scale(1500.0), 4, process_count_per_node=2), of(scale(1000.0), 2, process_count_per_node=1)]
    (shown,) = study_rows.list_studies(runs)
    assert (shown.name, shown.state, shown.done, shown.total) == ("Scaling of digits", "completed", 2, 2)
    assert (shown.metric, shown.value) == ("% of ideal", 75)
    (unlike,) = study_rows.list_studies([of(scale(3000.0), 7, process_count_per_node=2), runs[1]])
    assert (unlike.metric, unlike.value, unlike.done) == ("", None, 2)
    # The run with two processes is missing, and none follows: it was ended.
    (shown,) = study_rows.list_studies(runs[1:])
    assert (shown.state, shown.done, shown.ended) == ("canceled", 1, runs[1].ended)
    (shown,) = study_rows.list_studies([dataclasses.replace(runs[1], ended=time.time())])
    assert (shown.state, shown.ended) == ("running", None)
    (shown,) = study_rows.list_studies([of(scale(None), 5), runs[1]])
    assert (shown.state, "made too few steps" in shown.message) == ("failed", True)
