"""What ranks use, over HTTP and in the live stream of a job, with real ranks."""

import pytest

from tests.conftest import wait_for
from tests.server.listening import listening

pytestmark = pytest.mark.timeout(300)

HOLDS = """
import os, time
held = bytearray(b"x" * 100_000_000)
time.sleep(60)
"""


def test_resources_are_told_while_the_job_runs(server):
    id_ = server.submit(HOLDS, options={"process_count_per_node": 2, "distributed_backend": "torch"})
    try:

        def held():
            found = server.get(f"/jobs/{id_}/resources")
            return found if len(found["ranks"]) == 2 and found["ranks"][1]["cpu"] is not None else None

        found = wait_for(held, 60, "a sample with rates")
        assert [one["rank"] for one in found["ranks"]] == [0, 1]
        assert all(one["gpu"] is None for one in found["ranks"])
        wait_for(
            lambda: min(one["memory"] for one in server.get(f"/jobs/{id_}/resources")["ranks"]) > 100e6, 60, "100 MB"
        )
        (node,) = found["nodes"]
        assert node["host"]
        assert 0 < node["memory"] < node["limit"]
        assert [strip["name"] for strip in found["strips"]][:2] == ["cpu", "memory"]
        assert found["marks"] == [] or found["marks"][0]["kind"] == "memory"
        with listening(server.url, job={id_: {"resources": True}}) as page:
            first, second = page.until_told("resources", many=2)[:2]
            assert first["key"] != second["key"]
            assert len(second["ranks"]) == 2
    finally:
        server.post(f"/jobs/{id_}/cancel", {"now": True}, 202)


def test_a_job_that_is_not_there_is_refused(server):
    server.get("/jobs/20260101-000000-aaaaa/resources", 404)
