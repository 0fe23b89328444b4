"""Every call of the HTTP API as one typed function; ``calls`` is their table (see ``api.call``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distdl_jupyter.api.call import ApiCall

#: The prefix of all addresses.
BASE_PATH = "/distdl/api"


def list_calls() -> list[ApiCall]:
    """Return all calls. They are imported here so that the extension does not delay the start of the server."""
    from distdl_jupyter.api import azure, call, clusters, jobs, source  # noqa: F401 - each adds its calls

    return call.CALLS
