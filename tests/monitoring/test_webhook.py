"""Messages to a webhook, really sent to an endpoint of this machine: form, tries, and what stays secret."""

import io
import json
import secrets
import socket
import threading

import pytest

from distdl_jupyter import cli, client, jobs, notifications, prune, scale, scaling, studies, submit, sweep, uniform
from distdl_jupyter.core.errors import InvalidSpec, JobFailed, MessageNotSent
from distdl_jupyter.magic import topics
from distdl_jupyter.monitoring import settings, webhook
from distdl_jupyter.monitoring.webhook import Message
from tests.client import scaled, swept
from tests.conftest import wait_for
from tests.monitoring.endpoint import Endpoint

pytestmark = pytest.mark.timeout(120)
MESSAGE = Message("20261125-010203-k3f9x", "digits <b>", "failed", "failure", "Rank 1 & rank 2 failed.")


@pytest.fixture
def endpoint(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    found = Endpoint()
    yield found
    found.close()


@pytest.mark.parametrize(
    ("address", "body"),
    [
        ("https://hooks.slack.com/services/T/B/xyz",
         {"text": "*digits &lt;b&gt; (k3f9x): failed*\nRank 1 &amp; rank 2 failed."}),
        ("https://hook.example/x", {**MESSAGE._asdict(), "title": "digits <b> (k3f9x): failed"}),
    ],
)  # fmt: skip
def test_each_service_gets_the_form_that_it_takes(address, body):
    assert json.loads(webhook._request(address, MESSAGE).data) == body


def test_teams_gets_a_card_and_ntfy_text_with_headers():
    card = json.loads(webhook._request("https://x.webhook.office.com/abc", MESSAGE).data)
    lines = card["attachments"][0]["content"]["body"]
    assert [line["text"] for line in lines] == ["digits <b> (k3f9x): failed", "Rank 1 & rank 2 failed."]
    for address in ("https://ntfy.sh/topic", "ntfy+https://push.example/topic"):
        request = webhook._request(address, MESSAGE)
        assert request.full_url == address.removeprefix("ntfy+")
        assert request.data == b"Rank 1 & rank 2 failed."
        assert (request.headers["Title"], request.headers["Priority"]) == ("digits <b> (k3f9x): failed", "high")


def test_a_message_is_tried_again_and_never_says_the_address(endpoint, monkeypatch):
    monkeypatch.setattr(webhook, "_WAITS", (0.0, 0.01, 0.01))
    broken = Endpoint(503)
    with pytest.raises(MessageNotSent, match=r"^The message could not be sent: 127\.0\.0\.1 answered 503\."):
        webhook.deliver(f"{broken.address}/secret-path", MESSAGE)
    assert len(broken.posts) == 3
    broken.close()
    refused = Endpoint(403)
    with pytest.raises(MessageNotSent, match="answered 403"):
        webhook.deliver(f"{refused.address}/secret-path", MESSAGE)
    assert len(refused.posts) == 1
    refused.close()
    with pytest.raises(MessageNotSent, match=r"127\.0\.0\.1 is unreachable"):
        webhook.deliver(f"{refused.address}/secret-path", MESSAGE)
    assert webhook.deliver(f"{endpoint.address}/secret-path", MESSAGE) == "127.0.0.1"


@pytest.mark.parametrize(
    "place",
    ["[a/secret", "us:secret@ex\u2100mple.com/x", "127.0.0.1:9/secret x", "127.0.0.1:secret/x", "127.0.0.1:0/secret",
     "127.0.0.1:99999/secret", "127.0.0.1:9/secret\x01"],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_without_being_quoted(place):
    with pytest.raises(InvalidSpec, match="webhook must be an https address") as refused:
        webhook.deliver(f"https://{place}", MESSAGE)
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_what_answers_no_http_is_one_sentence(monkeypatch):
    monkeypatch.setattr(webhook, "_WAITS", (0.0,))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-hello\r\n")

        threading.Thread(target=answer).start()
        with pytest.raises(MessageNotSent, match=r": 127\.0\.0\.1 is unreachable \(BadStatusLine\)\. "):
            webhook.deliver(f"http://127.0.0.1:{server.getsockname()[1]}/secret", MESSAGE)


def test_a_webhook_is_set_tried_and_taken_back_without_its_address_anywhere(endpoint, capsys, monkeypatch):
    with pytest.raises(InvalidSpec, match="No webhook is set, so no message can be sent"):
        notifications(test=True)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{endpoint.address}/secret-path\n"))
    assert cli.main(["notify", "--set", "--for", "failure", "--test"]) == 0
    assert capsys.readouterr().out == "Messages are sent to 127.0.0.1, for failure.\nTest message sent.\n"
    assert json.loads(endpoint.posts[0][2])["text"] == webhook.HELLO.text
    assert repr(notifications()) == "Notifications(host='127.0.0.1', notify='failure')"
    monkeypatch.setattr(webhook, "_WAITS", (0.0,))
    broken = Endpoint(503)
    notifications(f"{broken.address}/secret-path")
    assert cli.main(["notify", "--test"]) == 2
    said = capsys.readouterr().err
    assert "The message could not be sent: 127.0.0.1 answered 503. Check that the address is complete and valid" in said
    assert "secret-path" not in said
    broken.close()
    assert cli.main(["notify", "--off"]) == 0
    assert capsys.readouterr().out == "Messages are sent to nowhere, for failure.\n"


def test_settings_are_checked_kept_privately_and_shown_without_the_address(endpoint, capsys):
    topics.monitoring({"webhook": f"{endpoint.address}/secret-path", "notify": "failure, rule"})
    said = capsys.readouterr().out
    assert "A message was sent to 127.0.0.1." in said
    assert "notify = failure,rule" in said
    assert "secret-path" not in said
    assert json.loads(endpoint.posts[0][2])["text"] == webhook.HELLO.text
    assert settings.file().stat().st_mode & 0o077 == 0
    settings.change(enabled="true")
    assert settings.read().kinds == ("failure", "rule"), "one setting leaves the others"
    for given in ({"webhook": "hooks.slack.com/x"}, {"webhook": "file:///etc/passwd"}, {"notify": "everything"}):
        with pytest.raises(InvalidSpec):
            settings.change(**given)
    assert not settings.change(webhook="").webhook


def noisy():
    import time

    import distdl_jupyter

    for step, loss in enumerate((1.0, float("nan"), 0.5, 0.05, 0.01)):
        distdl_jupyter.log(step=step, loss=loss)
        time.sleep(0.1)


def test_a_job_says_what_happens_while_it_runs_and_how_it_ends(endpoint):
    secret = secrets.token_hex()  # made here: what git says of this file may be in a job's record
    settings.change(webhook=f"{endpoint.address}/{secret}")
    job = submit(noisy, name="noisy", distributed_backend="plain", notify_when=["loss < 0.1"])
    job.wait(60)
    messages = wait_for(lambda: [json.loads(post[2]) for post in endpoint.posts] if len(endpoint.posts) == 3 else None)
    texts = {one["kind"]: one["text"] for one in messages}
    assert texts == {
        "nan": "loss is nan on rank 0 at step 1.",
        "rule": "loss < 0.1: mean loss is 0.050 at step 3.",
        "end": "The job completed. loss is 0.010 at step 4.",
    }
    codes = [note["code"] for note in job.view().notes]
    assert [code for code in codes if code.startswith("alert-")] == ["alert-nan", "alert-rule"]
    wait_for(lambda: job.folder.supervisor_log.read_text().count("webhook: ") == 3)
    for path in job.folder.path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


@pytest.mark.full
def test_a_sweep_is_told_once_and_none_of_its_trials(endpoint, distdl_home):
    settings.change(webhook=f"{endpoint.address}/secret-path")
    found = sweep(swept.trains, {"lr": [0.01, 0.02]}, trials=2, sampler="grid", pruner="none", name="digits").wait(60)
    wait_for(lambda: endpoint.posts, what="a message")
    said = json.loads(endpoint.posts[0][2])
    assert said["title"] == f"Sweep of digits ({found.id[-5:]}): completed"
    assert said["text"].startswith("2 of 2 trials have ended, best loss 0.")
    assert said["kind"] == "end"
    with pytest.raises(JobFailed):
        sweep(swept.fails, {"lr": [0.01, 0.02]}, trials=2, sampler="grid").wait(60)
    wait_for(lambda: len(endpoint.posts) == 2, what="the second message")
    said = json.loads(endpoint.posts[1][2])
    assert (said["kind"], said["state"], said["text"][:25]) == ("failure", "failed", "The first 2 trials failed")


def messages(endpoint, count):
    """Return the messages when so many have come."""
    wait_for(lambda: len(endpoint.posts) >= count, what="a message")
    return [json.loads(post[2]) for post in endpoint.posts]


def test_a_sweep_that_fails_before_its_first_trial_is_a_row_and_is_told(endpoint, distdl_home):
    settings.change(webhook=f"{endpoint.address}/secret-path")
    found = sweep(swept.trains, {"lr": uniform(-1.7e308, 1.7e308)}, trials=2, sampler="random", name="digits")
    (row,) = studies.folded(client.rows())
    assert (row.id, row.name, row.state, row.total) == (found.id, "Sweep of digits", "running", 2)
    with pytest.raises(JobFailed, match="OverflowError"):
        found.wait(60)
    (said,) = messages(endpoint, 1)
    assert (said["job"], said["kind"]) == (found.id, "failure")
    assert said["title"] == f"Sweep of digits ({found.id[-5:]}): failed"
    assert said["text"].startswith(
        "The process that controls the sweep failed: OverflowError: Range exceeds valid bounds. "
    )
    assert said["text"].endswith(f"distdl sweep --resume {found.id[-5:]}")
    assert not jobs()
    (row,) = studies.folded(client.rows())
    assert (row.state, row.done, row.says, row.ended is None) == ("failed", 0, said["text"], False)
    assert prune(older="1h").jobs == ()
    assert [one.name for one in prune(keep=0).jobs] == ["Sweep of digits"]
    assert studies.folded(client.rows()) == []


def test_a_scaling_study_is_told_once_and_none_of_its_runs(endpoint, distdl_home):
    settings.change(webhook=f"{endpoint.address}/secret-path")
    with pytest.raises(JobFailed):
        scale(scaled.fails, [1], backends="plain", name="digits")
    (said,) = messages(endpoint, 1)
    assert said["title"] == f"Scaling of digits ({scaling().id[-5:]}): failed"
    assert (said["kind"], "no such file of data" in said["text"]) == ("failure", True)
    found = scale(scaled.sleeps, [1], (0.002,), backends="torch", seconds=0.2, name="digits")
    _, said = messages(endpoint, 2)
    assert (said["job"], said["state"], said["text"]) == (found.id, "completed", "1 of 1 point measured.")
