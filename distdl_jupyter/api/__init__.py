"""The HTTP API: each endpoint is one typed function (see ``api.endpoint``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distdl_jupyter.api.endpoint import Endpoint

#: The prefix of all paths.
BASE_PATH = "/distdl/api"


def list_endpoints() -> list[Endpoint]:
    """Return all endpoints. They are imported here so that the extension does not delay the start of the server."""
    from distdl_jupyter.api import azure, clusters, endpoint, jobs, source  # noqa: F401 - they register endpoints

    return endpoint.ENDPOINTS
