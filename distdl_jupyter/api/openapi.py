"""The OpenAPI document of the HTTP API, generated from its endpoints; msgspec converts dataclasses to JSON Schema.

``python -m distdl_jupyter.api.openapi`` prints it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from http.client import responses
from typing import Any

import msgspec

from distdl_jupyter.api import BASE_PATH, list_endpoints
from distdl_jupyter.api.endpoint import Endpoint
from distdl_jupyter.live.messages import MESSAGE_TYPES, ApiError, Subscription

_AUTHORIZATION = "token TOKEN, where TOKEN is the token of the Jupyter server."
_JSON = "application/json"
_REFERENCE = "#/components/schemas/{name}"
Json = dict[str, Any]
#: The patterns of path parameters; any other path parameter is a non-empty string.
_PATH_PATTERNS = {"id": {"pattern": r"^\d{8}-\d{6}-[a-z0-9]{4,12}$"}, "number": {"pattern": "^[0-9]{1,9}$"}}
_ERROR = {"description": "An error.", "content": {_JSON: {"schema": {"$ref": _REFERENCE.format(name="ApiError")}}}}
#: The only endpoint that is not a function: the WebSocket.
_EVENTS: Json = {
    "summary": "Open a WebSocket.",
    "x-websocket": {
        "receives": {"$ref": _REFERENCE.format(name="Subscription")},
        "sends": {"$ref": _REFERENCE.format(name="Message")},
    },
    "responses": {"101": {"description": responses[101]}, "default": _ERROR},
}


def create_document() -> Json:
    """Return the whole document."""
    paths: Json = {f"{BASE_PATH}/events": {"get": _EVENTS}}
    for endpoint in list_endpoints():
        item = paths.setdefault(f"{BASE_PATH}{endpoint.path}", {})
        item[endpoint.method] = _create_operation(endpoint)
        patterns = {name: _PATH_PATTERNS.get(name, {"minLength": 1}) for name in re.findall(r"{(\w+)}", endpoint.path)}
        item["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", **pattern}}
            for name, pattern in patterns.items()
        ]
    token = {"type": "apiKey", "in": "header", "name": "Authorization", "description": _AUTHORIZATION}
    return {
        "openapi": "3.1.0",
        "info": {"title": "distdl_jupyter", "version": "1", "description": "Distributed training jobs."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {"securitySchemes": {"token": token}, "schemas": _create_all_schemas()},
    }


def _create_operation(endpoint: Endpoint) -> Json:
    response: Json = {"description": responses[endpoint.status]}
    if endpoint.response is not None:
        response["content"] = {_JSON: {"schema": _create_schema(endpoint.response)}}
    if endpoint.can_download:
        response.setdefault("content", {})["*/*"] = {}
    operation: Json = {
        "summary": (inspect.getdoc(endpoint.function) or "").split("\n", 1)[0],
        "responses": {str(endpoint.status): response, "default": _ERROR},
    }
    if endpoint.request is not None:
        schema = _create_components([endpoint.request])[endpoint.request.__name__]
        if endpoint.method == "get":
            operation["parameters"] = [_create_parameter(*field) for field in schema["properties"].items()]
        else:
            content = {_JSON: {"schema": _create_schema(endpoint.request)}}
            operation["requestBody"] = {"required": bool(schema["required"]), "content": content}
    return operation


def _create_parameter(name: str, schema: Json) -> Json:
    """Return a query parameter. It cannot be null: it is omitted instead."""
    required = "default" not in schema
    for alternative in schema.pop("anyOf", ()):
        schema |= alternative if alternative != {"type": "null"} else {}
    if schema.get("default", ...) is None:
        del schema["default"]
    return {"name": name, "in": "query", "required": required, "explode": False, "schema": schema}


def _create_schema(type_: Any) -> Json:
    """Return the schema of a type, with references to the schemas of dataclasses."""
    return msgspec.json.schema_components([type_], ref_template=_REFERENCE)[0][0]


def _create_components(types: Iterable[Any]) -> dict[str, Json]:
    """Return the schemas of types and of all types that they contain, by name."""
    return msgspec.json.schema_components(dict.fromkeys(types), ref_template=_REFERENCE)[1]


def _create_all_schemas() -> Json:
    """Return the schemas of all types that endpoints use, and of all types that these contain."""
    types = [ApiError, *MESSAGE_TYPES, *(endpoint.response for endpoint in list_endpoints() if endpoint.response)]
    response_schemas = _create_components(types)
    # A response always has all fields; the defaults are only for the code that creates it.
    for schema in response_schemas.values():
        if schema.get("type") == "object":
            schema["required"] = list(schema["properties"])
    bodies = [endpoint.request for endpoint in list_endpoints() if endpoint.request and endpoint.method != "get"]
    requests = _create_components([Subscription, *bodies])
    schemas = {**response_schemas, **requests, "Message": {"anyOf": list(map(_create_schema, MESSAGE_TYPES))}}
    return json.loads(json.dumps(dict(sorted(schemas.items()))), object_hook=_allow_any_fields)  # type: ignore[no-any-return]


def _allow_any_fields(schema: Json) -> Json:
    """Allow any fields in an object without known fields; otherwise, its generated type would allow none."""
    is_open = schema.get("type") == "object" and "properties" not in schema
    return {"additionalProperties": True, **schema} if is_open else schema


if __name__ == "__main__":
    print(json.dumps(create_document(), indent=1))  # noqa: T201
