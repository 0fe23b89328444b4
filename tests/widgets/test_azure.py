"""What a kernel's panel answers to its page; and the magic that shows it."""

import pytest

from distdl_jupyter.azure import settings
from distdl_jupyter.magic import commands
from distdl_jupyter.views.azure import HANDLERS
from distdl_jupyter.views.wire import handle_request
from distdl_jupyter.widgets.azure import AzurePanel, azure_sign_in
from tests.standin.login import CLIENT


def test_the_page_asks_and_is_answered(signed_in):
    request = {"id": "1", "call": "azure.sign_in", "arguments": {"credential": "default"}}
    told = handle_request(HANDLERS, request)["value"]
    assert (told["state"], told["account"]["name"]) == ("signed_in", f"app {CLIENT}")
    assert not [secret for secret in signed_in.login.given if secret in repr(told)]
    assert handle_request(HANDLERS, {"call": "azure.sign_out"})["value"]["state"] == "signed_out"


def test_what_cannot_be_is_refused_with_its_field(azure):
    error = handle_request(HANDLERS, {"call": "azure.settings", "arguments": {"cloud": "Nimbus"}})["error"]
    assert (error["type"], error["field"]) == ("InvalidSpec", "cloud")
    assert "Unknown request" in handle_request(HANDLERS, {"call": "dance"})["error"]["message"]


def test_in_a_terminal_the_magic_says_who_is_signed_in_and_how_else_one_could(azure, capsys):
    commands.change_azure({}, as_panel=False)
    text = capsys.readouterr().out
    assert text.startswith("Not signed in to Azure.\nSign-in methods:\n")
    assert "device_code" in text


def test_what_a_notebook_keeps_names_nobody(signed_in):
    data = azure_sign_in()._repr_mimebundle_()
    assert data["text/plain"] == "Sign in to Azure: run this cell to show the sign-in."
    assert CLIENT not in repr(data)


def test_the_magic_sets_and_signs_in(signed_in, capsys):
    settings.change(credential="")
    commands.change_azure({"credential": "default", "subscription_id": "s-9"}, as_panel=False)
    text = capsys.readouterr().out
    assert text.startswith(f"Signed in to Azure as app {CLIENT}, by default.")
    assert "subscription_id s-9" in text
    assert isinstance(commands.change_azure({"subscription_id": ""}), AzurePanel)
    assert settings.read().subscription_id == ""
    with pytest.raises(Exception, match="Unknown setting 'tenant' for Azure"):
        commands.change_azure({"tenant": "x"})
