"""What the ranks of a job have shown, over HTTP."""

import pytest

from distdl_jupyter.core.store import JobStore
from tests.widgets import recorded
from tests.worker.test_pictures import jpeg, png


@pytest.fixture
def job(distdl_home):
    story = recorded.tell("completed", JobStore())
    recorded.show(story, png(64, 48), ranks=(0, 1))
    recorded.show(story, jpeg(6, 4))
    story.close()
    return story.folder


def test_a_picture_is_served_as_what_it_is(server, job):
    told = server.get(f"/jobs/{job.id}")["card"]["pictures"]
    assert [(one["number"], one["width"], one["height"], one["ranks"]) for one in told] == [
        (1, 64, 48, [0, 1]), (2, 6, 4, [0]),
    ]  # fmt: skip
    for number, data, form in ((1, png(64, 48), "png"), (2, jpeg(6, 4), "jpeg")):
        answer = server.ask("GET", f"/jobs/{job.id}/pictures/{number}")
        assert (answer.status_code, answer.content) == (200, data)
        assert answer.headers["Content-Type"] == f"image/{form}"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("number", ["3", "4", "0", "-1", "x", "1.png", "..%2f1", "9" * 5000, "%C2%B2"])
def test_what_is_no_picture_is_not_served(server, job, number):
    (job.path / "pictures/3.png").write_text("<script>alert(1)</script>")
    (job.path / "pictures/4.png").symlink_to("1.png")
    assert server.ask("GET", f"/jobs/{job.id}/pictures/{number}").status_code in (404, 414)
