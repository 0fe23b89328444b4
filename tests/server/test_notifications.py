"""Where messages go, over HTTP: set, tried and taken back, and never more of the address than its host."""

import json

from tests.monitoring.endpoint import Endpoint


def test_a_webhook_is_set_and_tried(server):
    assert server.get("/notifications")["host"] == ""
    refused = server.ask("POST", "/notifications/test")
    assert (refused.status_code, refused.json()["field"]) == (400, "webhook")
    assert server.ask("PATCH", "/notifications", json={"webhook": "file:///etc/passwd"}).status_code == 400
    endpoint, refusing = Endpoint(), Endpoint(403)
    try:
        body = {"webhook": f"{endpoint.address}/hidden", "notify": "failure"}
        found = server.ask("PATCH", "/notifications", json=body)
        assert found.json() == {"host": "127.0.0.1", "notify": "failure"}
        assert server.ask("POST", "/notifications/test").json() == found.json()
        assert json.loads(endpoint.posts[0][2])["kind"] == "end"
        server.ask("PATCH", "/notifications", json={"webhook": f"{refusing.address}/hidden"})
        answer = server.ask("POST", "/notifications/test")
        assert (answer.status_code, "hidden" in answer.text) == (502, False)
        assert answer.json()["message"] == "The message could not be sent: 127.0.0.1 answered 403."
    finally:
        endpoint.close()
        refusing.close()
