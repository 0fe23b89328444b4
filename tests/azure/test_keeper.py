"""The keeper, as a real process: one sign-in for many processes, and nothing of it anywhere else."""

import hashlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from distdl_jupyter.azure import identity, remembered, settings
from distdl_jupyter.azure.keeper import client
from distdl_jupyter.azure.keeper.service import Service
from distdl_jupyter.core import sockets
from distdl_jupyter.core.errors import NotSignedIn
from tests.conftest import wait_for
from tests.standin.login import CLIENT, DEVELOPER_CLIENT, SECRET, TENANT, USER

BLOB = "https://storage.azure.com/.default"


@pytest.fixture
def people(azure, tmp_path, monkeypatch):
    """The stand-in, an own home directory, and no keeper left behind."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    yield azure
    identity.sign_out()
    wait_for(lambda: not client.there(), what="the keeper's end")


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


def keeper():
    """Return the keeper's process."""
    with client._connected() as connection:
        asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return psutil.Process(int.from_bytes(asked[:4], sys.byteorder))


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


def test_one_sign_in_serves_every_process_and_outlives_the_one_that_began_it(people):
    begun = elsewhere("import sys; print(identity.sign_in('device_code').state)")
    assert begun == "waiting"
    people.login.approve()
    wait_for(lambda: identity.status().state == "signed_in")
    assert elsewhere("print(identity.account().name)") == USER
    here = identity.credential().get_token(BLOB).token
    told = elsewhere(f"import hashlib; t = identity.credential().get_token('{BLOB}').token\n"
                     "print(hashlib.sha256(t.encode()).hexdigest())")  # fmt: skip
    assert told == hashlib.sha256(here.encode()).hexdigest()
    assert people.login.access[here]["aud"] == "https://storage.azure.com"
    assert len([r for r in people.server.asked("/token") if r.form["grant_type"] == "refresh_token"]) == 1


def test_a_kernel_that_is_killed_with_its_group_leaves_the_sign_in(people):
    code = (
        "from distdl_jupyter.azure import identity\nidentity.sign_in('device_code')\nprint('on', flush=True)\ninput()"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              start_new_session=True)  # fmt: skip
    assert kernel.stdout.readline() == b"on\n"
    os.killpg(kernel.pid, signal.SIGKILL)
    kernel.wait()
    kernel.stdin.close()
    kernel.stdout.close()
    people.login.approve()
    wait_for(lambda: identity.status().state == "signed_in")
    assert identity.credential().get_token(BLOB).token in people.login.access


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [("decline", "The sign-in was declined"), ("expire", "The code was not entered in time")],
)
def test_a_code_that_is_declined_or_too_old_says_so(people, ending, sentence):
    identity.sign_in("device_code")
    getattr(people.login, ending)()
    status = wait_for(lambda: (now := identity.status()).state == "failed" and now)
    assert status.problem.message.startswith(sentence)
    assert status.problem.hint.startswith("Start again")
    with pytest.raises(NotSignedIn, match=sentence):
        identity.credential()
    assert signed_in_by_code(people).state == "signed_in"


def test_a_code_that_policy_forbids(people):
    people.login.refuse("AADSTS53003", "access_denied", "Access has been blocked by Conditional Access policies.")
    status = identity.sign_in("device_code")
    assert status.state == "failed"
    assert "policy refuses" in status.problem.message
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


def test_another_way_to_sign_in_ends_the_keeper(people, monkeypatch):
    signed_in_by_code(people)
    process = keeper()
    for name, value in (("CLIENT_ID", CLIENT), ("TENANT_ID", TENANT), ("CLIENT_SECRET", SECRET)):
        monkeypatch.setenv(f"AZURE_{name}", value)
    assert identity.sign_in("environment").account.name == f"app {CLIENT}"
    process.wait(30)


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
    status = identity.sign_in("browser")
    assert status.prompt is None
    status = wait_for(lambda: (now := identity.status()).state != "waiting" and now)
    assert (status.state, status.account.name, status.account.kind) == ("signed_in", USER, "browser"), status


def test_a_machine_without_a_browser_says_what_to_do(people, monkeypatch):
    monkeypatch.setenv("BROWSER", "/bin/false")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    identity.sign_in("browser")
    status = wait_for(lambda: (now := identity.status()).state == "failed" and now)
    assert status.problem.message == "No browser can be opened on the machine where Jupyter runs."
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


def test_sign_out_forgets_and_ends_the_keeper(people):
    signed_in_by_code(people)
    held, process = identity.credential(), keeper()
    assert identity.sign_out().state == "signed_out"
    process.wait(30)
    with pytest.raises(NotSignedIn, match="Nobody is signed in to Azure any more"):
        held.get_token(BLOB)
    assert settings.read().credential == ""
    assert not sockets.place("azure").exists()


def test_settings_that_change_after_the_sign_in_ask_for_another(people):
    signed_in_by_code(people)
    settings.change(tenant_id=TENANT)
    with pytest.raises(NotSignedIn, match="The settings for Azure were changed after the sign-in"):
        identity.credential()
    assert identity.status().account is None


def test_no_token_is_in_a_file_a_variable_or_a_command_line(people, tmp_path):
    signed_in_by_code(people)
    identity.credential().get_token(BLOB)
    process = keeper()
    seen = " ".join(process.cmdline()) + repr(process.environ()) + repr(dict(os.environ))
    for folder in (tmp_path, Path(os.environ["JUPYTER_RUNTIME_DIR"])):
        for path in folder.rglob("*"):
            if path.is_file():
                seen += path.read_text(errors="replace")
    assert len(people.login.given) >= 4
    assert not [secret for secret in people.login.given if secret in seen]
    assert process.cmdline()[1:] == ["-P", "-m", "distdl_jupyter.azure.keeper"]


def test_no_secret_of_another_way_goes_into_the_keeper(people, monkeypatch):
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "not-for-the-keeper")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "nor-this")
    signed_in_by_code(people)
    assert "not-for-the-keeper" not in repr(keeper().environ())
    assert "nor-this" not in repr(keeper().environ())


def test_folder_and_socket_are_the_owners_alone(people):
    signed_in_by_code(people)
    path = sockets.place("azure")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "distdl" in str(path)
    assert len(str(path)) <= 103


def test_another_user_is_sent_away(people, tmp_path):
    service = Service(Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "s.sock", owner=os.getuid() + 1)
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(service.server_address)
            stranger.settimeout(30)
            assert answer_to(stranger, b'{"do": "status"}\n') == b""
    finally:
        service.shutdown()
        service.server_close()
        thread.join()


def answer_to(connection, line):
    try:
        connection.sendall(line)
        return connection.recv(1000)
    except (BrokenPipeError, ConnectionResetError):
        return b""


def test_a_sign_in_kept_on_disk_outlives_the_machine_s_restart(people):
    signed_in_by_code(people, token_cache="plain")
    for path in (remembered.record_file(), Path.home() / ".IdentityService" / "distdl_jupyter.nocae"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    kept = remembered.record_file().read_text()
    assert USER in kept
    assert not [secret for secret in people.login.given if secret in kept]
    process = keeper()
    process.kill()
    wait_for(lambda: not client.there())
    assert identity.account().name == USER
    assert keeper().pid != process.pid
    assert len(people.server.asked("devicecode")) == 1
    identity.sign_out()
    assert not remembered.record_file().exists()
    assert not [path for path in (Path.home() / ".IdentityService").rglob("*") if path.is_file()
                and any(secret in path.read_text(errors="replace") for secret in people.login.given)]  # fmt: skip


def test_a_machine_without_a_keyring_says_that_it_keeps_the_sign_in_in_memory(people, monkeypatch):
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    status = signed_in_by_code(people, token_cache="keyring")
    assert status.state == "signed_in"
    assert "This machine has no keyring" in status.note
    assert not remembered.record_file().exists()


def test_it_ends_when_nobody_needed_it(people, monkeypatch, tmp_path):
    monkeypatch.setattr("distdl_jupyter.azure.keeper.service.IDLE_SECONDS", 0.2)
    service = Service(Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "s.sock")
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    service.server_close()


def test_what_it_does_not_understand_is_answered(people):
    signed_in_by_code(people)
    with client._connected() as connection:
        connection.sendall(b'{"do": "dance"}\n')
        said = json.loads(connection.makefile().readline())
    assert re.match("The keeper does not understand", said["error"]["message"])
