"""``%dist_config monitoring``: what a user settles, and that no secret of the environment is shown."""

import json

import pytest


@pytest.fixture
def configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "configuration"))
    monkeypatch.setenv("APPLICATIONINSIGHTS_CONNECTION_STRING", "InstrumentationKey=a-secret")
    return tmp_path / "configuration" / "distdl_monitoring.json"


def test_it_is_off_until_the_user_wants_it(configuration, kernel):
    assert kernel.ok("%dist_config monitoring").text.splitlines() == [
        "enabled = False",
        "destination = APPLICATIONINSIGHTS_CONNECTION_STRING",
        "address = none",
        "notify = end,failure,stall,nan,rule",
    ]
    assert not configuration.exists()
    assert kernel.ok("%dist_config monitoring enabled=true").text.startswith("enabled = True\n")
    assert json.loads(configuration.read_text()) == {"enabled": True}
    refused = kernel.run("%dist_config monitoring connection_string=InstrumentationKey=x").error
    assert refused.startswith("InvalidSpec: Unknown setting 'connection_string' for monitoring.")
    assert "a-secret" not in kernel.ok("%dist_config monitoring").text
