"""The OpenAPI description of the HTTP API, made of its table of calls.

``python -m distdl_jupyter.api.openapi`` prints it. msgspec turns dataclasses into JSON schema.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from http.client import responses
from typing import Any

import msgspec

from distdl_jupyter.api import BASE, calls
from distdl_jupyter.api.call import BYTES, JSON, ApiError, Call, Refused
from distdl_jupyter.live import messages

#: What a server sends over a WebSocket.
MESSAGES = (
    messages.Welcome,
    messages.Heartbeat,
    Refused,
    messages.JobsMessage,
    messages.ClustersMessage,
    messages.JobMessage,
    messages.LogMessage,
    messages.CurveMessage,
    messages.ResourcesMessage,
    messages.Deleted,
)

_REF = "#/components/schemas/{name}"
Json = dict[str, Any]
#: The patterns of parts of a path; any other part is some text.
_PARTS = {"id": r"^\d{8}-\d{6}-[a-z0-9]{4,12}$", "number": "^[0-9]{1,9}$"}


def document() -> Json:
    """Return the whole description."""
    paths: Json = {}
    for call in calls():
        item = paths.setdefault(f"{BASE}{call.path}", {})
        item[call.verb] = _verb(call)
        if parts := re.findall(r"\{(\w+)\}", call.path):
            item["parameters"] = [_part(part) for part in parts]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "distdl_jupyter",
            "version": "1",
            "description": "Distributed training jobs: clusters, jobs and their live streams.",
        },
        "security": [{"token": []}],
        "paths": paths,
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


def _part(name: str) -> Json:
    pattern = {"pattern": _PARTS[name]} if name in _PARTS else {"minLength": 1}
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", **pattern}}


def _verb(call: Call) -> Json:
    operation: Json = {
        "operationId": f"{call.verb}{''.join(part.title() for part in re.findall('[a-z]+', call.path))}",
        "summary": call.description.split("\n", 1)[0],
        "responses": {str(call.status): _answer(call)} | _errors(call),
    }
    if call.query is not None:
        properties = _components([call.query])[call.query.__name__]["properties"]
        operation["parameters"] = [_parameter(name, schema) for name, schema in properties.items()]
    if call.receives is not None:
        operation["x-websocket"] = {"receives": _ref(call.receives), "sends": {"$ref": _REF.format(name="Message")}}
    if call.body is not None:
        required = bool(_components([call.body])[call.body.__name__]["required"])
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
    statuses = {403, *call.refuses, *([400] if call.query or call.body else []), *([413] if call.body else [])}
    statuses |= {404} if "{" in call.path else set()
    schema = {"content": {JSON: {"schema": _ref(ApiError)}}}
    return {str(status): {"description": responses[status], **schema} for status in sorted(statuses)}


def _ref(kind: type) -> Json:
    return {"$ref": _REF.format(name=kind.__name__)}


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


def _components(kinds: Iterable[type]) -> dict[str, Json]:
    """Return the schemas of types, and of all that these are made of, by name."""
    return msgspec.json.schema_components(kinds, ref_template=_REF)[1]


def _schemas() -> Json:
    """Return the schema of every type that an operation names, and of all that these are made of."""
    answers = _components({call.answer: None for call in calls() if call.answer} | dict.fromkeys((ApiError, *MESSAGES)))
    # A response has all its fields; a default is for the code that makes it.
    for schema in answers.values():
        if schema.get("type") == "object":
            schema["required"] = list(schema["properties"])
    requests = _components(dict.fromkeys(kind for call in calls() for kind in (call.body, call.receives) if kind))
    schemas = {**answers, **requests, "Message": {"anyOf": [_ref(kind) for kind in MESSAGES]}}
    return {name: _tidy(schemas[name]) for name in sorted(schemas)}


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
