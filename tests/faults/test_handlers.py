"""Requests that no page would send: every answer is an error of the conversation, and no other file is ever read.

What the OpenAPI file describes is held against a running server by ``tests/server/test_openapi``; here is what no
schema generates: raw query strings, bodies, headers, links and pipes among a job's outputs.
"""

import os
import random

import pytest

from distdl_jupyter import api
from distdl_jupyter.core.store import JobStore
from tests.selection import few_or_all
from tests.server.running import TOKEN
from tests.widgets import recorded

pytestmark = pytest.mark.timeout(300)

IDS = ("..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "20261121-024912-k3f9x", "20261121-024912-k3f9x%00", "a" * 5000,
       "%ff%fe", "*", "~", "%0d%0aX-Injected:%201", "20261121-024912-k3f9x%2f..",
       ".new-20261121-024912-k3f9x")  # fmt: skip
VALUES = ("", "-1", "1e308", "9" * 5000, "NaN", "%00", "%ff", "a" * 10_000, "[]", "{}", "null", "true", "../../x",
          "1;2", "%f0%9f%98%80", "<script>")  # fmt: skip
BODIES = (b"", b"null", b"[]", b"1", b'"x"', b"{", b'{"a":' * 5000, b"\xff\xfe", b"\0", b'{"code":1e999}',
    b'{"code":' + b"9" * 5000 + b"}",
          b'{"code":"' + b"x" * 1000 + b'","options":{"node_count":1e308}}', b'{"__proto__":{"x":1}}', b'{"now":"yes"}',
          b'{"code":"1","options":{"name":"\\u0000"}}', b'{"code":"1","notebook":"../../etc/passwd"}')  # fmt: skip
HEADERS = ({"Range": "bytes=-99999999999999999999"}, {"Range": "bytes=5-1"}, {"Range": "lines=x"},
    {"Accept": "*/*;q=x"},
           {"Accept": "image/png"}, {"Content-Type": "text/xml"}, {"If-None-Match": '"' * 500}, {"X": "y" * 5000},
           {"If-Modified-Since": "yesterday"}, {"Content-Encoding": "gzip"})  # fmt: skip
VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@pytest.fixture
def job(distdl_home):
    story = recorded.tell("completed", JobStore())
    story.close()
    (story.folder.outputs / "model.pt").write_bytes(bytes(range(256)) * 40)
    return story.folder


def addresses(id_):
    """Return every address of a job, and what has no job."""
    for path in dict.fromkeys(call.path for call in api.calls()):
        if "{" in path or "(" in path:
            continue
        yield path
    for rest in ("", "/result", "/log", "/outputs", "/outputs/model.pt", "/curve", "/metrics", "/cancel", "/rerun",
                 "/resume", "/stacks"):  # fmt: skip
        yield f"/jobs/{id_}{rest}"


def sound(answer, what):
    """Hold what is promised of every answer."""
    assert answer.status_code < 500, (what, answer.status_code, answer.text[:300])
    assert "root:x" not in answer.text, what
    assert "X-Injected" not in answer.headers, what
    if answer.status_code >= 400 and answer.headers.get("Content-Type", "").startswith("application/json"):
        found = answer.json()
        assert found["message"], what
        assert {"message", "type", "hint"} <= set(found), what


def is_stream(path):
    return "stream" in path


@pytest.mark.full
@pytest.mark.fault("handlers", "a path, a huge text, no text for an id: 4xx with message, type and hint")
def test_ids_that_are_none(server, job, injected):
    for id_ in IDS:
        for verb in VERBS:
            for path in addresses(id_):
                if f"/{id_}" not in path:
                    continue
                # Tornado closes the connection behind an address that is no UTF-8.
                answer = server.ask(verb, path, headers={"Connection": "close"})
                sound(answer, (verb, path))
                assert answer.status_code >= 400, (verb, path)
                injected()
    assert job.spec_file.exists()


@pytest.mark.fault("handlers", "any query, body and header at any address: never a 500, and the server keeps running")
def test_any_request_at_any_address(server, job, injected):
    chance = random.Random(7)
    for _ in range(few_or_all(250, 3000)):
        path = chance.choice([path for path in addresses(job.id) if not is_stream(path) and "azure" not in path])
        verb = chance.choice(VERBS)
        if verb == "DELETE" and path == f"/jobs/{job.id}":
            continue
        names = (
            "limit",
            "offset",
            "state",
            "q",
            "rank",
            "tail",
            "metric",
            "mode",
            "since",
            "n",
            "x[]",
            "mark",
            "after",
        )
        query = "&".join(f"{chance.choice(names)}={chance.choice(VALUES)}" for _ in range(chance.randrange(3)))
        body = chance.choice(BODIES) if verb in ("POST", "PUT", "PATCH") else None
        if path.endswith(("/rerun", "/resume")) and verb == "POST":
            continue  # these begin real jobs
        headers = chance.choice(HEADERS) if chance.random() < 0.4 else {}
        answer = server.ask(verb, f"{path}?{query}" if query else path, content=body, headers=headers)
        sound(answer, (verb, path, query, body, headers))
        injected()
    assert server.get("/jobs")["total"] == 1


@pytest.mark.fault(
    "handlers", "ten megabytes instead of a short text, and a body beyond the limit: 4xx, nothing is stored"
)
def test_huge_requests(server, job, injected):
    word = "x" * 10_000_000
    for body in ({"code": 1, "name": word}, {"code": "1", "name": word}, {"code": "1", "options": {word: 1}},
                 {"code": "1", "kernel_name": word}, {"code": "1", "notebook": word},
                 {"code": "1", "options": {"distributed_backend": word}}):  # fmt: skip
        answer = server.ask("POST", "/jobs", json=body)
        assert 400 <= answer.status_code < 500, (list(body), answer.text[:300])
        assert len(answer.content) < 100_000, list(body)
        injected()
    limit = server.extension.max_body_bytes
    answer = server.ask("POST", "/jobs", content=b" " * (limit + 1))
    assert answer.status_code == 413
    injected()
    assert server.get("/jobs")["total"] == 1


@pytest.mark.fault("handlers", "no token, a wrong one, another user's: rejected for every address and method")
def test_foreign_tokens(server, job, injected):
    import httpx

    with httpx.Client(base_url=server.url) as stranger:
        for headers in ({}, {"Authorization": "token wrong"}, {"Authorization": f"token {TOKEN}x"},
                        {"Authorization": "Basic eDp5"}, {"Authorization": f"token {TOKEN[:-1]}"}):  # fmt: skip
            for path in addresses(job.id):
                for verb in ("GET", "POST", "DELETE"):
                    answer = stranger.request(verb, f"/distdl/api{path}", headers=headers)
                    assert answer.status_code in (403, 404, 405), (verb, path, answer.status_code)
                    assert job.id not in answer.text or answer.status_code == 404
                    injected()
    assert job.spec_file.exists()


@pytest.mark.fault("handlers", "links, pipes and loops among the outputs: nothing outside is listed or read")
def test_outputs_that_point_outside(server, job, tmp_path, injected):
    secret = tmp_path / "secret.txt"
    secret.write_text("root:x:secret")
    outputs = job.outputs
    (outputs / "absolute").symlink_to(secret)
    (outputs / "relative").symlink_to("../spec.json")
    (outputs / "folder").symlink_to(tmp_path)
    (outputs / "loop").symlink_to("loop")
    (outputs / "self").symlink_to(".")
    (outputs / "chain").symlink_to("absolute")
    os.mkfifo(outputs / "pipe")
    (outputs / "device").symlink_to("/dev/zero")
    (outputs / "proc").symlink_to("/proc/self/environ")
    listed = [one["path"] for one in server.get(f"/jobs/{job.id}/outputs")["outputs"]]
    assert set(listed) <= {"model.pt"}, listed
    for name in ("absolute", "relative", "folder/secret.txt", "loop", "chain", "pipe", "device", "proc",
                 "self%2f..%2f..%2fspec.json", "model.pt%2f..%2f..%2fspec.json", "model.pt/x", "./../spec.json",
                 "a" * 4000, "%00", "..%5cspec.json"):  # fmt: skip
        answer = server.ask("GET", f"/jobs/{job.id}/outputs/{name}")
        assert answer.status_code == 404, (name, answer.status_code)
        sound(answer, name)
        injected()
    assert server.ask("GET", f"/jobs/{job.id}/outputs/model.pt").content == bytes(range(256)) * 40
