"""DefaultAzureCredential of the real azure-identity against a stand-in for Entra ID; the command line."""

import json
import os
import re
import subprocess
import sys
import textwrap
import time

import pytest

from distdl_jupyter.azure import identity, settings
from distdl_jupyter.core.errors import AzureRefused, NotSignedIn
from distdl_jupyter.views.azure import check_sign_in
from tests import processes
from tests.standin.login import CLIENT, DEVELOPER_CLIENT, TENANT, USER
from tests.standin.server import Answer, refusal

BLOB = "https://storage.azure.com/.default"


def test_an_app_of_the_environment_signs_in(signed_in):
    account = identity.get_status().account
    assert (account.name, account.kind, account.tenant_id) == (f"app {CLIENT}", "default", TENANT)
    assert "ey" not in repr(account)


def test_a_token_is_for_the_requested_audience_and_used_while_it_is_valid(signed_in):
    credential = identity.get_credential()
    first = credential.get_token(BLOB)
    assert credential.get_token(BLOB).token == first.token
    assert signed_in.login.access[first.token]["aud"] == "https://storage.azure.com"
    assert len(signed_in.server.asked("/token")) == 1
    assert first.expires_on == pytest.approx(time.time() + 3600, abs=60)


def test_a_machine_without_credentials_says_what_to_do(azure, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")
    status = identity.sign_in("default")
    assert (status.state, status.problem.code) == ("failed", "azure-sign-in-failed")
    assert "az login" in status.problem.hint


def test_what_entra_id_refuses_is_one_sentence_without_a_token(signed_in):
    text = "Assertion eyJhbGciOiJub25l.eyJzdWIiOiJtZSJ9.c2lnbmVk is bad."
    signed_in.login.refuse("AADSTS700027", "invalid_client", text, times=9)
    with pytest.raises(NotSignedIn) as caught:
        identity.get_credential().get_token(BLOB)
    assert caught.value.code == "azure-sign-in-failed"
    assert "AADSTS700027: Assertion " in caught.value.message
    assert not re.search(r"Trace ID|eyJ|\n", str(caught.value))


def test_a_wrong_secret_is_not_repeated(signed_in, monkeypatch):
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "a-wrong-secret")
    with pytest.raises(NotSignedIn, match="AADSTS7000215") as caught:
        identity.get_credential().get_token(BLOB)
    assert "a-wrong-secret" not in str(caught.value)


def test_no_network(signed_in):
    cloud = signed_in.cloud
    cloud.write_text(cloud.read_text().replace(signed_in.server.address, "https://nowhere.invalid"))
    with pytest.raises(NotSignedIn) as caught:
        identity.get_credential().get_token(BLOB)
    assert caught.value.hint.startswith("Check the network connection")


def test_the_account_of_az_login(azure, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    program, log = folder / "az", folder / "calls"
    answer = {"accessToken": azure.login.token("RESOURCE"), "expires_on": int(time.time()) + 3600,
              "expiresOn": "2026-01-01 00:00:00.000000", "tenant": TENANT, "tokenType": "Bearer"}  # fmt: skip
    program.write_text(
        f"#!{sys.executable}\n"
        + textwrap.dedent(f"""
        import json, sys
        open({str(log)!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
        print(json.dumps({answer!r}))
    """)
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "AzureCliCredential")
    status = identity.sign_in("default")
    assert (status.state, status.account.name, status.account.tenant_id) == ("signed_in", USER, TENANT)
    identity.get_credential().get_token(BLOB)
    identity.get_credential().get_token(BLOB)
    calls = log.read_text().splitlines()
    assert len(calls) == 2  # a token of each audience
    assert "--resource https://storage.azure.com" in calls[1]


@pytest.mark.parametrize("client", ["", CLIENT])
def test_a_managed_identity(azure, monkeypatch, client):
    def token(request):
        if request.headers.get("x-identity-header") != "header-of-the-tests":
            return Answer({"statusCode": 401, "message": "no"}, 401)
        requests.append(request.query)
        resource = request.query["resource"].removesuffix("/.default")
        return {"access_token": azure.login.token(resource, app=True), "expires_on": str(int(time.time()) + 3600),
                "resource": resource, "token_type": "Bearer", "client_id": CLIENT}  # fmt: skip

    requests = []
    azure.server.route("GET", "/msi/token", token)
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{azure.server.address}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "header-of-the-tests")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
    status = identity.sign_in("default", client_id=client)
    assert (status.state, status.account.name) == ("signed_in", f"app {CLIENT}"), status
    assert identity.get_credential().get_token(BLOB).token
    assert requests[-1]["resource"] == "https://storage.azure.com"
    assert requests[-1].get("client_id", "") == client


def test_the_doctor_checks_a_chosen_sign_in(signed_in, monkeypatch):
    assert [(row.status, row.value) for row in check_sign_in()] == [("ok", f"app {CLIENT} (default)")]
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "wrong")
    assert check_sign_in()[0].status == "warn"
    settings.change(credential="")
    monkeypatch.delenv("AZURE_CLIENT_ID")
    assert check_sign_in() == []


def test_subscriptions_are_requested_with_a_token(signed_in):
    subscriptions(signed_in)
    assert [row.name for row in identity.list_subscriptions()] == ["Lab", "Teaching"]
    signed_in.server.route("GET", "/subscriptions", lambda _: refusal(403, "AuthorizationFailed", "no"))
    with pytest.raises(AzureRefused, match="AuthorizationFailed"):
        identity.list_subscriptions()


def subscriptions(azure):
    rows = [{"subscriptionId": "s-2", "displayName": "Teaching", "tenantId": TENANT, "state": "Enabled"},
            {"subscriptionId": "s-1", "displayName": "Lab", "tenantId": TENANT, "state": "Enabled"}]  # fmt: skip

    def answer(request):
        assert azure.login.bearer(request, azure.server.address)
        assert request.query["api-version"] == identity.SUBSCRIPTIONS_VERSION
        return {"value": rows}

    azure.server.route("GET", "/subscriptions", answer)


def distdl(*arguments, **options):
    done = processes.distdl("azure", *arguments, **options)
    return done.stdout + done.stderr


@pytest.mark.full
def test_the_command_line_signs_in_lists_subscriptions_and_signs_out(signed_in):
    settings.change(credential="")
    subscriptions(signed_in)
    said = distdl("sign-in", "--credential", "default")
    assert f"Signed in to Azure as app {CLIENT}, by default." in said
    assert json.loads(distdl("status", "--json"))["account"]["tenant_id"] == TENANT
    listed = distdl("subscriptions", "--use", "Teaching").splitlines()
    assert listed[1].split() == ["Lab", "s-1", "Enabled"]
    assert listed[2].split() == ["*", "Teaching", "s-2", "Enabled"]
    assert settings.read().subscription_id == "s-2"
    assert "The account has no access to subscription 'x'" in distdl("subscriptions", "--use", "x", code=2)
    assert distdl("sign-out").startswith("Signed out of Azure. ")
    said = distdl("status", code=1)
    assert "Not signed in to Azure." in said
    wrong = distdl("sign-in", "--credential", "default", code=2, env={**os.environ, "AZURE_CLIENT_SECRET": "no"})
    assert len(wrong.splitlines()) == 1
    assert "AADSTS7000215" in wrong
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
