"""A scaling study over HTTP: read, and gone on with by a process of its own."""

import _thread
import threading

import pytest

from distdl_jupyter import client, jobs, scale
from distdl_jupyter.core.state import State
from tests.client import scaled
from tests.conftest import wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]


def test_a_study_is_read_and_goes_on_without_who_began_it(server, distdl_home):
    at = "/scaling/20261121-024912-k3f9x"
    assert server.ask("GET", at).status_code == server.ask("POST", f"{at}/resume").status_code == 404

    def interrupt():
        wait_for(lambda: jobs() and jobs()[0].folder.steps.exists(), 120, what="the first steps")
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        scale(scaled.sleeps, [1], (0.02,), backends="torch", seconds=1, name="digits")
    (row,) = client.rows()
    at = f"/scaling/{row.group.id}"
    wait_for(lambda: server.get(at)["state"] == "canceled", what="the end of the study")
    panel = server.post(f"{at}/resume")
    assert (panel["state"], panel["done"], panel["size"]) == ("running", 0, 1)
    assert server.ask("POST", f"{at}/resume").status_code == 409
    panel = wait_for(lambda: (now := server.get(at))["state"] != "running" and now, 120, what="the end of the study")
    assert (panel["state"], panel["done"]) == ("completed", 1)
    assert server.ask("POST", f"{at}/resume").status_code == 409
    assert jobs()[-1].id == row.id
    assert {job.state for job in jobs()} == {State.CANCELED}


def test_a_study_whose_code_cannot_be_read_says_why_it_does_not_go_on(server, distdl_home):
    def interrupt():
        wait_for(lambda: jobs() and jobs()[0].folder.steps.exists(), 120, what="the first steps")
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        scale(scaled.sleeps, [1], (0.02,), backends="torch", seconds=1)
    jobs()[0].folder.payload.chmod(0o666)
    at = f"/scaling/{client.rows()[0].group.id}"
    wait_for(lambda: server.get(at)["state"] == "canceled", what="the end of the study")
    refused = server.ask("POST", f"{at}/resume")
    assert refused.status_code == 502
    assert "is writable by others" in refused.json()["message"]
    assert len(jobs()) == 1
