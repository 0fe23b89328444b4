"""Messages through Apprise, really sent to a local server: what arrives, and that the address stays secret."""

import io
import json
import secrets
import subprocess
import sys

import pytest

from distdl_jupyter import cli, jobs, notifications, prune, scale, scaling, submit, sweep, uniform
from distdl_jupyter.core import user_settings
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobFailed, MessageNotSent
from distdl_jupyter.jobs import client, study_rows
from distdl_jupyter.magic import commands
from distdl_jupyter.tracking import messages
from tests.client import scaled, swept
from tests.conftest import wait_for
from tests.tracking.endpoint import Endpoint

pytestmark = pytest.mark.timeout(120)
MESSAGE = ("digits <b> (k3f9x): failed", "Rank 1 & rank 2 failed.", "failure")


def address(endpoint, path="secret-path"):
    return f"{endpoint.address.replace('http:', 'json:')}/{path}"


@pytest.fixture
def endpoint(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    server = Endpoint()
    yield server
    server.close()


def test_a_service_gets_title_text_and_type(endpoint):
    messages.deliver(address(endpoint), MESSAGE)
    path, headers, body = endpoint.posts[0]
    assert (path, headers["User-Agent"]) == ("/secret-path", "distdl-jupyter")
    fields = json.loads(body)
    assert (fields["title"], fields["message"]) == ("digits <b> (k3f9x): failed", "Rank 1 & rank 2 failed.")
    assert fields["type"] == "failure"
    assert "apprise" not in sys.modules, "loggers of this process never see the address"


@pytest.mark.parametrize("status", [503, 403])
def test_a_message_is_sent_again_and_the_error_does_not_quote_the_address(status, endpoint):
    broken = Endpoint(status)
    with pytest.raises(MessageNotSent) as error:
        messages.deliver(address(broken), MESSAGE)
    assert error.value.message.startswith(f"The message could not be sent: json responded with {status}. Check that ")
    assert len(broken.posts) == 3
    broken.close()
    with pytest.raises(MessageNotSent) as error:
        messages.deliver(address(broken), MESSAGE)
    assert "secret-path" not in str(error.value)


def test_a_redirect_is_not_followed(endpoint):
    redirecting = Endpoint(307, location=f"{endpoint.address}/other")
    with pytest.raises(MessageNotSent):
        messages.deliver(address(redirecting), MESSAGE)
    assert endpoint.posts == []
    redirecting.close()


@pytest.mark.parametrize(
    "text",
    ["hooks.slack.com/secret", "file:///secret", "https://hook.example/secret", "ntfy+https://hook.example/secret",
     "json://[a/secret", "nothing://secret"],
)  # fmt: skip
def test_an_address_that_is_not_valid_is_refused_without_being_quoted(text):
    with pytest.raises(MessageNotSent, match=r"The address for messages is not valid.*jsons://HOST/PATH") as error:
        messages.deliver(text)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", "https://ntfy.sh/topic"]
)
def test_addresses_as_slack_and_ntfy_show_them_are_valid(text):
    messages.deliver(text)


def test_a_missing_package_is_named_with_its_extra():
    code = "import sys; sys.modules['apprise'] = None; from distdl_jupyter.tracking import messages; messages.main()"
    body = json.dumps(("json://127.0.0.1/secret", None))
    done = subprocess.run([sys.executable, "-c", code], input=body, capture_output=True, text=True, timeout=60)
    assert "pip install 'distdl-jupyter[messages]'" in done.stdout


def test_an_address_is_set_tested_and_deleted_and_never_shown(endpoint, capsys, monkeypatch):
    with pytest.raises(InvalidSpec) as error:
        notifications(test=True)
    assert error.value.code == "message-address-missing"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{address(endpoint)}\n"))
    assert cli.main(["notify", "--set", "--for", "failure", "--test"]) == 0
    assert capsys.readouterr().out == "Messages are sent to json, for failure.\nTest message sent.\n"
    assert json.loads(endpoint.posts[0][2])["message"] == messages.TEST_MESSAGE[1]
    assert repr(notifications()) == "Notifications(service='json', notify='failure')"
    endpoint.close()
    assert cli.main(["notify", "--test"]) == 2
    assert "secret-path" not in capsys.readouterr().err
    assert cli.main(["notify", "--off"]) == 0
    assert capsys.readouterr().out == "No address for messages is set.\n"


def test_settings_are_checked_stored_privately_and_shown_without_the_address(endpoint, capsys):
    commands.change_monitoring({"address": address(endpoint), "notify": "failure, rule"})
    output = capsys.readouterr().out
    assert "A message was sent to json." in output
    assert "notify = failure,rule" in output
    assert "secret-path" not in output
    assert user_settings.SETTINGS.path.stat().st_mode & 0o077 == 0
    user_settings.change_settings(enabled="true")
    assert user_settings.SETTINGS.read().notify == "failure,rule", "one setting does not change the others"
    wrong = {"address": "file:///etc/passwd", "notify": "everything", "enabled": "perhaps", "connection_string": "x=y"}
    for name, value in wrong.items():
        with pytest.raises(DistDLError):
            messages.configure(**{name: value})
    assert user_settings.SETTINGS.read().address == address(endpoint)
    assert not user_settings.change_settings(address="").address


def noisy():
    import time

    import distdl_jupyter

    for step, loss in enumerate((1.0, float("nan"), 0.5, 0.05, 0.01)):
        distdl_jupyter.log(step=step, loss=loss)
        time.sleep(0.1)


def test_a_job_says_what_happens_while_it_runs_and_how_it_ends(endpoint):
    secret = secrets.token_hex()  # made here: what git says of this file may be in a job's record
    user_settings.change_settings(address=address(endpoint, secret))
    job = submit(noisy, name="noisy", distributed_backend="plain", notify_when=["loss < 0.1"])
    job.wait(60)
    texts = {(item["type"], item["message"]) for item in received(endpoint, 3)}
    assert texts == {
        ("warning", "loss is nan on rank 0 at step 1."),
        ("info", "loss < 0.1: mean loss is 0.050 at step 3."),
        ("success", "The job completed. loss is 0.010 at step 4."),
    }
    codes = [note["code"] for note in job.view().notes]
    assert [code for code in codes if code.startswith("alert-")] == ["alert-nan", "alert-rule"]
    wait_for(lambda: job.folder.supervisor_log.read_text().count("messages: ") == 3)
    for path in job.folder.path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def received(endpoint, count):
    """Return the messages when so many have come."""
    wait_for(lambda: len(endpoint.posts) >= count, what="a message")
    return [json.loads(post[2]) for post in endpoint.posts]


def test_a_sweep_that_fails_before_its_first_trial_is_a_row_and_is_told(endpoint, distdl_home):
    user_settings.change_settings(address=address(endpoint))
    found = sweep(swept.trains, {"lr": uniform(-1.7e308, 1.7e308)}, trials=2, sampler="random", name="digits")
    (row,) = study_rows.fold_rows(client.list_rows())
    assert (row.id, row.name, row.state, row.total) == (found.id, "Sweep of digits", "running", 2)
    with pytest.raises(JobFailed, match="OverflowError"):
        found.wait(60)
    (said,) = received(endpoint, 1)
    assert said["type"] == "failure"
    assert said["title"] == f"Sweep of digits ({found.id[-5:]}): failed"
    assert said["message"].startswith(
        "The process that controls the sweep failed: OverflowError: Range exceeds valid bounds. "
    )
    assert said["message"].endswith(f"distdl sweep --resume {found.id[-5:]}")
    assert not jobs()
    (row,) = study_rows.fold_rows(client.list_rows())
    assert (row.state, row.done, row.message, row.ended is None) == ("failed", 0, said["message"], False)
    assert prune(older="1h").jobs == ()
    assert [one.name for one in prune(keep=0).jobs] == ["Sweep of digits"]
    assert study_rows.fold_rows(client.list_rows()) == []


def test_a_scaling_study_is_told_once_and_none_of_its_runs(endpoint, distdl_home):
    user_settings.change_settings(address=address(endpoint))
    with pytest.raises(JobFailed):
        scale(scaled.fails, [1], backends="plain", name="digits")
    (said,) = received(endpoint, 1)
    assert said["title"] == f"Scaling of digits ({scaling().id[-5:]}): failed"
    assert (said["type"], "no such file of data" in said["message"]) == ("failure", True)
    scale(scaled.sleeps, [1], (0.002,), backends="torch", seconds=0.2, name="digits")
    _, said = received(endpoint, 2)
    assert (said["type"], said["message"]) == ("success", "1 of 1 point measured.")
