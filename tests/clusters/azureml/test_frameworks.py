"""TensorFlow and Ray on Azure ML, which has a distribution of its own for each."""

import pytest

from distdl_jupyter.core.state import State
from tests.clusters.azureml.test_azureml import events, lines, submit
from tests.frameworks import RAY, TENSORFLOW

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def own_names(tmp_path, monkeypatch):
    """The cluster's name is known to one test alone: each has another image."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "configuration"))


def asked(ml):
    return next(iter(ml.jobs.values())).properties["distribution"]


def test_tensorflow_trains_as_azures_own_workers(ml):
    results = submit(ml, TENSORFLOW, backend="tensorflow").wait(240).results()
    assert asked(ml) == {"distributionType": "TensorFlow", "parameterServerCount": 0, "workerCount": 2}
    assert [one["rank"] for one in results] == [0, 1]
    assert [one["total"] for one in results] == [3.0, 3.0]


def test_an_image_that_is_known_to_lack_the_framework_is_not_sent_for(ml):
    job = submit(ml, TENSORFLOW, backend="tensorflow", options={"environment": "generated"}).wait(60)
    assert job.state is State.FAILED
    assert "tensorflow is not in the generated image" in job.view().reason
    assert ml.jobs == {}


def test_ray_runs_the_code_on_the_head_and_the_other_nodes_lend(ml):
    job = submit(ml, RAY, backend="ray").wait(400)
    assert asked(ml)["distributionType"] == "Ray"
    results = job.results()
    assert results[0] == {"squares": [0, 1, 4, 9], "nodes": 2}
    assert results[1:] == [None]
    assert [event["rank"] for event in events(job) if event["type"] == "rank" and event["status"] == "ready"] == [1, 0]
    assert {event["rank"]: event["code"] for event in events(job)
            if event["type"] == "rank" and event["status"] == "ended"} == {0: 0, 1: 0}  # fmt: skip
    assert lines(job, 1) == []
