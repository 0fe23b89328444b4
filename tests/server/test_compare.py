"""Jobs side by side over HTTP."""

import pytest

from distdl_jupyter.core.spec import GitState
from distdl_jupyter.core.store import JobStore
from tests.widgets import recorded


@pytest.fixture
def jobs(distdl_home):
    stories = [recorded.tell(kind, JobStore()) for kind in ("completed", "killed")]
    for story in stories:
        story.close()
    return [story.id for story in stories]


def test_what_the_jobs_ran_with_is_compared_and_can_be_had(server, jobs):
    for id_, version, diff in zip(jobs, ("1.0", "2.0"), ("+lr = 0.1\n", ""), strict=True):
        packages = {"torch": "2.13.0", "oneleaf": version}
        JobStore().get_folder(id_).add_environment(python="3.11.7 (main)", packages=packages)
        JobStore().get_folder(id_).add_environment(git=GitState("0123456789abcdef", "main", diff=diff))
    rows = {row["field"]: row for row in server.get("/compare", ids=",".join(jobs))["rows"]}
    assert rows["git"]["values"] == ["main 0123456789, with changes", "main 0123456789"]
    assert rows["package.oneleaf"]["values"] == ["1.0", "2.0"]
    assert "package.torch" not in rows
    found = server.get(f"/jobs/{jobs[0]}/environment")
    assert (found["packages"]["oneleaf"], found["git"]["diff"]) == ("1.0", "+lr = 0.1\n")
    shown = {row["field"]: row["value"] for row in server.get(f"/jobs/{jobs[1]}")["spec"]}
    assert (shown["git"], shown["packages"]) == ("main 0123456789", "2")


def test_what_is_wrong_with_a_comparison_is_said(server, jobs):
    assert server.get("/compare", status=400)["message"] == "ids must be 1 to 12 different jobs."
    assert server.get("/compare", status=400, ids=",".join(f"{n}" for n in range(13)))["field"] == "ids"
    assert server.get("/compare", status=404, ids=f"{jobs[0]},../etc")["type"] == "JobNotFound"
    unknown = server.get("/compare", ids=jobs[0], metric="nowhere")
    assert (unknown["metric"], unknown["bands"][0]["rows"]) == ("nowhere", [])
