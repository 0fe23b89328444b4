"""A person signs in by a real azure-identity: once for all processes of the user, kept where nobody else reads it."""

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msal_extensions
import pytest

from distdl_jupyter.azure import attempt, identity, settings, stored
from distdl_jupyter.core.errors import InvalidSpec, NotSignedIn
from tests.conftest import wait_for
from tests.standin.login import CLIENT, DEVELOPER_CLIENT, SECRET, TENANT, USER

BLOB = "https://storage.azure.com/.default"
TOKEN = f"from distdl_jupyter.azure import identity\nprint(identity.credential().get_token('{BLOB}').token)"


@pytest.fixture
def people(azure, monkeypatch):
    """The stand-in on a machine without a keyring."""
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    return azure


def cache_file():
    return Path.home() / ".IdentityService" / "distdl_jupyter.nocae"


def secrets_in(people, *folders):
    """Return the files that hold a token."""
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()
            and any(secret in path.read_text(errors="replace") for secret in people.login.given)]  # fmt: skip


def signed_in_by_code(people, **changes):
    status = identity.sign_in("device_code", **changes)
    assert status.state == "waiting", status
    people.login.approve()
    return wait_for(lambda: (now := identity.status()).state != "waiting" and now, what="the sign-in")


def elsewhere(code, **more):
    """Run code in a process of its own; return what it printed."""
    program = "from distdl_jupyter.azure import identity\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.readme("sign-in")
def test_a_device_code_is_shown_and_entered(people):
    status = identity.sign_in("device_code")
    assert (status.state, status.account) == ("waiting", None)
    assert status.prompt.address == f"{people.server.address}/device"
    assert status.prompt.user_code in {code.user_code for code in people.login.codes.values()}
    assert 800 < status.prompt.until - time.time() <= 900
    with pytest.raises(NotSignedIn):
        identity.credential()
    people.login.approve()
    status = wait_for(lambda: (now := identity.status()).state == "signed_in" and now)
    assert (status.account.name, status.account.kind, status.account.tenant_id) == (USER, "device_code", TENANT)
    asked = people.server.asked("devicecode")[0].form
    assert asked["client_id"] == DEVELOPER_CLIENT
    assert f"{people.server.address}/.default" in asked["scope"]


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [("decline", "The sign-in was declined"), ("expire", "The code was not entered in time")],
)
def test_a_code_that_is_declined_or_too_old_says_so(people, ending, sentence):
    identity.sign_in("device_code")
    getattr(people.login, ending)()
    status = wait_for(lambda: (now := identity.status()).state == "failed" and now)
    assert status.problem.message.startswith(sentence)
    assert status.problem.hint.startswith("Sign in again")
    with pytest.raises(NotSignedIn, match=sentence):
        identity.credential()
    assert signed_in_by_code(people).state == "signed_in"


def test_a_code_that_policy_forbids(people):
    people.login.refuse("AADSTS53003", "access_denied", "Access has been blocked by Conditional Access policies.")
    status = identity.sign_in("device_code")
    assert status.state == "failed"
    assert "policy of your organization does not allow" in status.problem.message
    assert "Trace ID" not in str(status)


def test_cancel_ends_the_wait_and_the_code_is_good_for_nothing(people):
    identity.sign_in("device_code")
    assert identity.cancel().state == "signed_out"
    people.login.approve()
    time.sleep(1.5 * people.login.interval)  # The time in which it would have asked again.
    asked = len(people.server.asked("/token"))
    time.sleep(1.5 * people.login.interval)
    assert len(people.server.asked("/token")) == asked
    assert identity.status().state == "signed_out"


def test_a_second_sign_in_that_is_cancelled_leaves_the_first(people):
    signed_in_by_code(people)
    people.login.user = "bob@example.org"
    assert identity.sign_in("device_code").state == "waiting"
    assert identity.credential().get_token(BLOB).token in people.login.access
    assert identity.cancel().account.name == USER


def test_a_sign_in_to_another_tenant_that_is_cancelled_leaves_the_first(people):
    signed_in_by_code(people)
    status = identity.sign_in("device_code", tenant_id=TENANT)
    assert (status.state, identity.status().state) == ("waiting", "waiting")
    assert identity.status().prompt == status.prompt
    with pytest.raises(NotSignedIn):
        identity.credential()
    assert identity.cancel().account.name == USER
    assert identity.credential().get_token(BLOB).token in people.login.access
    identity.sign_in("device_code", tenant_id=TENANT)
    people.login.decline()
    status = wait_for(lambda: (now := identity.status()).state == "failed" and now)
    assert status.problem.message.startswith("The sign-in was declined")


def test_a_browser_on_this_machine(people, tmp_path, monkeypatch):
    browser = tmp_path / "browser"
    browser.write_text(
        f"#!{sys.executable}\n"
        + textwrap.dedent("""
        import re, ssl, sys, urllib.parse, urllib.request
        page = urllib.request.urlopen(sys.argv[1]).read().decode()
        fields = dict(re.findall(r'name="(.*?)" value="(.*?)"', page))
        target = re.search(r'action="(.*?)"', page)[1]
        urllib.request.urlopen(target, urllib.parse.urlencode(fields).encode()).read()
    """)
    )
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s &")
    assert f"Signed in to Azure as {USER}, by browser." in by_browser(0)
    status = identity.status()
    assert (status.state, status.account.name, status.account.kind) == ("signed_in", USER, "browser"), status


def by_browser(code):
    """Sign in by a process of its own: Python looks for a browser once in each."""
    done = subprocess.run([sys.executable, "-m", "distdl_jupyter.cli", "azure", "sign-in", "--credential", "browser"],
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("browser", ["/bin/true %s &", "/bin/false"], ids=["cancelled", "no browser"])
def test_the_port_on_which_a_browser_answers_is_closed_at_the_end(people, monkeypatch, browser):
    monkeypatch.setenv("BROWSER", browser)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    elsewhere("""
        import gc, psutil
        from tests.conftest import wait_for
        gc.disable()
        def is_listening():
            return any(connection.status == "LISTEN" for connection in psutil.Process().net_connections())
        identity.sign_in("browser")
        wait_for(lambda: is_listening() or identity.status().state == "failed")
        identity.cancel()
        wait_for(lambda: not is_listening(), 10)
    """)


def test_a_machine_without_a_browser_says_what_to_do(people, monkeypatch):
    monkeypatch.setenv("BROWSER", "/bin/false")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    by_browser(2)
    status = identity.status()
    assert (status.state, status.problem.message) == (
        "failed",
        "A browser cannot be opened on the machine that runs Jupyter.",
    )
    assert status.problem.hint == "Sign in with a device code instead."


def test_a_token_is_renewed_and_a_sign_in_that_expired_is_told(people):
    people.login.lifetime = 200  # Shorter than what may be given away.
    signed_in_by_code(people)
    first = identity.credential().get_token(BLOB).token
    second = identity.credential().get_token(BLOB).token
    assert first != second
    people.login.revoke()
    held = identity.credential()
    with pytest.raises(NotSignedIn, match=r"The sign-in has expired \(AADSTS700082\)\. Sign in again\."):
        held.get_token(BLOB)
    status = identity.status()
    assert (status.state, status.account) == ("failed", None)
    assert status.problem.message.startswith("The sign-in has expired")


def test_settings_that_change_after_the_sign_in_ask_for_another(people):
    signed_in_by_code(people)
    settings.change(tenant_id=TENANT)
    with pytest.raises(NotSignedIn, match="The settings for Azure were changed after the sign-in"):
        identity.credential()
    assert identity.status().account is None


@pytest.mark.full
def test_one_sign_in_serves_every_process_and_outlives_the_one_that_began_it(people):
    command = [sys.executable, "-m", "distdl_jupyter.cli", "azure", "sign-in", "--credential", "device_code"]
    begun = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    prompt = wait_for(lambda: identity.status().prompt)
    assert prompt.user_code in {code.user_code for code in people.login.codes.values()}
    people.login.approve()
    assert begun.wait(60) == 0
    assert elsewhere("print(identity.account().name)") == USER
    here = identity.credential().get_token(BLOB).token
    assert elsewhere(TOKEN) == here
    assert people.login.access[here]["aud"] == "https://storage.azure.com"
    assert len([r for r in people.server.asked("/token") if BLOB in r.form.get("scope", "")]) == 1


def test_an_attempt_ends_with_its_process_and_leaves_the_sign_in_before(people):
    signed_in_by_code(people)
    code = (
        "from distdl_jupyter.azure import identity\nidentity.sign_in('device_code')\nprint('on', flush=True)\ninput()"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              start_new_session=True)  # fmt: skip
    assert kernel.stdout.readline() == b"on\n"
    assert identity.status().state == "waiting"
    os.killpg(kernel.pid, signal.SIGKILL)
    kernel.wait()
    kernel.stdin.close()
    kernel.stdout.close()
    assert (identity.status().state, identity.account().name) == ("signed_in", USER)


def test_another_process_cancels(people):
    identity.sign_in("device_code")
    elsewhere("identity.cancel()")
    assert identity.status().state == "signed_out"
    people.login.approve()
    time.sleep(2.5 * people.login.interval)  # The time in which it would have asked again.
    assert identity.status().state == "signed_out"
    assert not stored.file().exists()
    assert not secrets_in(people, Path.home())


def test_processes_renew_the_sign_in_at_once(people):
    people.login.lifetime = 200  # Each request renews.
    signed_in_by_code(people)
    with ThreadPoolExecutor(4) as pool:
        tokens = list(pool.map(lambda _: elsewhere(TOKEN), range(4)))
    assert len(set(tokens)) == 4
    assert set(tokens) <= set(people.login.access)
    assert identity.status().state == "signed_in"


def test_another_way_to_sign_in_forgets_the_person(people, monkeypatch):
    signed_in_by_code(people)
    for name, value in (("CLIENT_ID", CLIENT), ("TENANT_ID", TENANT), ("CLIENT_SECRET", SECRET)):
        monkeypatch.setenv(f"AZURE_{name}", value)
    assert identity.sign_in("environment").account.name == f"app {CLIENT}"
    assert not stored.file().exists()
    assert not secrets_in(people, Path.home())


def test_another_account_that_signs_in_counts_at_once(people):
    signed_in_by_code(people)
    held = identity.credential()
    people.login.user = "bob@example.org"
    signed_in_by_code(people)
    assert people.login.access[held.get_token(BLOB).token]["upn"] == "bob@example.org"


def test_sign_out_forgets_in_every_process(people):
    signed_in_by_code(people)
    held = identity.credential()
    held.get_token(BLOB)
    elsewhere("identity.sign_out()")
    with pytest.raises(NotSignedIn, match="The sign-in to Azure has ended"):
        held.get_token(BLOB)
    assert (identity.status().state, settings.read().credential) == ("signed_out", "")
    assert not stored.file().exists()
    assert not secrets_in(people, Path.home())


def test_a_token_that_is_renewed_while_somebody_signs_out_is_forgotten_too(people, monkeypatch):
    people.login.lifetime = 200
    signed_in_by_code(people)
    held = identity.credential()
    answer = people.login._for_user
    monkeypatch.setattr(people.login, "_for_user", lambda *told: (identity.sign_out(), answer(*told))[1])
    with pytest.raises(NotSignedIn, match="The sign-in to Azure has ended"):
        held.get_token(BLOB)
    assert not secrets_in(people, Path.home())


def test_tokens_are_in_the_cache_and_nowhere_else(people, tmp_path):
    signed_in_by_code(people)
    identity.credential().get_token(BLOB)
    assert len(people.login.given) >= 4
    assert secrets_in(people, tmp_path) == [cache_file()]
    assert not [secret for secret in people.login.given if secret in repr(dict(os.environ))]
    assert USER in stored.file().read_text()


def test_a_machine_without_a_keyring_keeps_the_sign_in_in_a_file_of_its_user_and_says_so(people):
    (folder := Path.home() / ".IdentityService").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        status = signed_in_by_code(people)
    finally:
        os.umask(before)
    assert (status.state, status.note) == ("signed_in", attempt.NO_KEYRING)
    assert elsewhere("print(identity.status().note)") == attempt.NO_KEYRING
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in (cache_file(), stored.file()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_user_may_refuse_the_file(people):
    identity.sign_in("device_code", token_cache="keyring")
    status = identity.status()
    assert status.state == "failed"
    assert status.problem.message == "This machine has no keyring, and token_cache=keyring does not allow a file."
    assert "az login" in status.problem.hint
    assert not people.login.codes
    settings.change(token_cache="")
    assert settings.read().token_cache == ""
    signed_in_by_code(people)
    settings.change(token_cache="keyring")
    with pytest.raises(NotSignedIn, match="token_cache=keyring does not allow a file"):
        identity.credential().get_token(BLOB)
    with pytest.raises(InvalidSpec, match="Unknown value 'memory' for token_cache"):
        settings.change(token_cache="memory")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"credential": 1}', "not json"])
def test_a_broken_record_says_to_sign_in_again(people, content):
    signed_in_by_code(people)
    stored.file().write_text(content)
    status = identity.status()
    assert (status.state, status.account) == ("failed", None)
    assert status.problem.hint == "Sign in to Azure again."
    with pytest.raises(NotSignedIn):
        identity.credential().get_token(BLOB)
    assert signed_in_by_code(people).state == "signed_in"


def test_a_record_whose_account_cannot_be_read_says_to_sign_in_again(people):
    signed_in_by_code(people)
    told = json.loads(stored.file().read_text())
    stored.file().write_text(json.dumps({**told, "record": "{}"}))
    assert identity.status().problem.hint == "Sign in to Azure again."


def test_what_belongs_to_another_user_or_may_be_written_by_others_is_not_used(people, monkeypatch):
    signed_in_by_code(people)
    stored.file().chmod(0o666)
    with pytest.raises(NotSignedIn, match="is writable by others"):
        identity.credential().get_token(BLOB)
    stored.file().chmod(0o600)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: 12345)
        for use in (stored.read, partial(stored.cache, allow_file=True), stored.forget):
            with pytest.raises(NotSignedIn, match="belongs to another user"):
                use()


@pytest.mark.full
def test_a_cache_that_is_locked_for_ever_is_one_sentence_and_hinders_no_sign_out(people):
    people.login.lifetime = 200
    signed_in_by_code(people)
    with msal_extensions.CrossPlatLock(f"{cache_file()}.lockfile"):
        with pytest.raises(NotSignedIn) as caught:
            identity.credential().get_token(BLOB)
        assert identity.sign_out().state == "signed_out"
    assert "\n" not in str(caught.value)
    assert not secrets_in(people, Path.home())


def test_a_cache_that_another_process_is_writing_is_waited_for(people):
    signed_in_by_code(people)
    held, content = identity.credential(), cache_file().read_text()
    with ThreadPoolExecutor(1) as pool, msal_extensions.CrossPlatLock(f"{cache_file()}.lockfile"):
        cache_file().write_text("")
        token = pool.submit(held.get_token, BLOB)
        time.sleep(0.5)
        cache_file().write_text(content)
    assert token.result(60).token in people.login.access
