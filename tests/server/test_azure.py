"""The sign-in over HTTP: a real server, the real azure-identity, a stand-in for Entra ID."""

import pytest

from distdl_jupyter.azure import identity, settings
from tests.conftest import wait_for
from tests.server.running import serve
from tests.standin.login import CLIENT, TENANT, USER


@pytest.fixture
def server(azure, tmp_path):
    (tmp_path / "root").mkdir()
    with serve(tmp_path / "root") as running:
        # The server of a test sets its own folders for Jupyter's configuration.
        settings.change(cloud=str(azure.cloud))
        yield running
        identity.sign_out()


def test_an_app_registration_signs_in_and_out(server, signed_in):
    settings.change(credential="")
    now = server.get("/azure")
    assert (now["state"], now["account"], now["settings"]["credential"]) == ("signed_out", None, "")
    now = server.post("/azure/sign-in", {"credential": "default"}, status=202)
    assert now["account"]["name"] == f"app {CLIENT}"
    assert server.get("/azure")["state"] == "signed_in"
    assert server.post("/azure/sign-out", status=200)["state"] == "signed_out"


def test_a_code_is_shown_cancelled_and_entered(server, azure):
    now = server.post("/azure/sign-in", {"credential": "device_code", "tenant_id": TENANT}, status=202)
    code = next(iter(azure.login.codes.values()))
    assert (now["state"], now["prompt"]["user_code"]) == ("waiting", code.user_code)
    assert 800 < now["prompt"]["seconds_left"] <= 900
    assert server.delete("/azure/sign-in", status=200)["state"] == "signed_out"
    server.post("/azure/sign-in", {"credential": "device_code"}, status=202)
    azure.login.approve()
    now = wait_for(lambda: (found := server.get("/azure"))["state"] == "signed_in" and found)
    assert (now["account"]["name"], now["account"]["tenant_id"]) == (USER, TENANT)
    assert not [secret for secret in azure.login.given if secret in repr(now)]


def test_subscriptions_and_settings(server, signed_in):
    listed = [{"subscriptionId": "s-1", "displayName": "Lab", "tenantId": TENANT, "state": "Enabled"}]
    signed_in.server.route("GET", "/subscriptions", lambda _: {"value": listed})
    assert server.get("/azure/subscriptions") == [{"id": "s-1", "name": "Lab", "tenant_id": TENANT, "state": "Enabled"}]
    now = server.patch("/azure", {"subscription_id": "s-1"})
    assert now["settings"]["subscription_id"] == "s-1"
    assert settings.read().subscription_id == "s-1"
    refused = server.patch("/azure", {"token_cache": "everywhere"}, status=400)
    assert (refused["field"], refused["type"]) == ("token_cache", "InvalidSpec")
