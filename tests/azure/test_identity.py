"""Who this process is for Azure, by the real azure-identity against a stand-in for Entra ID over TLS."""

import time

import pytest

from distdl_jupyter.azure import identity, settings
from distdl_jupyter.core.errors import AzureRefused, NotSignedIn
from tests.standin.login import APP_OID, CLIENT, SECRET, TENANT
from tests.standin.server import refusal


def test_an_app_of_the_environment_signs_in_and_says_who_it_is(signed_in):
    who = identity.account()
    assert (who.name, who.kind, who.tenant_id, who.object_id) == (f"app {CLIENT}", "environment", TENANT, APP_OID)
    assert "ey" not in repr(who)


def test_a_token_is_for_the_audience_that_was_asked_and_is_kept_while_it_lives(signed_in):
    credential = identity.credential()
    first = credential.get_token("https://storage.azure.com/.default")
    assert credential.get_token("https://storage.azure.com/.default").token == first.token
    assert signed_in.login.access[first.token]["aud"] == "https://storage.azure.com"
    assert len(signed_in.server.asked("/token")) == 1
    assert first.expires_on == pytest.approx(time.time() + 3600, abs=60)


def test_the_resource_manager_is_asked_with_a_token_of_its_own(signed_in):
    def subscriptions(request):
        if not signed_in.login.bearer(request, signed_in.server.address):
            return refusal(401, "InvalidAuthenticationToken", "no")
        return {"value": [{"subscriptionId": "s-1", "displayName": "Lab"}]}

    signed_in.server.route("GET", "/subscriptions", subscriptions)
    assert identity.rest().get("/subscriptions", "2022-12-01")["value"][0]["displayName"] == "Lab"
    signed_in.server.route("GET", "/subscriptions", lambda _: refusal(403, "AuthorizationFailed", "no"))
    with pytest.raises(AzureRefused, match="AuthorizationFailed"):
        identity.rest().get("/subscriptions", "2022-12-01")


def test_nobody_is_signed_in(azure, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert identity.account() is None
    with pytest.raises(NotSignedIn, match=r"Not signed in to Azure\. Sign in: "):
        identity.credential()


def test_the_environment_lacks_a_variable(signed_in, monkeypatch):
    monkeypatch.delenv("AZURE_CLIENT_SECRET")
    with pytest.raises(NotSignedIn, match="AZURE_CLIENT_SECRET is not set in the environment of Jupyter"):
        identity.credential()


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        ("7000215", "The client secret is wrong (AADSTS7000215). Set AZURE_CLIENT_SECRET to the value of the secret"),
        ("7000222", "The client secret has expired (AADSTS7000222). Set AZURE_CLIENT_SECRET to a new one"),
        ("90002", "The tenant does not exist (AADSTS90002)."),
        ("50076", "Azure requires a second factor"),
        ("53003", "The policy of your organization does not allow this sign-in method (AADSTS53003)."),
        ("65001", "This app does not yet have consent to use Azure"),
        ("999999", "Azure did not issue a token. AADSTS999999: It is refused. Sign in again."),
    ],
)
def test_what_entra_id_refuses_is_one_sentence_with_its_remedy(signed_in, number, sentence):
    signed_in.login.refuse(f"AADSTS{number}", times=9)
    with pytest.raises(NotSignedIn) as caught:
        identity.credential().get_token("https://storage.azure.com/.default")
    assert sentence in str(caught.value)
    assert "Trace ID" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_secret_is_not_repeated(signed_in, monkeypatch):
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "a-wrong-secret")
    with pytest.raises(NotSignedIn, match="The client secret is wrong") as caught:
        identity.credential().get_token("https://storage.azure.com/.default")
    assert "a-wrong-secret" not in str(caught.value)


def test_an_unknown_tenant(signed_in, monkeypatch):
    monkeypatch.setenv("AZURE_TENANT_ID", "nobody.example")
    with pytest.raises(NotSignedIn, match="The tenant does not exist"):
        identity.credential().get_token("https://storage.azure.com/.default")


def test_no_network(signed_in):
    cloud = signed_in.cloud
    cloud.write_text(cloud.read_text().replace(signed_in.server.address, "https://nowhere.invalid"))
    with pytest.raises(NotSignedIn, match="The sign-in service cannot be reached"):
        identity.credential().get_token("https://storage.azure.com/.default")


def test_the_settings_on_disk_hold_no_secret(signed_in):
    text = settings.file().read_text()
    assert '"credential": "environment"' in text
    assert SECRET not in text
