"""The addresses of the API, imported lazily.

The handlers and their dependencies are imported shortly after the server has started, or by an earlier first request,
so that the extension does not delay the start of the server.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from tornado.routing import PathMatches, Rule, RuleRouter

from distdl_jupyter.api import BASE, calls

if TYPE_CHECKING:
    from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
    from tornado.web import Application

    from distdl_jupyter.api.call import Call
    from distdl_jupyter.server.handler import Handler

#: The pattern of a part of a path; any other part is some text without a slash.
_PARTS = {"path": ".+", "number": "[0-9]{1,9}"}


class LazyRoutes(RuleRouter):
    """Passes requests to the handlers, which are imported when needed."""

    def __init__(self, application: Application, base_url: str) -> None:
        self._application = application
        self._base = f"{base_url.rstrip('/')}{BASE}"

    @functools.cached_property
    def rules(self) -> list[Rule]:  # type: ignore[override]  # nobody adds any
        """All addresses with their handlers; an unknown address gets a 404 response in JSON."""
        from distdl_jupyter.api.call import path_argument
        from distdl_jupyter.server.events import Events
        from distdl_jupyter.server.handler import CallHandler

        def pattern(part: re.Match[str]) -> str:
            return f"(?P<{path_argument(part[1])}>{_PARTS.get(part[1], '[^/]+')})"

        table: dict[str, dict[str, Call]] = {}
        for call in calls():
            table.setdefault(call.path, {})[call.verb] = call
        handlers: dict[str, tuple[type[Handler], dict[str, Any]]] = {
            re.sub(r"\{(\w+)\}", pattern, path): (CallHandler, {"calls": verbs}) for path, verbs in table.items()
        }
        handlers |= {"/events": (Events, {}), "(?:/.*)?": (CallHandler, {"calls": {}})}
        return [Rule(PathMatches(f"{self._base}{path}$"), *handler) for path, handler in handlers.items()]

    def get_target_delegate(
        self, target: Any, request: HTTPServerRequest, **target_params: Any
    ) -> HTTPMessageDelegate | None:
        """Return what answers a request with a handler."""
        return self._application.get_handler_delegate(request, target, **target_params)


def add(application: Application, base_url: str) -> LazyRoutes:
    """Add the addresses to a running application before its last rule, and return them."""
    routes = LazyRoutes(application, base_url)
    below = Rule(PathMatches(f"{base_url.rstrip('/')}{BASE}(?:/.*)?$"), routes)
    application.default_router.rules.insert(-1, below)
    return routes
