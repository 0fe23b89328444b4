"""A person signs in through the real azure-identity, once for all processes of the user."""

import ast
import os
import stat
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import distdl_jupyter
from distdl_jupyter.azure import identity, settings
from distdl_jupyter.core.errors import InvalidSpec, NotSignedIn
from tests.conftest import wait_for
from tests.standin.login import DEVELOPER_CLIENT, TENANT, USER

BLOB = "https://storage.azure.com/.default"
TOKEN = f"print(identity.get_credential().get_token('{BLOB}').token)"


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


def completed():
    return wait_for(lambda: (now := identity.get_status()).state != "waiting" and now, what="the sign-in")


def signed_in_by_code(people, **changes):
    status = identity.sign_in("device_code", **changes)
    assert status.state == "waiting", status
    people.login.approve()
    return completed()


def elsewhere(code):
    """Run code in a process of its own; return what it printed."""
    program = "from distdl_jupyter.azure import identity\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.readme("sign-in")
def test_a_device_code_is_shown_and_entered(people):
    status = identity.sign_in("device_code")
    assert (status.state, status.account) == ("waiting", None)
    assert status.prompt.address == f"{people.server.address}/device"
    assert status.prompt.user_code in {code.user_code for code in people.login.codes.values()}
    assert 800 < status.prompt.seconds_left <= 900
    with pytest.raises(NotSignedIn):
        identity.get_credential()
    people.login.approve()
    status = completed()
    assert (status.account.name, status.account.kind, status.account.tenant_id) == (USER, "device_code", TENANT)
    request = people.server.asked("devicecode")[0].form
    assert request["client_id"] == DEVELOPER_CLIENT
    assert f"{people.server.address}/.default" in request["scope"]


@pytest.mark.parametrize("ending", ["decline", "expire"])
def test_a_declined_or_expired_code_is_reported(people, ending):
    identity.sign_in("device_code")
    getattr(people.login, ending)()
    status = completed()
    assert (status.state, status.problem.code) == ("failed", "azure-sign-in-failed")
    assert status.problem.hint == "Sign in again."
    assert signed_in_by_code(people).state == "signed_in"


def test_cancel_ends_the_polling(people):
    identity.sign_in("device_code")
    assert identity.cancel().state == "signed_out"
    people.login.approve()
    time.sleep(1.5 * people.login.interval)  # the time in which it would have polled again
    requests = len(people.server.asked("/token"))
    time.sleep(1.5 * people.login.interval)
    assert len(people.server.asked("/token")) == requests
    assert identity.get_status().state == "signed_out"


def test_a_cancelled_second_sign_in_leaves_the_first(people):
    signed_in_by_code(people)
    people.login.user = "bob@example.org"
    status = identity.sign_in("device_code", tenant_id=TENANT)
    assert (status.state, status.account.name) == ("waiting", USER)
    assert identity.get_credential().get_token(BLOB).token in people.login.access
    assert identity.cancel().account.name == USER
    assert settings.read().tenant_id == ""
    identity.sign_in("device_code", tenant_id=TENANT)
    people.login.decline()
    status = completed()
    assert (status.state, status.account.name, status.problem.code) == ("signed_in", USER, "azure-sign-in-failed")


def by_browser(code):
    """Sign in by a process of its own: Python looks for a browser once in each."""
    done = subprocess.run([sys.executable, "-m", "distdl_jupyter.cli", "azure", "sign-in", "--credential", "browser"],
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


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
    status = identity.get_status()
    assert (status.state, status.account.name, status.account.kind) == ("signed_in", USER, "browser"), status


def test_a_machine_without_a_browser_says_what_to_do(people, monkeypatch):
    monkeypatch.setenv("BROWSER", "/bin/false")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert by_browser(2).endswith("Sign in with a device code instead.\n")


def test_a_token_is_renewed_and_an_expired_sign_in_is_reported(people):
    people.login.lifetime = 200  # shorter than the margin, so each request renews
    signed_in_by_code(people)
    assert identity.get_credential().get_token(BLOB).token != identity.get_credential().get_token(BLOB).token
    people.login.revoke()
    held = identity.get_credential()
    with pytest.raises(NotSignedIn, match=r"AADSTS700082: The refresh token has expired .* Sign in again\."):
        held.get_token(BLOB)
    status = identity.get_status()
    assert (status.state, status.account, status.problem.code) == ("failed", None, "azure-sign-in-failed")


def test_settings_that_change_after_the_sign_in_need_another(people):
    signed_in_by_code(people)
    settings.change(tenant_id=TENANT)
    with pytest.raises(NotSignedIn) as caught:
        identity.get_credential()
    assert caught.value.code == "azure-signed-out"
    assert identity.get_status().account is None


def test_a_cache_that_another_process_writes_is_read_again(people):
    signed_in_by_code(people)
    content = cache_file().read_text()
    cache_file().write_text("")  # azure-identity empties the file before it writes it
    identity.clear_cache()
    threading.Timer(0.1, cache_file().write_text, (content,)).start()
    assert identity.get_credential().get_token(BLOB).token in people.login.access


def test_processes_renew_the_sign_in_at_once(people):
    people.login.lifetime = 200  # each request renews
    signed_in_by_code(people)
    with ThreadPoolExecutor(4) as pool:
        tokens = list(pool.map(lambda _: elsewhere(TOKEN), range(4)))
    assert len(set(tokens)) == 4
    assert set(tokens) <= set(people.login.access)
    assert identity.get_status().state == "signed_in"


def test_another_account_that_signs_in_counts_at_once(people):
    signed_in_by_code(people)
    held = identity.get_credential()
    people.login.user = "bob@example.org"
    signed_in_by_code(people)
    assert people.login.access[held.get_token(BLOB).token]["upn"] == "bob@example.org"


def test_sign_out_counts_in_every_process_and_leaves_the_librarys_cache(people):
    signed_in_by_code(people)
    held = identity.get_credential()
    held.get_token(BLOB)
    said = elsewhere("from distdl_jupyter.cli import main; main(['azure', 'sign-out'])")
    assert said == f"Signed out of Azure. {identity.SIGN_OUT_NOTE}"
    with pytest.raises(NotSignedIn):
        held.get_token(BLOB)
    assert (identity.get_status().state, settings.read().credential) == ("signed_out", "")
    assert settings.read().record == ""
    assert secrets_in(people, Path.home()) == [cache_file()]  # as SIGN_OUT_NOTE says


def test_tokens_are_in_the_cache_and_nowhere_else(people, tmp_path):
    signed_in_by_code(people)
    identity.get_credential().get_token(BLOB)
    assert len(people.login.given) >= 4
    assert secrets_in(people, tmp_path) == [cache_file()]
    assert not [secret for secret in people.login.given if secret in repr(dict(os.environ))]
    assert USER in settings.read().record
    for path in (cache_file(), settings.SETTINGS_FILE.path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_user_may_refuse_the_file(people):
    status = identity.sign_in("device_code", token_cache="keyring")
    assert (status.state, "no keyring" in status.problem.hint) == ("failed", True)
    assert not people.login.codes
    signed_in_by_code(people)
    settings.change(token_cache="keyring")
    with pytest.raises(NotSignedIn) as caught:
        identity.get_credential().get_token(BLOB)
    assert "no keyring" in caught.value.hint
    with pytest.raises(InvalidSpec):
        settings.change(token_cache="memory")


def test_a_broken_record_says_to_sign_in_again(people):
    signed_in_by_code(people)
    settings.change(record="{}")
    status = identity.get_status()
    assert (status.state, status.account, status.problem.hint) == ("failed", None, "Sign in again.")
    assert signed_in_by_code(people).state == "signed_in"


def test_no_module_imports_a_private_part_of_azure_identity_or_msal():
    package = Path(distdl_jupyter.__file__).parent
    private = []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [f"{node.module}.{one.name}" for one in node.names]
            else:
                continue
            for name in names:
                parts = name.split(".")
                if parts[0] in ("msal", "msal_extensions") or (
                    parts[:2] == ["azure", "identity"] and any(part.startswith("_") for part in parts)
                ):
                    private.append(f"{path.relative_to(package)}:{node.lineno} {name}")
    assert private == []
