"""Requests that no page would send: every answer is an error of the conversation.

What the OpenAPI file describes is held against a running server by ``tests/server/test_openapi``; here is what no
schema generates: raw query strings, bodies and headers.
"""

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
NAMES = ("limit", "offset", "state", "q", "rank", "tail", "metric", "mode", "since", "n", "x[]", "mark", "after")
VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE")


@pytest.fixture
def job(distdl_home):
    story = recorded.tell("completed", JobStore())
    story.close()
    (story.folder.outputs / "model.pt").write_bytes(b"weights")
    return story.folder


def addresses(id_):
    """Return every address of a job, and what has no job."""
    for path in dict.fromkeys(endpoint.path for endpoint in api.list_endpoints()):
        if "{" in path or "(" in path:
            continue
        yield path
    for rest in ("", "/result", "/log", "/outputs", "/outputs/model.pt", "/metrics", "/cancel", "/rerun",
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


@pytest.mark.fault(
    "handlers",
    "any id, query, body and header at any address: never a 500, 4xx for an id of no job; the server keeps running",
)
def test_any_request_at_any_address(server, job, injected):
    chance = random.Random(7)
    for _ in range(few_or_all(250, 3000)):
        id_ = chance.choice((job.id, *IDS)) if chance.random() < 0.5 else job.id
        path = chance.choice([path for path in addresses(id_) if "stream" not in path and "azure" not in path])
        verb = chance.choice(VERBS)
        if verb == "DELETE" and path == f"/jobs/{job.id}":
            continue
        query = "&".join(f"{chance.choice(NAMES)}={chance.choice(VALUES)}" for _ in range(chance.randrange(3)))
        body = chance.choice(BODIES) if verb in ("POST", "PUT", "PATCH") else None
        if path.endswith(("/rerun", "/resume")) and verb == "POST":
            continue  # these begin real jobs
        headers = chance.choice(HEADERS) if chance.random() < 0.4 else {}
        if id_ in IDS:  # Tornado closes the connection behind an address that is not UTF-8.
            headers = {**headers, "Connection": "close"}
        answer = server.ask(verb, f"{path}?{query}" if query else path, content=body, headers=headers)
        sound(answer, (verb, path, query, body, headers))
        assert answer.status_code >= 400 or f"/{id_}" not in path or id_ == job.id, (verb, path)
        injected()
    assert len(server.get("/jobs")) == 1


@pytest.mark.fault(
    "handlers", "ten megabytes instead of a short text, and a body beyond the limit: 4xx, nothing is stored"
)
def test_huge_requests(server, job, injected):
    word = "x" * 10_000_000
    for body in ({"code": 1, "name": word}, {"code": "1", "options": {"name": word}},
                 {"code": "1", "options": {word: 1}}, {"code": "1", "kernel_name": word},
                 {"code": "1", "notebook": word}, {"code": "1", "options": {"distributed_backend": word}}):  # fmt: skip
        answer = server.ask("POST", "/jobs", json=body)
        assert 400 <= answer.status_code < 500, (list(body), answer.text[:300])
        assert len(answer.content) < 100_000, list(body)
        injected()
    limit = server.extension.max_body_bytes
    answer = server.ask("POST", "/jobs", content=b" " * (limit + 1))
    assert answer.status_code == 413
    injected()
    assert len(server.get("/jobs")) == 1


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
