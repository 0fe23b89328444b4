"""A launcher that does not end with its ranks is ended; its exits are told all the same."""

import os
import sys
from pathlib import Path

from distdl_jupyter.clusters.agents import run as agent_run
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core import registry
from distdl_jupyter.core.plan import LaunchCommand, Plan
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, create_id
from tests.conftest import wait_for


def started(*launcher):
    cluster = registry.get("clusters", "local")
    folder = JobStore().publish(JobStore().prepare(create_id()))
    spec = JobSpec(id=folder.id, name="n", python=sys.executable, working_directory=str(folder.path))
    own = {"DISTDL_JOB_ID": folder.id, "DISTDL_JOB_DIR": str(folder.path)}
    context = Context(folder, own, dict(os.environ))
    placement = cluster.place(spec, 0, None, context)
    plan = Plan(({},), launcher=LaunchCommand(launcher, lambda _text: None))
    return cluster.start(spec, placement, plan, context)


def test_a_launcher_that_goes_on_after_its_last_rank_is_ended(monkeypatch):
    monkeypatch.setattr(agent_run, "_IDLE_SECONDS", 0.1)
    monkeypatch.setattr(agent_run, "_COUNT_SECONDS", 0.05)
    # The rank finds no payload, so it ends by itself; a moment before that it is seen.
    run = started("/bin/sh", "-c", '"$@"; sleep 600', "sh")
    (only,) = wait_for(run.poll)
    assert (only.rank, only.code) == (0, 137)
    assert only.evidence == "The launcher kept running after its last rank had ended, so it was stopped."
    assert run.list_alive() == []
    run.close()


def test_a_launcher_that_takes_its_time_before_the_first_rank_is_left_alone(monkeypatch):
    monkeypatch.setattr(agent_run, "_IDLE_SECONDS", 0.1)
    monkeypatch.setattr(agent_run, "_COUNT_SECONDS", 0.05)
    run = started("/bin/sh", "-c", "sleep 2; exit 4", "sh")
    (only,) = wait_for(run.poll)
    assert (only.code, only.evidence) == (4, "The launcher exited with code 4.")
    run.close()


def test_a_launcher_begins_where_the_job_does_and_what_it_says_is_read_without_waiting():
    run = started("/bin/sh", "-c", "pwd >where; exit 4", "sh")
    wait_for(run.poll)
    place = Path(run._nodes.nodes[0].directory)
    assert Path((place / "where").read_text().strip()) == place.resolve()
    (own,) = [stream for stream in run.streams if stream.rank is None]
    assert not os.get_blocking(own.source)
    run.close()
