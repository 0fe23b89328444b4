"""Old jobs are deleted over HTTP and by the server's own setting: what ``prune`` decides, and nothing more."""

import pytest

from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobStore
from tests import finished
from tests.conftest import wait_for
from tests.server.running import serve
from tests.server.test_access import ReadOnly

pytestmark = pytest.mark.timeout(120)


def test_a_page_sees_what_would_go_and_deletes_only_that(server):
    folders = [finished.job(number, State.FAILED if number else State.COMPLETED) for number in range(3)]
    shown = server.post("/jobs/prune", {"keep": 1, "dry_run": True}, status=200)
    assert [job["id"] for job in shown["jobs"]] == [folders[1].id, folders[0].id]
    assert shown["jobs"][0].keys() == {"id", "name", "state", "ended", "size", "problem"}
    assert shown["kept"] == [{"reason": "newest", "count": 1}]
    assert server.get("/jobs")["total"] == 3
    done = server.post("/jobs/prune", {"keep": 0, "only": [job["id"] for job in shown["jobs"]]}, status=200)
    assert [job["problem"] for job in done["jobs"]] == ["", ""]
    assert [row["id"] for row in server.get("/jobs")["jobs"]] == [folders[2].id]


def test_what_is_not_clear_is_refused(server):
    finished.job()
    assert server.post("/jobs/prune", {}, status=400)["type"] == "InvalidSpec"
    assert server.post("/jobs/prune", {"older": "30"}, status=400)["field"] == "older"
    assert server.post("/jobs/prune", {"keep": -1}, status=400)["field"] == "keep"
    assert server.get("/jobs")["total"] == 1


def test_who_may_not_delete_a_job_may_not_prune(root):
    finished.job()
    with serve(root, authorizer_class=ReadOnly) as server:
        assert (
            "does not have permission to write"
            in server.post("/jobs/prune", {"keep": 0, "dry_run": True}, status=403)["message"]
        )
        assert server.get("/jobs")["total"] == 1


def test_the_setting_deletes_old_jobs_at_the_start_and_once_a_day(root):
    folders = [finished.job(number) for number in range(3)]
    with serve(root, traits={"prune_keep": 1}):
        wait_for(lambda: JobStore().ids() == [folders[2].id], what="two jobs to go")
    newer = finished.job(9)
    with serve(root, traits={"prune_keep": 1}) as server:
        server.extension._prune()
        assert server.get("/jobs")["total"] == 2
    assert set(JobStore().ids()) == {folders[2].id, newer.id}


def test_a_setting_that_is_wrong_deletes_nothing_and_is_told(root, caplog):
    finished.job()
    with serve(root, traits={"prune_older": "soon"}) as server:
        server.extension.log.addHandler(caplog.handler)
        wait_for(lambda: "Old jobs were not deleted: older must be an age" in caplog.text, what="the warning")
        assert server.get("/jobs")["total"] == 1


def test_without_the_setting_nothing_is_deleted(server):
    assert server.extension.prune_older == ""
    assert server.extension.prune_keep is None
    assert server.extension._pruning is None
