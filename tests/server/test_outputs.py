"""What a job wrote for keeping, as downloads: everything below its outputs, and nothing else of this machine."""

import os

import pytest

from distdl_jupyter.core.store import JobStore
from tests.widgets import recorded

HOSTILE = 'e"vil\r\nX-Injected: 1; <b>ünïcode%2e%2e.html'


@pytest.fixture
def job(distdl_home):
    story = recorded.tell("failed", JobStore())
    story.close()
    return story.folder


def test_a_download_is_never_shown_as_a_page_of_this_server(server, job):
    (job.outputs / HOSTILE).write_text("<script>alert(1)</script>")
    listed = server.get(f"/jobs/{job.id}/outputs")
    assert [one["path"] for one in listed] == [HOSTILE]
    from urllib.parse import quote

    answer = server.ask("GET", f"/jobs/{job.id}/outputs/{quote(HOSTILE, safe='')}")
    assert answer.status_code == 200, answer.text
    assert answer.text == "<script>alert(1)</script>"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Disposition"].startswith("attachment; filename*=utf-8''e%22vil")
    assert "X-Injected" not in answer.headers


@pytest.mark.fault(
    "handlers",
    "links, pipes and loops among the outputs, paths that lead out of them: nothing outside is listed or read",
)
@pytest.mark.parametrize(
    "path",
    ["../spec.json", "..%2fspec.json", "%2e%2e/%2e%2e/spec.json", "/etc/passwd", "%2fetc%2fpasswd", "models", "none",
     "a%00b", "link", "folder/spec.json", "pipe", "~/.bashrc", "models/../../spec.json", "loop",
     "self%2f..%2f..%2fspec.json", "device", "environment", "..%5cspec.json", "a" * 4000],
)  # fmt: skip
def test_nothing_outside_is_ever_read(server, job, path):
    (job.outputs / "models").mkdir()
    (job.outputs / "link").symlink_to("/etc/passwd")
    (job.outputs / "folder").symlink_to(job.path)
    (job.outputs / "loop").symlink_to("loop")
    (job.outputs / "self").symlink_to(".")
    (job.outputs / "device").symlink_to("/dev/zero")
    (job.outputs / "environment").symlink_to("/proc/self/environ")
    os.mkfifo(job.outputs / "pipe")
    answer = server.ask("GET", f"/jobs/{job.id}/outputs/{path}")
    assert answer.status_code == 404, answer.text
    assert "root:" not in answer.text
    assert server.get(f"/jobs/{job.id}/outputs") == []


def test_a_link_inside_the_outputs_is_a_file_like_any_other(server, job):
    (job.outputs / "step-9.pt").write_text("weights")
    (job.outputs / "best.pt").symlink_to("step-9.pt")
    listed = server.get(f"/jobs/{job.id}/outputs")
    assert [(one["path"], one["size"]) for one in listed] == [("best.pt", 7), ("step-9.pt", 7)]
    assert server.ask("GET", f"/jobs/{job.id}/outputs/best.pt").text == "weights"


def test_an_id_is_no_path(server, job):
    (job.path.parent / "secret.txt").write_text("secret")
    part = job.id.rsplit("-", 1)[1]
    for id_ in ("%2e%2e", f"..%2f{job.id}", "*", f"{job.id}%2f..", part, "%00", "a" * 5000):
        for rest in ("", "/result", "/outputs", "/outputs/secret.txt", "/log", "/metrics"):
            answer = server.ask("GET", f"/jobs/{id_}{rest}")
            assert answer.status_code == 404, (id_, rest, answer.status_code)
            assert "secret" not in answer.text
        assert server.ask("DELETE", f"/jobs/{id_}").status_code in (404, 405)
    assert job.spec_file.exists()
