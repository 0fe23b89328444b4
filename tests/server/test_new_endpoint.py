"""An endpoint of the HTTP API is one function: path, decoder, errors, permission and description follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
from jupyter_server.auth import Authorizer
from msgspec import Meta

from distdl_jupyter import api
from distdl_jupyter.api import endpoint, openapi
from distdl_jupyter.core.errors import JobNotRunning
from tests.server.running import serve


@dataclass(frozen=True, slots=True)
class Tea:
    """A pot of tea."""

    job: str
    cups: int


@pytest.fixture(autouse=True)
def _declared(monkeypatch):
    monkeypatch.setattr(endpoint, "ENDPOINTS", api.list_endpoints().copy())

    @endpoint.post("/jobs/{id}/tea", status=202, action="execute", slow=True)
    def make_tea(id_: str, *, cups: Annotated[int, Meta(ge=1, le=9, description="number of cups")] = 2) -> Tea:
        """Make tea for a job."""
        if cups == 8:
            raise JobNotRunning("The pot is empty.", code="no-tea")
        return Tea(id_, cups)


ID = "20261121-024912-k3f9x"


class MayNotExecute(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return action != "execute"


def test_it_is_decoded_answered_and_refused(root):
    with serve(root) as server:
        assert server.post(f"/jobs/{ID}/tea", {"cups": 3}, 202) == {"job": ID, "cups": 3}
        assert server.post(f"/jobs/{ID}/tea", None, 202)["cups"] == 2
        wrong = server.post(f"/jobs/{ID}/tea", {"cups": 10}, 400)
        assert (wrong["message"], wrong["field"]) == ("cups must be a number from 1 to 9.", "cups")
        assert server.post(f"/jobs/{ID}/tea", {"cup": 1}, 400)["field"] == "cup"
        assert server.post(f"/jobs/{ID}/tea", {"cups": 8}, 409)["code"] == "no-tea"
        assert server.post("/jobs/..%2fetc/tea", {}, 404)["type"] == "JobNotFound"
        assert server.ask("GET", f"/jobs/{ID}/tea").headers["Allow"] == "POST, OPTIONS"
    with serve(root, authorizer_class=MayNotExecute) as server:
        server.post(f"/jobs/{ID}/tea", {}, 403)


def test_it_is_described():
    document = openapi.create_document()
    operation = document["paths"][f"{api.BASE_PATH}/jobs/{{id}}/tea"]["post"]
    assert operation["summary"] == "Make tea for a job."
    assert list(operation["responses"]) == ["202", "default"]
    schemas = document["components"]["schemas"]
    assert schemas["Tea"]["required"] == ["job", "cups"]
    assert schemas["MakeTeaRequest"]["properties"]["cups"]["description"] == "number of cups"
