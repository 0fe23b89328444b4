"""Who may ask: nobody without a login, nobody whom the server's Authorizer refuses, no other site's page."""

import json
import re

import httpx
import pytest
import websocket
from jupyter_server.auth import Authorizer, IdentityProvider
from tornado.web import RequestHandler

from tests.conftest import wait_for
from tests.server.listening import connect, subscribe, told
from tests.server.running import API, TOKEN, serve

VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
SAMPLES = {"id_": "20261121-024912-k3f9x", "name": "local", "path": "model.pt", "number": "1"}


def addresses(app):
    """Return an address for every rule of the running application that leads to a handler of ours."""
    found = []
    for host in app.web_app.default_router.rules:
        for rule in getattr(host.target, "rules", []):
            if getattr(rule.target, "__module__", "").startswith("distdl_jupyter"):
                pattern = rule.matcher.regex.pattern.removesuffix("$")
                filled = re.sub(r"\(\?P<(\w+)>[^)]*\)", lambda part: SAMPLES[part[1]], pattern)
                found.append((filled.replace("(?:/.*)?", "/nothing"), rule.target))
    return found


def test_nothing_answers_without_a_login(server):
    """Also what a handler does not implement, and whatever is added later: the addresses are the application's."""
    assert len(addresses(server.app)) >= 19
    with httpx.Client(base_url=server.url, timeout=60) as stranger:
        for address, _ in addresses(server.app):
            for verb in VERBS:
                answer = stranger.request(verb, address, json={} if verb in ("POST", "PUT", "PATCH") else None)
                assert answer.status_code in (401, 403), (verb, address, answer.status_code)
                if verb != "HEAD":
                    assert set(answer.json()) >= {"message", "type", "hint"}, answer.text


class DenyAll(Authorizer):
    asked: list = []  # noqa: RUF012

    def is_authorized(self, handler, user, action, resource):
        self.asked.append((action, resource))
        return False


def test_an_authorizer_that_denies_is_obeyed_everywhere(root):
    DenyAll.asked.clear()
    with serve(root, authorizer_class=DenyAll) as server:
        for address, handler in addresses(server.app):
            for verb in VERBS:
                answer = server.client.request(verb, address, json={} if verb == "POST" else None)
                assert answer.status_code == 403, (verb, address, answer.status_code)
            implemented = [v for v in VERBS if getattr(handler, v.lower()) is not RequestHandler._unimplemented_method]
            assert implemented or address.endswith("/nothing")
    assert {resource for _, resource in DenyAll.asked} == {"distdl"}


class ReadOnly(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return action == "read" or resource != "distdl"


def test_who_may_only_read_sees_everything_and_starts_nothing(root):
    with serve(root, authorizer_class=ReadOnly) as server:
        server.get("/jobs")
        assert told(server.url, "jobs", jobs=True)["jobs"]["rows"] == []
        assert server.post("/jobs", {"code": "1"}, status=403)["type"] == "Forbidden"
        server.post("/clusters", {"name": "mini", "kind": "local"}, status=403)
        server.delete(f"/jobs/{SAMPLES['id_']}", status=403)


class MayLook(Authorizer):
    may: bool = True

    def is_authorized(self, handler, user, action, resource):
        return self.may


class Guests(IdentityProvider):
    known: bool = True

    def get_user(self, handler):
        return super().get_user(handler) if self.known else None


@pytest.mark.parametrize("right", ["authorizer", "identity"])
def test_a_connection_ends_when_the_right_to_it_ends(root, monkeypatch, right):
    settings = {"authorizer_class": MayLook, "identity_provider_class": Guests}
    with serve(root, traits={"keep_alive_seconds": 0.3}, **settings) as server:
        connection = connect(server.url)
        subscribe(connection, jobs=True)
        wait_for(lambda: json.loads(connection.recv())["type"] == "alive")
        monkeypatch.setattr(*((MayLook, "may") if right == "authorizer" else (Guests, "known")), False)
        while (received := connection.recv_data())[0] == websocket.ABNF.OPCODE_TEXT:
            pass
        assert received[0] == websocket.ABNF.OPCODE_CLOSE
        assert int.from_bytes(received[1][:2]) == 1008
        connection.shutdown()
        with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
            connect(server.url)


def test_no_websocket_for_a_stranger_or_for_another_sites_page(server, browser):
    for headers in ({"Authorization": ""}, {"Authorization": "token guessed"}):
        with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
            connect(server.url, **headers)
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    connect(server.url, Authorization="", Cookie=cookie).close()
    with pytest.raises(websocket.WebSocketBadStatusException, match=r"403|404"):
        connect(server.url, Authorization="", Cookie=cookie, Origin="https://elsewhere.example")


class MayNotExecute(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return action != "execute"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/form", {"code": "1", "fields": {"data": [{"name": "a", "uri": "/etc"}]}}),
        ("/choices", {"kind": "slurm", "option": "partition", "options": {}}),
        ("/clusters/local/check", {}),
        ("/jobs", {"code": "1"}),
        (f"/jobs/{SAMPLES['id_']}/rerun", {}),
        (f"/jobs/{SAMPLES['id_']}/resume", {}),
    ],
)
def test_what_starts_processes_or_asks_elsewhere_needs_the_right_to_execute(root, path, body):
    with serve(root, authorizer_class=MayNotExecute) as server:
        assert "does not have permission to execute" in server.post(path, body, status=403)["message"]
        server.post("/clusters", {"name": "local", "kind": "local"}, status=400)


@pytest.fixture
def browser(server):
    """A client that is logged in by cookie, as a page is."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.get("/login", params={"token": TOKEN}, follow_redirects=True)
        client.get("/login", follow_redirects=True)
        assert "_xsrf" in client.cookies
        yield client


def test_a_page_of_another_site_cannot_post_with_the_users_cookie(browser):
    assert browser.get(f"{API}/jobs", headers={"Referer": str(browser.base_url)}).status_code == 200
    body = {"json": {"name": "local", "kind": "local"}}
    refused = browser.post(f"{API}/clusters", **body)
    assert refused.status_code == 403
    assert "XSRF" in refused.json()["message"].upper()
    assert browser.post(f"{API}/clusters", headers={"X-XSRFToken": "guessed"}, **body).status_code == 403
    allowed = browser.post(f"{API}/clusters", headers={"X-XSRFToken": browser.cookies["_xsrf"]}, **body)
    assert allowed.status_code == 400, allowed.text  # the name is taken


def test_another_sites_page_is_refused_by_its_origin(server, browser):
    """Jupyter's own rule for an Origin or Referer of elsewhere."""
    headers = {"Origin": "https://elsewhere.example", "X-XSRFToken": browser.cookies["_xsrf"]}
    assert browser.get(f"{API}/jobs", headers=headers).status_code in (403, 404)
    assert server.get("/jobs") == []


def test_no_answer_is_guessed_to_be_something_else_or_framed(server):
    for path in ("/jobs", "/nothing", "/jobs/../nothing"):
        headers = server.ask("GET", path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
    policy = server.ask("GET", "/jobs").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy


def test_a_body_has_a_limit_however_it_comes(root):
    with serve(root, traits={"max_body_bytes": 1000}) as server:
        big = b'{"code": "' + b"x" * 5000 + b'"}'
        for content in (big, iter([big[:2000], big[2000:]])):
            answer = server.ask("POST", "/jobs", content=content)
            assert answer.status_code == 413, answer.text
            assert answer.json()["message"] == "The request body must not exceed 1,000 bytes."
        with httpx.Client(base_url=server.url, timeout=60) as stranger:
            assert stranger.post(f"{API}/jobs", content=iter([big] * 50)).status_code == 403
        assert server.get("/jobs") == []


def test_a_server_behind_a_hub_answers_below_its_base_url(root):
    with serve(root, base_url="/user/ada/") as server:
        assert server.get("/jobs") == []
        assert httpx.get(f"{server.url.removesuffix('/user/ada')}{API}/jobs").status_code in (403, 404)


def test_the_servers_threads_end_with_it(root):
    import threading

    before = set(threading.enumerate())

    def started():
        return [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("distdl")]

    with serve(root) as server:
        server.get("/jobs")
        assert started()
    wait_for(lambda: not started(), what="the end")
