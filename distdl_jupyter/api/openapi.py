"""The OpenAPI description of the HTTP API, made of its table of calls.

``python -m distdl_jupyter.api.openapi`` prints it. msgspec turns dataclasses into JSON schema.
"""

from __future__ import annotations

import json
import re
import sys
import typing
from http.client import responses
from typing import Any

import msgspec

from distdl_jupyter.api import BASE, calls
from distdl_jupyter.api.call import BYTES, JSON, ApiError, Call, path_argument, path_parts
from distdl_jupyter.api.messages import Message

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
        "paths": {f"{BASE}{path}": _path(path) for path in dict.fromkeys(call.path for call in calls())},
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


def _path(path: str) -> Json:
    item: Json = {call.verb: _verb(call) for call in calls() if call.path == path}
    parts = path_parts(path)
    return item | ({"parameters": [_part(part) for part in parts]} if parts else {})


def _part(name: str) -> Json:
    schema: Json = {"type": "string", "minLength": 1}
    if path_argument(name) == "id_":
        schema = {"type": "string", "pattern": r"^\d{8}-\d{6}-[a-z0-9]{4,12}$"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _verb(call: Call) -> Json:
    operation: Json = {
        "operationId": f"{call.verb}{''.join(part.title() for part in re.findall('[a-z]+', call.path))}",
        "summary": call.description.split("\n", 1)[0],
        "responses": {str(call.status): _answer(call)} | _errors(call),
    }
    if call.query is not None:
        operation["parameters"] = _query(call.query)
    if call.receives is not None:
        operation["x-websocket"] = {"receives": _ref(call.receives), "sends": {"$ref": _REF.format(model="Message")}}
    if call.body is not None:
        required = bool(_schema_of(call.body)["required"])
        operation["requestBody"] = {"required": required, "content": {JSON: {"schema": _ref(call.body)}}}
    return operation


def _answer(call: Call) -> Json:
    content: Json = {}
    if call.media != JSON:
        content[call.media] = {"schema": {"type": "string", **({"format": "binary"} if call.media == BYTES else {})}}
    if call.answer is not None:
        content[JSON] = {"schema": _ref(call.answer)}
    return {"description": responses[call.status]} | ({"content": content} if content else {})


def _errors(call: Call) -> Json:
    reads = call.query is not None or call.body is not None
    statuses = {403, *call.refuses, *([400] if reads else []), *([413] if call.body else [])}
    statuses |= {404} if "{" in call.path else set()
    schema = {"content": {JSON: {"schema": _ref(ApiError)}}}
    return {str(status): {"description": responses[status], **schema} for status in sorted(statuses)}


def _ref(kind: type) -> Json:
    return {"$ref": _REF.format(model=kind.__name__)}


def _query(form: type) -> list[Json]:
    return [_parameter(name, schema) for name, schema in _schema_of(form)["properties"].items()]


def _parameter(name: str, schema: Json) -> Json:
    schema = dict(schema)
    parameter: Json = {"name": name, "in": "query", "required": "default" not in schema}
    if "anyOf" in schema:  # a query leaves out what is null
        kinds = [kind for kind in schema.pop("anyOf") if kind != {"type": "null"}]
        schema |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if description := schema.pop("description", ""):
        parameter["description"] = description
    schema = {key: value for key, value in schema.items() if (key, value) != ("default", None)}
    if schema.get("type") == "array":
        parameter |= {"style": "form", "explode": False}
    return parameter | {"schema": schema}


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
    # An answer has all its fields; a default is for the code that makes it.
    for name in schemas.keys() - _reached(schemas, [kind.__name__ for kind in inputs]):
        if schemas[name].get("type") == "object":
            schemas[name]["required"] = list(schemas[name]["properties"])
    return {name: _tidy(schemas[name]) for name in sorted(schemas)}


def _reached(schemas: Json, names: list[str]) -> set[str]:
    """Return the names of schemas, and of all schemas that these are made of."""
    reached: set[str] = set()
    while names:
        name = names.pop()
        if name not in reached:
            reached.add(name)
            names += re.findall(_REF.format(model=r"(\w+)"), json.dumps(schemas[name]))
    return reached


def _named() -> tuple[list[type], list[type]]:
    """Return the types of requests and those of answers."""
    inputs = {kind: None for call in calls() for kind in (call.body, call.receives) if kind is not None}
    outputs = {call.answer: None for call in calls() if call.answer is not None} | {ApiError: None}
    return list(inputs), list(outputs)


def _tidy(schema: Any) -> Any:
    """Return a schema without the titles that msgspec makes of names, its texts on one line."""
    if isinstance(schema, list):
        return [_tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    fields = {name: value for name, value in schema.items() if not (name == "title" and isinstance(value, str))}
    if schema.get("type") == "object" and "properties" not in schema:
        fields.setdefault("additionalProperties", True)  # without it, generated types allow no field at all
    return {name: " ".join(value.split()) if name == "description" else _tidy(value) for name, value in fields.items()}


def text() -> str:
    """Return the description as JSON."""
    return json.dumps(document(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
