"""The addresses of the API, which cost nothing until the first request.

The handlers and all that they need are imported a moment after the server has started, or for the first request when
that comes earlier: a server whose users do not train starts as quickly as without this extension.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from tornado.routing import PathMatches, Router, Rule

from distdl_jupyter.api import BASE, calls

if TYPE_CHECKING:
    from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
    from tornado.routing import RuleRouter
    from tornado.web import Application

    from distdl_jupyter.api.call import Call
    from distdl_jupyter.server.handler import Handler


class LazyRoutes(Router):
    """Passes requests to the handlers, which are imported when they are needed."""

    def __init__(self, application: Application, base_url: str) -> None:
        self._application = application
        self._base_url = base_url.rstrip("/")

    @functools.cached_property
    def _table(self) -> RuleRouter:
        from tornado.web import _ApplicationRouter  # what ``Application.add_handlers`` makes of handlers

        rows = [(f"{self._base_url}{BASE}{pattern}", kind, options) for pattern, kind, options in _handlers()]
        return _ApplicationRouter(self._application, rows)

    @property
    def rules(self) -> list[Rule]:
        """Every address with its handler, as the router of an application has them."""
        return self._table.rules

    def find_handler(self, request: HTTPServerRequest, **kwargs: object) -> HTTPMessageDelegate | None:
        """Return what answers a request."""
        return self._table.find_handler(request, **kwargs)


def _handlers() -> list[tuple[str, type[Handler], dict[str, Any]]]:
    """Return the patterns with their handlers; an address that matches none of them is answered 404 as JSON."""
    from distdl_jupyter.server.events import Events
    from distdl_jupyter.server.handler import CallHandler

    table: dict[str, dict[str, Call]] = {}
    for call in calls():
        table.setdefault(call.path, {})[call.verb] = call
    del table["/events"]
    rows: list[tuple[str, type[Handler], dict[str, Any]]] = [
        (_pattern(path), CallHandler, {"calls": verbs}) for path, verbs in table.items()
    ]
    return [*rows, ("/events", Events, {}), ("(?:/.*)?", CallHandler, {"calls": {}})]


def _pattern(path: str) -> str:
    """Return the regular expression of an address; ``{path}`` is the rest of it, any other part has no slash."""
    from distdl_jupyter.api.call import path_argument

    return re.sub(
        r"\{(\w+)\}",
        lambda part: rf"(?P<{path_argument(part[1])}>{'.+' if part[1] == 'path' else '[^/]+'})",
        path,
    )


def add(application: Application, base_url: str) -> LazyRoutes:
    """Put the addresses into a running application, before its last rule, and return them."""
    routes = LazyRoutes(application, base_url)
    below = Rule(PathMatches(f"{base_url.rstrip('/')}{BASE}(?:/.*)?$"), routes)
    application.default_router.rules.insert(-1, below)
    return routes
