"""A check over HTTP: text is checked instead of submitted, and so is the code of a job."""

import pytest

from tests.conftest import wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

CODE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for step in range(50):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def ended(server, id_):
    return wait_for(lambda: (found := server.get(f"/jobs/{id_}/check"))["state"] == "done" and found, timeout=300)


def test_text_and_a_job_are_checked_and_their_findings_are_told(server):
    row = server.post("/jobs", {"code": CODE, "check": True, "options": {"name": "digits", "np": 2}})
    assert row["name"] == "digits, check"
    assert server.get(f"/jobs/{row['id']}")["is_check"] is True
    found = ended(server, row["id"])
    assert [one["code"] for one in found["findings"]] == ["gradients-not-averaged"]
    assert found["summary"] == "1 mistake found in 3 steps of 2 ranks."
    assert found["findings"][0]["tensor"] in ("weight", "bias")
    assert found["single"]
    assert server.get(f"/jobs/{found['single']}")["is_check"] is False
    assert server.ask("GET", f"/jobs/{found['single']}/check").status_code == 404
    again = server.post(f"/jobs/{row['id']}/check")
    assert ended(server, again["id"])["findings"][0]["code"] == "gradients-not-averaged"
