"""The addresses of the API, which cost nothing until the first request.

The handlers and all that they need are imported a moment after the server has started, or for the first request when
that comes earlier: a server whose users do not train starts as quickly as without this extension.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

from tornado.routing import PathMatches, Router, Rule

from distdl_jupyter.api import BASE

if TYPE_CHECKING:
    from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
    from tornado.routing import RuleRouter
    from tornado.web import Application


class LazyRoutes(Router):
    """Passes requests to the handlers of ``server.handler``, which is imported when it is needed."""

    def __init__(self, application: Application, base_url: str) -> None:
        self._application = application
        self._base_url = base_url.rstrip("/")

    @functools.cached_property
    def _table(self) -> RuleRouter:
        from tornado.web import _ApplicationRouter  # what ``Application.add_handlers`` makes of handlers

        handler = importlib.import_module("distdl_jupyter.server.handler")
        return _ApplicationRouter(self._application, [(self._base_url + at, *to) for at, *to in handler.handlers()])

    @property
    def rules(self) -> list[Rule]:
        """Every address with its handler, as the router of an application has them."""
        return self._table.rules

    def find_handler(self, request: HTTPServerRequest, **kwargs: object) -> HTTPMessageDelegate | None:
        """Return what answers a request."""
        return self._table.find_handler(request, **kwargs)


def add(application: Application, base_url: str) -> LazyRoutes:
    """Put the addresses into a running application, before its last rule, and return them."""
    routes = LazyRoutes(application, base_url)
    below = Rule(PathMatches(f"{base_url.rstrip('/')}{BASE}(?:/.*)?$"), routes)
    application.default_router.rules.insert(-1, below)
    return routes
