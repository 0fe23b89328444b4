"""``scale`` with real jobs on this machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from distdl_jupyter import jobs, scale, scaling
from distdl_jupyter.cli import main
from distdl_jupyter.core import user_settings
from distdl_jupyter.core.errors import InvalidSpec, JobFailed, JobNotFound, JobNotRunning, JobStillRunning
from distdl_jupyter.core.events import State
from distdl_jupyter.jobs import client, study_rows
from distdl_jupyter.node.devices import cores
from distdl_jupyter.studies.scaling import parse_counts
from tests.client import scaled
from tests.conftest import wait_for
from tests.tracking.endpoint import Endpoint

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"processes": []}, "processes"), ({"processes": [1, 1]}, "processes"), ({"processes": [0, 2]}, "processes"),
        ({"processes": [1, 2], "nodes": 2}, "nodes"), ({"processes": [1, 2], "nodes": [1]}, "nodes"),
        ({"processes": 5.0}, "processes"), ({"processes": ["a"]}, "processes"), ({"processes": [True]}, "processes"),
        ({"nodes": "2"}, "nodes"), ({"nodes": [1.0, 1, 1]}, "nodes"),
        ({"seconds": "10"}, "seconds"), ({"seconds": float("inf")}, "seconds"),
        ({"seconds": 0}, "seconds"), ({"np": 4}, "np"), ({"nnodes": 2}, "nnodes"), ({"backend": "torch"}, "backend"),
    ],
)  # fmt: skip
def test_invalid_studies_are_refused_before_the_start(distdl_home, given, field):
    with pytest.raises(InvalidSpec) as refused:
        scale(scaled.sleeps, **given)
    assert refused.value.field == field
    assert not jobs()


def test_a_function_that_trains_nothing_or_fails_fails_the_study(distdl_home):
    with pytest.raises(InvalidSpec, match="made too few steps to measure"):
        scale(scaled.returns, [1], backends="plain")
    assert (scaling().info.state, scaling().info.done, scaling().info.size) == (State.FAILED, 0, 1)
    assert "too few steps" in scaling().info.problem
    with pytest.raises(JobFailed, match="no such file of data"):
        scale(scaled.fails, [1], backends="plain")
    assert scaling().info.state is State.FAILED
    with pytest.raises(JobNotFound, match="Unknown scaling study xxxxx"):
        scaling("xxxxx")


def test_numbers_of_processes_are_parsed():
    assert parse_counts("1,2, 4") == [1, 2, 4]
    with pytest.raises(InvalidSpec, match="'1,b' is not a list of numbers of processes"):
        parse_counts("1,b")


def test_all_runs_have_equally_many_threads_per_process(distdl_home):
    """One process alone would otherwise use all cores, and each of several a part of them."""
    scale(scaled.sleeps, [1, 2], (0.005,), backends="torch", seconds=0.1, name="threads")
    runs = jobs()
    assert {job.spec.process_count for job in runs} == {1, 2}
    threads = {line.text for job in runs for line in job.logs() if line.text.startswith("threads ")}
    assert threads == {f"threads {max(1, cores() // 2)}"}


DRIVER = """
from distdl_jupyter import scale
from tests.client import scaled

def train(seconds):
    scaled.sleeps(seconds)

scale(train, [1, 2], (0.02,), backends="torch", seconds=3, environment_variables={"HUB_TOKEN": "abcdefgh123"})
"""


def test_a_study_whose_driver_is_killed_goes_on_with_what_is_missing(distdl_home, capsys, monkeypatch, tmp_path):
    """The function was known to the process that was killed alone."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    endpoint = Endpoint()
    user_settings.change_settings(address=endpoint.address.replace("http:", "json:"))
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], cwd=Path.cwd())
    try:
        wait_for(lambda: jobs() and jobs()[0].spec.process_count == 2 and jobs()[0].folder.steps.exists(), 120,
                 what="steps on two processes")  # fmt: skip
        with pytest.raises(JobStillRunning):
            scaling().resume()
    finally:
        driver.kill()
        driver.wait()
    cut, *measured = [job.wait(30) for job in jobs()]
    assert (cut.state, cut.view().reason) == (State.CANCELED, "The process that measured it has ended.")
    monkeypatch.setattr(study_rows, "_NEXT_RUN_SECONDS", 0.0)  # no other run is expected
    found = scaling()
    assert (found.info.state, found.info.done, found.points[0].processes) == (State.CANCELED, 1, 1)
    assert len(jobs()) == found.info.runs == 1 + len(measured)
    assert [row.group.value is None for row in client.list_rows()] == [True, *[False] * len(measured)]
    wait_for(lambda: endpoint.posts, what="the message that its driver could not send")
    title = json.loads(endpoint.posts[0][2])["title"]
    assert title == f"Scaling of train ({found.id.rpartition('-')[2]}): canceled"
    with pytest.raises(InvalidSpec, match="HUB_TOKEN was set for job"):
        found.resume()
    assert len(jobs()) == found.info.runs
    monkeypatch.setenv("HUB_TOKEN", "abcdefgh123")
    assert main(["scale", "--resume", found.id]) == 0
    assert capsys.readouterr().out.startswith(f"Scaling of train ({found.id}): completed")
    again = scaling(found.id)
    assert (again.info.state, again.info.done, again.info.size) == (State.COMPLETED, 2, 2)
    assert again.points[0] == found.points[0]
    new = jobs()[: -found.info.runs]
    assert [job.id for job in jobs()[len(new) :]] == [cut.id, *(job.id for job in measured)]
    assert {job.spec.process_count for job in new} == {2}
    assert len(new) == 1
    assert {job.spec.group.id for job in new} == {found.id}
    assert {row.state for row in study_rows.list_studies(client.list_rows())} == {"completed"}
    with pytest.raises(JobNotRunning, match="All 2 points"):
        again.resume()
    wait_for(lambda: len(endpoint.posts) > 1, what="the message of its end")
    assert json.loads(endpoint.posts[1][2])["type"] == "success"
    endpoint.close()
