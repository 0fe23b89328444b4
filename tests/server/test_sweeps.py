"""Sweeps over HTTP: read, stopped, resumed, the best once more, deleted."""

import pytest

from distdl_jupyter import jobs, loguniform, sweep
from distdl_jupyter.core.events import State
from distdl_jupyter.jobs import client
from distdl_jupyter.studies import sweep_study
from tests.client import swept
from tests.conftest import wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


def test_a_sweep_is_read_stopped_resumed_and_deleted(server):
    assert server.ask("GET", "/sweeps/20261121-024912-k3f9x").status_code == 404
    found = sweep(swept.trains, {"lr": loguniform(1e-4, 1e-1), "width": [32, 64]}, trials=2, pruner="none",
                  kwargs={"epochs": 30, "seconds": 0.1}, name="digits")  # fmt: skip
    at = f"/sweeps/{found.id}"
    wait_for(lambda: jobs() and jobs()[0].view().metrics, what="a trial at work")
    panel = wait_for(lambda: (now := server.get(at))["trials"] and now["trials"][0]["points"] and now, what="a curve")
    assert (panel["state"], panel["done"], panel["size"], panel["best"]) == ("running", 0, 2, None)
    assert panel["parameters"] == ["lr", "width"]
    assert server.ask("POST", f"{at}/resume").status_code == 409
    assert server.ask("DELETE", at).status_code == 409
    assert server.ask("POST", f"{at}/stop").status_code == 202
    wait_for(lambda: server.get(at)["state"] == "canceled", what="the end of the sweep")
    assert server.ask("POST", f"{at}/stop").status_code == 409
    assert server.ask("POST", f"{at}/best", json={"processes": 1}).status_code == 410
    server.post(f"{at}/resume")
    panel = wait_for(lambda: (now := server.get(at))["state"] == "completed" and now, 120, what="the end of the sweep")
    assert panel["done"] == 2
    assert panel["trials"][0]["number"] == panel["best"]
    row = server.post(f"{at}/best", {"processes": 1})
    assert row["name"] == "digits, best"
    assert client.attach(row["id"]).wait(60).state is State.COMPLETED
    assert server.ask("POST", f"{at}/best", json={"processes": 0}).status_code == 400
    assert server.ask("DELETE", at).status_code == 204
    assert [job.id for job in jobs()] == [row["id"]]
    assert not sweep_study.get_folder(found.id).path.exists()
    assert server.ask("GET", at).status_code == 404


SCRIPT = """
import argparse
from distdl_jupyter import log
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1.0)
lr = parser.parse_args().lr
log(step=0, loss=lr + shift)
"""


def test_text_is_swept_by_its_names_and_flags(server):
    options = {"process_count_per_node": 1, "distributed_backend": "plain", "name": "digits", "sampler": "grid"}
    asked = {"code": SCRIPT, "parameters": "lr=0.1,0.2 shift=1,2", "options": {**options, "trials": 2}}
    for change, field in (({"parameters": "lr"}, "parameters"), ({"parameters": "depth=1,2"}, "parameters"),
                          ({"code": ""}, "code"), ({"options": {**options, "trials": 0}}, "trials")):  # fmt: skip
        refused = server.ask("POST", "/sweeps", json={**asked, **change})
        assert (refused.status_code, refused.json()["field"]) == (400, field)
    panel = server.ask("POST", "/sweeps", json=asked).json()
    assert (panel["name"], panel["size"], panel["state"]) == ("digits", 2, "running")
    found = sweep(panel["id"]).wait(120)
    for one in found.study.trials:
        assert one.value == pytest.approx(one.params["lr"] + one.params["shift"])
        assert one.job.spec.script_arguments == ("--lr", str(one.params["lr"]))
