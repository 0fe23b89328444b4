"""The OpenAPI description of the HTTP API, made of the handlers and the dataclasses.

``python -m distdl_jupyter.server.openapi`` prints it. msgspec turns dataclasses into JSON schema.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import typing
from http.client import responses
from typing import Any

import msgspec

from distdl_jupyter.server.base import Handler, Operation
from distdl_jupyter.server.lazy_routes import BASE
from distdl_jupyter.server.messages import Message
from distdl_jupyter.server.routes import ROUTES, argument
from distdl_jupyter.server.schema import ApiError

_VERBS = ("get", "post", "put", "patch", "delete")
_REF = "#/components/schemas/{model}"
Json = dict[str, Any]


def document() -> Json:
    """Return the whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "distdl_jupyter",
            "version": "1",
            "description": "Distributed training jobs: clusters, jobs and their live streams.",
        },
        "security": [{"token": []}],
        "paths": {f"{BASE}{path}": _path(path, handler) for path, handler in ROUTES},
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "The word token, a space, and the token of the Jupyter server.",
                }
            },
            "schemas": _schemas(),
        },
    }


def operations(handler: type[Handler]) -> dict[str, Operation]:
    """Return the verbs of a handler with what is said of them."""
    found = {verb: getattr(getattr(handler, verb), "operation", None) for verb in _VERBS}
    return {verb: operation for verb, operation in found.items() if operation is not None}


def _path(path: str, handler: type[Handler]) -> Json:
    parts = re.findall(r"\{(\w+)\}", path)
    found: Json = {verb: _verb(path, handler, verb, one) for verb, one in operations(handler).items()}
    return found | ({"parameters": [_part(part) for part in parts]} if parts else {})


def _part(name: str) -> Json:
    schema: Json = {"type": "string", "minLength": 1}
    if argument(name) == "id_":
        schema = {"type": "string", "pattern": r"^\d{8}-\d{6}-[a-z0-9]{4,12}$"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _verb(path: str, handler: type[Handler], verb: str, operation: Operation) -> Json:
    lines = inspect.getdoc(getattr(handler, verb)) or ""
    found: Json = {
        "operationId": f"{verb}{''.join(word.title() for word in re.findall('[a-z]+', path))}",
        "summary": lines.split("\n", 1)[0],
        "responses": {str(operation.status): _answer(operation)} | _errors(path, operation),
    }
    if operation.query is not None:
        found["parameters"] = _query(operation.query)
    if operation.receives is not None:
        found["x-websocket"] = {"receives": _ref(operation.receives), "sends": {"$ref": _REF.format(model="Message")}}
    if operation.body is not None:
        required = bool(_schema_of(operation.body)["required"])
        found["requestBody"] = {"required": required, "content": {"application/json": {"schema": _ref(operation.body)}}}
    return found


def _answer(operation: Operation) -> Json:
    found: Json = {"description": responses[operation.status]}
    content: Json = {}
    if operation.media != "application/json":
        binary = operation.media == "application/octet-stream"
        content[operation.media] = {"schema": {"type": "string", **({"format": "binary"} if binary else {})}}
    if operation.answer is not None:
        content["application/json"] = {"schema": _ref(operation.answer)}
    return found | ({"content": content} if content else {})


def _errors(path: str, operation: Operation) -> Json:
    reads = operation.query is not None or operation.body is not None
    found = {403, *operation.refuses, *([400] if reads else []), *([413] if operation.body else [])}
    found |= {404} if "{" in path else set()
    schema = {"content": {"application/json": {"schema": _ref(ApiError)}}}
    return {str(status): {"description": responses[status], **schema} for status in sorted(found)}


def _ref(kind: type) -> Json:
    return {"$ref": _REF.format(model=kind.__name__)}


def _query(form: type) -> list[Json]:
    return [_parameter(name, schema) for name, schema in _schema_of(form)["properties"].items()]


def _parameter(name: str, schema: Json) -> Json:
    schema = dict(schema)
    found: Json = {"name": name, "in": "query", "required": "default" not in schema}
    if "anyOf" in schema:  # what a query leaves out is null, it cannot say so
        kinds = [kind for kind in schema.pop("anyOf") if kind != {"type": "null"}]
        schema |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if said := schema.pop("description", ""):
        found["description"] = said
    schema = {name: one for name, one in schema.items() if (name, one) != ("default", None)}
    if schema.get("type") == "array":
        found |= {"style": "form", "explode": False}
    return found | {"schema": schema}


def _schema_of(form: type) -> Json:
    return _components([form])[form.__name__]


def _components(kinds: list[type]) -> dict[str, Json]:
    """Return the schemas of types, and of all that these are made of, by name."""
    return msgspec.json.schema_components(kinds, ref_template=_REF.format(model="{name}"))[1]


def _schemas() -> Json:
    """Return the schema of every type that an operation names, and of all that these are made of."""
    inputs, outputs = _named()
    messages = typing.get_args(Message)
    schemas: Json = _components([*inputs, *outputs, *messages])
    schemas["Message"] = {"anyOf": [_ref(kind) for kind in messages]}
    # What is given has all its fields; a default is for those who make it.
    for name in schemas.keys() - _reached(schemas, [kind.__name__ for kind in inputs]):
        if schemas[name].get("type") == "object":
            schemas[name]["required"] = list(schemas[name]["properties"])
    return {name: _tidy(schemas[name]) for name in sorted(schemas)}


def _reached(schemas: Json, names: list[str]) -> set[str]:
    """Return the names of schemas, and of all schemas that these are made of."""
    found: set[str] = set()
    while names:
        name = names.pop()
        if name not in found:
            found.add(name)
            names += re.findall(_REF.format(model=r"(\w+)"), json.dumps(schemas[name]))
    return found


def _named() -> tuple[list[type], list[type]]:
    """Return the types that are taken and those that are given."""
    every = [one for _, handler in ROUTES for one in operations(handler).values()]
    inputs = {kind: None for one in every for kind in (one.body, one.receives) if kind is not None}
    outputs = {one.answer: None for one in every if one.answer is not None} | {ApiError: None}
    return list(inputs), list(outputs)


def _tidy(schema: Any) -> Any:
    """Return a schema without the titles that msgspec makes of names, its texts on one line."""
    if isinstance(schema, list):
        return [_tidy(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: one for name, one in schema.items() if not (name == "title" and isinstance(one, str))}
    if schema.get("type") == "object" and "properties" not in schema:
        kept.setdefault("additionalProperties", True)  # of none said, generated types allow no field at all
    return {name: " ".join(one.split()) if name == "description" else _tidy(one) for name, one in kept.items()}


def text() -> str:
    """Return the description as JSON."""
    return json.dumps(document(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
