"""The OpenAPI description of the HTTP API, generated from the table of calls.

``python -m distdl_jupyter.api.openapi`` prints it. msgspec turns dataclasses into JSON schema.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from http.client import responses
from typing import Any

import msgspec

from distdl_jupyter.api import BASE_PATH, list_calls
from distdl_jupyter.api.call import ApiCall
from distdl_jupyter.live.messages import MESSAGE_TYPES, ApiError, Subscription

_AUTHORIZATION = "The word token, a space, and the token of the Jupyter server."
_JSON = "application/json"
_REF = "#/components/schemas/{name}"
Json = dict[str, Any]
#: The schemas of parts of a path; all other parts are any text.
_PART_SCHEMAS = {"id": {"pattern": r"^\d{8}-\d{6}-[a-z0-9]{4,12}$"}, "number": {"pattern": "^[0-9]{1,9}$"}}
_ERROR = {"description": "An error.", "content": {_JSON: {"schema": {"$ref": _REF.format(name="ApiError")}}}}
#: The only call that is not a function: a WebSocket.
_EVENTS: Json = {
    "summary": "Open a WebSocket.",
    "x-websocket": {
        "receives": {"$ref": _REF.format(name="Subscription")},
        "sends": {"$ref": _REF.format(name="Message")},
    },
    "responses": {"101": {"description": responses[101]}, "default": _ERROR},
}


def create_document() -> Json:
    """Return the whole document."""
    paths: Json = {f"{BASE_PATH}/events": {"get": _EVENTS}}
    for call in list_calls():
        item = paths.setdefault(f"{BASE_PATH}{call.path}", {})
        item[call.verb] = _create_operation(call)
        parts = {part: _PART_SCHEMAS.get(part, {"minLength": 1}) for part in re.findall(r"\{(\w+)\}", call.path)}
        item["parameters"] = [
            {"name": part, "in": "path", "required": True, "schema": {"type": "string", **schema}}
            for part, schema in parts.items()
        ]
    token = {"type": "apiKey", "in": "header", "name": "Authorization", "description": _AUTHORIZATION}
    return {
        "openapi": "3.1.0",
        "info": {"title": "distdl_jupyter", "version": "1", "description": "Distributed training jobs."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {"securitySchemes": {"token": token}, "schemas": _create_all_schemas()},
    }


def _create_operation(call: ApiCall) -> Json:
    response: Json = {"description": responses[call.status]}
    if call.response is not None:
        response["content"] = {_JSON: {"schema": _create_schema(call.response)}}
    if call.can_download:
        response.setdefault("content", {})["*/*"] = {}
    operation: Json = {
        "summary": (inspect.getdoc(call.function) or "").split("\n", 1)[0],
        "responses": {str(call.status): response, "default": _ERROR},
    }
    if call.request is not None:
        schema = _create_components([call.request])[call.request.__name__]
        if call.verb == "get":
            operation["parameters"] = [_create_parameter(*field) for field in schema["properties"].items()]
        else:
            content = {_JSON: {"schema": _create_schema(call.request)}}
            operation["requestBody"] = {"required": bool(schema["required"]), "content": content}
    return operation


def _create_parameter(name: str, schema: Json) -> Json:
    """Return a query parameter, which is omitted instead of null."""
    required = "default" not in schema
    for kind in schema.pop("anyOf", ()):
        schema |= kind if kind != {"type": "null"} else {}
    if schema.get("default", ...) is None:
        del schema["default"]
    return {"name": name, "in": "query", "required": required, "explode": False, "schema": schema}


def _create_schema(kind: Any) -> Json:
    """Return the schema of a type, with references to the schemas of dataclasses."""
    return msgspec.json.schema_components([kind], ref_template=_REF)[0][0]


def _create_components(kinds: Iterable[Any]) -> dict[str, Json]:
    """Return the schemas of types and of all types that they contain, by name."""
    return msgspec.json.schema_components(dict.fromkeys(kinds), ref_template=_REF)[1]


def _create_all_schemas() -> Json:
    """Return the schemas of all types that operations use, and of all types that these contain."""
    types = [ApiError, *MESSAGE_TYPES, *(call.response for call in list_calls() if call.response)]
    response_schemas = _create_components(types)
    # A response has all its fields; the defaults are only for the code that creates it.
    for schema in response_schemas.values():
        if schema.get("type") == "object":
            schema["required"] = list(schema["properties"])
    bodies = [call.request for call in list_calls() if call.request and call.verb != "get"]
    requests = _create_components([Subscription, *bodies])
    schemas = {**response_schemas, **requests, "Message": {"anyOf": [_create_schema(kind) for kind in MESSAGE_TYPES]}}
    return json.loads(json.dumps(dict(sorted(schemas.items()))), object_hook=_allow_any_fields)  # type: ignore[no-any-return]


def _allow_any_fields(schema: Json) -> Json:
    """Return a schema that allows any fields in objects without known fields: generated types would allow none."""
    is_open = schema.get("type") == "object" and "properties" not in schema
    return {"additionalProperties": True, **schema} if is_open else schema


if __name__ == "__main__":
    print(json.dumps(create_document(), indent=1))  # noqa: T201
