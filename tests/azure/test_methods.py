"""The ways to sign in that ask nobody, as programs and endpoints of this machine; and what is said of them."""

import json
import os
import subprocess
import sys
import textwrap
import time

import pytest

from distdl_jupyter.azure import identity, methods, settings
from distdl_jupyter.core.errors import InvalidSpec, NotSignedIn
from distdl_jupyter.environment import doctor
from distdl_jupyter.views import azure as pages
from tests.standin.login import CLIENT, DEVELOPER_CLIENT, SECRET, TENANT, USER
from tests.standin.server import Answer

BLOB = "https://storage.azure.com/.default"


@pytest.fixture
def az(azure, tmp_path, monkeypatch):
    """A program ``az`` that answers as Azure's own does; ``az(exit code, stderr)`` changes its mind."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program, log = folder / "az", folder / "asked"

    def write(code=0, said="", lifetime=3600):
        told = {"accessToken": azure.login.token("RESOURCE"), "expires_on": int(time.time()) + lifetime,
                "expiresOn": "2026-01-01 00:00:00.000000", "tenant": TENANT, "tokenType": "Bearer"}  # fmt: skip
        program.write_text(
            f"#!{sys.executable}\n"
            + textwrap.dedent(f"""
            import json, sys
            open({str(log)!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
            sys.stderr.write({said!r})
            if {code} == 0:
                print(json.dumps({told!r}))
            sys.exit({code})
        """)
        )
        program.chmod(0o755)

    write()
    write.asked = lambda: log.read_text().splitlines() if log.exists() else []
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return write


def test_the_account_of_az_login(az):
    status = identity.sign_in("cli")
    assert (status.state, status.account.name, status.account.tenant_id) == ("signed_in", USER, TENANT)
    identity.credential().get_token(BLOB)
    identity.credential().get_token(BLOB)
    assert [line.split("--resource ")[1] for line in az.asked()][1:] == ["https://storage.azure.com"]


def test_az_is_asked_for_the_tenant_of_the_settings(az):
    identity.sign_in("cli", tenant_id=TENANT)
    assert f"--tenant {TENANT}" in az.asked()[0]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "ERROR: Please run 'az login' to setup account.\n",
            "The Azure command line (az) is not signed in. Run this in a terminal on this machine, then try again: az",
        ),
        ("ERROR: AADSTS70043: The refresh token has expired.\n", "The sign-in has expired (AADSTS70043). Sign in"),
        ("ERROR: AADSTS50076: Due to a configuration change\n", "Azure requires a second factor"),
    ],
)
def test_az_that_refuses(az, said, sentence):
    az(1, said)
    status = identity.sign_in("cli")
    assert status.state == "failed"
    assert f"{status.problem.message} {status.problem.hint}".startswith(sentence)


def test_az_that_is_not_installed(azure, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    status = identity.sign_in("cli")
    assert status.problem.message == "The Azure command line (az) is not installed on this machine."
    assert "device code" in status.problem.hint


@pytest.fixture
def app_service(azure, monkeypatch):
    """The endpoint that gives a managed identity's tokens on App Service, Container Apps and their like."""

    def token(request):
        if request.headers.get("x-identity-header") != "header-of-the-tests":
            return Answer({"statusCode": 401, "message": "no"}, 401)
        asked.append(request.query)
        resource = request.query["resource"].removesuffix("/.default")
        return {"access_token": azure.login.token(resource, app=True), "expires_on": str(int(time.time()) + 3600),
                "resource": resource, "token_type": "Bearer", "client_id": CLIENT}  # fmt: skip

    asked = []
    azure.server.route("GET", "/msi/token", token)
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{azure.server.address}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "header-of-the-tests")
    return asked


def test_a_managed_identity(app_service):
    status = identity.sign_in("managed_identity")
    assert (status.state, status.account.name) == ("signed_in", f"app {CLIENT}"), status
    assert identity.credential().get_token(BLOB).token
    assert app_service[-1]["resource"] == "https://storage.azure.com"


def test_a_managed_identity_of_the_users_own(app_service):
    identity.sign_in("managed_identity", client_id=CLIENT)
    assert app_service[0]["client_id"] == CLIENT


def test_a_machine_without_a_managed_identity(azure, monkeypatch):
    monkeypatch.setattr("distdl_jupyter.azure.credentials._IMDS", ("127.0.0.1", 1))
    status = identity.sign_in("managed_identity")
    assert status.problem.message == "This machine has no managed identity."


def test_an_id_that_cannot_be_one_is_refused(azure):
    status = identity.sign_in("cli", tenant_id="not a tenant!")
    assert status.state == "failed"
    status = identity.sign_in("device_code", tenant_id="not a tenant!")
    assert (status.state, status.problem.message) == ("failed", "The tenant does not exist.")
    identity.sign_out()


def test_what_fits_this_machine_is_suggested(az, monkeypatch):
    suggested = lambda: [way.kind for way in methods.offered() if way.suggested]  # noqa: E731
    assert suggested() == ["cli"]
    for name, value in (("CLIENT_ID", CLIENT), ("TENANT_ID", TENANT), ("CLIENT_SECRET", SECRET)):
        monkeypatch.setenv(f"AZURE_{name}", value)
    assert suggested() == ["environment"]
    assert identity.account() is None  # It is offered, not taken.


def test_a_way_that_there_is_not_names_those_that_there_are(azure):
    with pytest.raises(InvalidSpec, match="sign-in method"):
        identity.sign_in("password")
    with pytest.raises(InvalidSpec, match="No sign-in method is set"):
        identity.sign_in()


def test_a_key_in_the_environment_is_warned_of_and_never_shown(azure, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a-key-of-a-whole-account")
    page = pages.sign_in_view()
    assert "AZURE_STORAGE_KEY in the environment gives access to a whole storage account" in page.warning
    assert "a-key-of" not in repr(page)
    assert [row.name for row in doctor._azure()] == ["Azure"]


def test_the_doctor_speaks_of_azure_where_somebody_did(signed_in, monkeypatch):
    assert [(row.status, row.value) for row in doctor._azure()] == [("ok", f"app {CLIENT} (environment)")]
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "wrong")
    identity.forget()
    row = doctor._azure()[0]
    assert (row.status, row.value) == ("warn", "The client secret is wrong (AADSTS7000215).")
    assert "AZURE_CLIENT_SECRET" in row.remedy
    settings.change(credential="")
    monkeypatch.delenv("AZURE_CLIENT_ID")
    assert doctor._azure() == []


def subscriptions(azure):
    told = [{"subscriptionId": "s-2", "displayName": "Teaching", "tenantId": TENANT, "state": "Enabled"},
            {"subscriptionId": "s-1", "displayName": "Lab", "tenantId": TENANT, "state": "Enabled"}]  # fmt: skip

    def answer(request):
        assert azure.login.bearer(request, azure.server.address)
        assert request.query["api-version"] == identity.SUBSCRIPTIONS_VERSION
        return {"value": told}

    azure.server.route("GET", "/subscriptions", answer)


def distdl(*words, code=0, **more):
    done = subprocess.run([sys.executable, "-m", "distdl_jupyter.cli", "azure", *words], capture_output=True, text=True,
                          timeout=120, **more)  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.full
def test_the_command_line_signs_in_lists_subscriptions_and_signs_out(signed_in):
    settings.change(credential="")
    subscriptions(signed_in)
    said = distdl("sign-in", "--credential", "environment")
    assert f"Signed in to Azure as app {CLIENT}, by environment." in said
    assert json.loads(distdl("status", "--json"))["account"]["tenant_id"] == TENANT
    listed = distdl("subscriptions", "--use", "Teaching").splitlines()
    assert listed[1].split() == ["Lab", "s-1", "Enabled"]
    assert listed[2].split() == ["*", "Teaching", "s-2", "Enabled"]
    assert settings.read().subscription_id == "s-2"
    assert "The account has no access to a subscription 'x'" in distdl("subscriptions", "--use", "x", code=2)
    assert distdl("sign-out") == "Signed out of Azure.\n"
    said = distdl("status", code=1)
    assert "Not signed in to Azure." in said
    wrong = distdl("sign-in", "--credential", "environment", code=2, env={**os.environ, "AZURE_CLIENT_SECRET": "no"})
    assert len(wrong.splitlines()) == 1
    assert wrong.startswith("distdl: The client secret is wrong")
    assert not [secret for secret in signed_in.login.given if secret in said]


def test_the_command_line_shows_a_code_and_waits(azure):
    process = subprocess.Popen([sys.executable, "-m", "distdl_jupyter.cli", "azure", "sign-in", "--credential",
                                "device_code"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    with process:
        assert process.stderr.readline() == "Waiting for sign-in to complete.\n"
        line = process.stderr.readline()
        code = next(iter(azure.login.codes.values()))
        assert f"enter the code {code.user_code}" in line
        assert code.client_id == DEVELOPER_CLIENT
        azure.login.approve()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"Signed in to Azure as {USER}, by device_code." in out
    identity.sign_out()


def test_no_message_carries_a_token(signed_in):
    signed_in.login.refuse("AADSTS700027", "invalid_client", "Assertion eyJhbGciOi.eyJzdWIi.c2ln is bad", times=3)
    with pytest.raises(NotSignedIn) as caught:
        identity.credential().get_token(BLOB)
    assert "eyJ" not in str(caught.value)
