"""Old jobs are deleted by the server's own setting: what ``prune`` decides, and nothing more."""

import pytest

from distdl_jupyter.core.store import JobStore
from distdl_jupyter.jobs import retention
from tests import finished
from tests.conftest import wait_for
from tests.server.running import serve

pytestmark = pytest.mark.timeout(120)


def test_the_setting_deletes_old_jobs_at_the_start_and_once_a_day(root):
    folders = [finished.job(number) for number in range(3)]
    with serve(root, traits={"prune_keep": 1}):
        wait_for(lambda: JobStore().list_ids() == [folders[2].id], what="two jobs to go")
    newer = finished.job(9)
    with serve(root, traits={"prune_keep": 1}) as server:
        assert retention.prune_daily(None, 1) is None
        assert len(server.get("/jobs")) == 2
    assert set(JobStore().list_ids()) == {folders[2].id, newer.id}


def test_a_setting_that_is_wrong_deletes_nothing_and_is_told(root, caplog):
    finished.job()
    with serve(root, traits={"prune_older": "soon"}) as server:
        server.extension.log.addHandler(caplog.handler)
        wait_for(lambda: "Old jobs were not deleted: older must be an age" in caplog.text, what="the warning")
        assert len(server.get("/jobs")) == 1
