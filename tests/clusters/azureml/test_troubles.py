"""What goes wrong on Azure ML, and what a user hears of it: spoken to directly, without a supervisor."""

import contextlib
import json

import pytest

from distdl_jupyter.clusters.azureml import run
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.testing.sample import ClusterTests
from tests.standin.computes import WORKSPACE
from tests.standin.server import Answer, refusal

pytestmark = [pytest.mark.timeout(600)]

COUNT = """
import time
for number in range({lines}):
    print("line", number, flush=True)
    time.sleep(0.05)
"""


class Lab(ClusterTests):
    name = "azureml"
    process_count_per_node = 1
    timeout = 120.0

    def __init__(self, ml, **options):
        self.options = {**ml.options, **options}

    @contextlib.contextmanager
    def counting(self, lines):
        """Start a job that counts, and yield its listener when it has begun to."""
        with self.run_job(COUNT.format(lines=lines)) as (_, listener):
            listener.wait_until(lambda: len(listener.get_lines(0)) > 5, self.timeout, "the first lines")
            yield listener

    def ended(self, listener):
        """Return what the rank said, when it has ended."""
        listener.wait_until_ended(1, self.timeout)
        listener.drain()
        return [line for line in listener.get_lines(0) if line.startswith("line")]


@pytest.mark.full
@pytest.mark.parametrize("end", ["INT", "TERM", "KILL", "sweep"])
def test_a_waiting_job_has_a_reason_and_is_ended_at_once(ml, end):
    ml.holds.add("Queued")
    lab = Lab(ml)
    with lab.run_job("import time\ntime.sleep(600)") as (sample, listener):
        listener.wait_until(listener.run.why_waiting, 120, "the reason why the job waits")
        assert "\n" not in listener.run.why_waiting()
        assert (listener.run.list_starts(), listener.exits) == ([], {})
        handle = json.loads(json.dumps(listener.run.handle()))
        assert handle == listener.run.handle()
        if end == "sweep":
            lab.cluster.sweep(sample.id, handle)
        else:
            listener.run.signal(end)
        listener.wait_until_ended(1, 120)
        listener.wait_until_gone(120)
        assert listener.exits[0].signal
        assert list(lab.cluster.sweep(sample.id, handle)) == []


def test_who_waits_sees_azures_state_and_the_images_build(ml):
    ml.holds.add("Preparing")
    ml.build_log = "Step 1/9 : FROM pytorch\nStep 2/9"
    with Lab(ml).run_job("1") as (_, listener):
        listener.wait_until(
            lambda: "Step 1/9 : FROM pytorch" in listener.lines.get((None, "out"), []), 60, "the build's log"
        )
        wanted = "preparing the image; the first build takes a few minutes (Preparing)"
        listener.wait_until(lambda: listener.run.why_waiting().endswith(wanted), 60, "Azure's state")
        assert "Step 2/9" not in listener.lines[None, "out"], "a line without its end"


def test_an_image_that_cannot_be_built_fails_the_job_with_azures_words_and_a_remedy(ml):
    ml.build_log, ml.build_error = "ERROR: no matching distribution", "Image build failed. See the log."
    with Lab(ml).run_job("1") as (_, listener):
        listener.wait_until_ended(1, 60)
        listener.drain()
        end = listener.exits[0]
        assert (end.code, end.signal) == (None, None)
        assert "Image build failed" in end.evidence
        assert "option 'environment'" in end.evidence
        assert "ERROR: no matching distribution" in listener.lines[None, "out"]


@pytest.mark.full
def test_nodes_that_are_taken_away_are_told_and_the_job_begins_anew(ml):
    with Lab(ml).counting(60) as listener:
        ml.holds.add("Queued")
        ml.preempt(next(iter(ml.jobs.values())))
        listener.wait_until(lambda: any(one.code == "preempted" for one in listener.notices), 60, "the notice")
        ml.holds.clear()
        said = Lab(ml).ended(listener)
        assert listener.exits[0].code == 0
        assert said[-60:] == [f"line {number}" for number in range(60)]


@pytest.mark.full
def test_a_sign_in_that_ends_while_a_job_runs_loses_nothing_of_it(ml, signed_in):
    signed_in.login.lifetime = 4
    with Lab(ml).counting(120) as listener:
        expired = refusal(401, "ExpiredAuthenticationToken", "The access token expiry is in the past.")
        ml.faults += [("GET", "/details", expired)] * 3
        ml.expire()
        assert Lab(ml).ended(listener) == [f"line {number}" for number in range(120)]
        assert listener.exits[0].code == 0
        codes = [one.code for one in listener.notices if one.code.startswith("azure-")]
        assert codes == ["azure-signed-out", "azure-reachable"]


def test_a_job_that_is_canceled_in_azure_says_so(ml, monkeypatch):
    monkeypatch.setattr(run, "_SETTLE_SECONDS", 1.0)
    with Lab(ml).counting(600) as listener:
        job = next(iter(ml.jobs.values()))
        job.canceled = True
        ml._kill(job)
        listener.wait_until_ended(1, 60)
        assert (listener.exits[0].signal, listener.exits[0].evidence) == ("TERM", "The job was canceled in Azure ML.")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workspace": "nowhere"}, "The workspace nowhere does not exist"),
        ({"compute": "nothing"}, "compute target 'nothing'"),
        ({"resource_group": "empty"}, "The resource group empty does not exist"),
        ({"environment": "none:7"}, "Environment"),
    ],
)
def test_a_wrong_name_is_refused_with_the_option_to_change(ml, options, says):
    with pytest.raises((LaunchFailed, InvalidSpec)) as failed:
        Lab(ml, **options).make_sample("1").start()
    assert says in failed.value.message
    assert "option" in failed.value.hint or "Choose" in failed.value.hint
    assert not ml.jobs


def test_who_lacks_the_right_is_told_which_role_to_ask_for(ml):
    ml.faults.append(("PUT", "/jobs/", refusal(403, "AuthorizationFailed", "The client does not have authorization.")))
    with pytest.raises(LaunchFailed) as failed:
        Lab(ml).make_sample("1").start()
    assert "AzureML Data Scientist" in failed.value.hint


def test_a_job_whose_answer_was_lost_is_followed_all_the_same(ml):
    broken = Answer({"error": {"code": "InternalServerError", "message": "lost"}}, 400)
    taken = ml._put_job

    def lost(request):
        taken(request)
        return broken

    ml.server.route("PUT", rf"{WORKSPACE}/jobs/(?P<name>[^/]+)", lost)
    with Lab(ml).run_job("print('here')") as (_, listener):
        listener.wait_until_ended(1, 60)
        assert listener.exits[0].code == 0
