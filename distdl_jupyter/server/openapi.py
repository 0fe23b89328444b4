"""The OpenAPI file, made of the handlers and the dataclasses: ``python -m distdl_jupyter.server.openapi`` writes it.

``openapi.json`` stands beside this module; a test fails when the two differ. pydantic, which only this needs, turns
dataclasses into JSON schema.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from http.client import responses
from pathlib import Path
from typing import Any

from distdl_jupyter.server.base import Handler, Operation
from distdl_jupyter.server.late import BASE
from distdl_jupyter.server.messages import Message
from distdl_jupyter.server.routes import ROUTES, argument
from distdl_jupyter.server.schema import ApiError

FILE = Path(__file__).with_name("openapi.json")
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
            "description": "Training jobs on many processes: clusters, jobs and their live streams.",
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
        required = any(_required(field) for field in dataclasses.fields(operation.body))
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


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _query(form: type) -> list[Json]:
    properties = _schema_of(form)["properties"]
    return [_parameter(field, properties[field.name]) for field in dataclasses.fields(form)]


def _parameter(field: dataclasses.Field[Any], schema: Json) -> Json:
    schema = dict(schema)
    found: Json = {"name": field.name, "in": "query", "required": _required(field)}
    if said := schema.pop("description", ""):
        found["description"] = said
    if "anyOf" in schema:  # what a query leaves out is null, it cannot say so
        kinds = [kind for kind in schema.pop("anyOf") if kind != {"type": "null"}]
        schema |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    schema = {name: one for name, one in schema.items() if name != "title" and (name, one) != ("default", None)}
    if schema.get("type") == "array":
        found |= {"style": "form", "explode": False}
    return found | {"schema": schema}


def _schema_of(form: type) -> Json:
    from pydantic import TypeAdapter

    return _with_metadata(TypeAdapter(form).json_schema(), form)


def _schemas() -> Json:
    """Return the schema of every type that an operation names, and of all that these are made of."""
    from pydantic import TypeAdapter

    inputs, outputs = _named()
    wanted: list[Any] = [(kind, "validation", TypeAdapter(kind)) for kind in inputs]
    given: list[Any] = [*outputs, Message]
    wanted += [(kind, "serialization", TypeAdapter(kind)) for kind in given]
    by_kind, found = TypeAdapter.json_schemas(wanted, ref_template=_REF)
    schemas: Json = found["$defs"] | {"Message": by_kind[Message, "serialization"]}
    for kind in inputs:
        _with_metadata(schemas[kind.__name__], kind)
        schemas[kind.__name__]["additionalProperties"] = False
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


def _with_metadata(schema: Json, form: type) -> Json:
    """Put help and limits, which stand in a field's metadata, into the schema of a dataclass."""
    for field in dataclasses.fields(form):
        said = schema["properties"][field.name]
        said |= {"description": field.metadata["help"]} if "help" in field.metadata else {}
        limits = {word: field.metadata[word] for word in ("minimum", "maximum") if word in field.metadata}
        for kind in said.get("anyOf", [said]):
            if kind.get("type") in ("integer", "number"):
                kind.update(limits)
    return schema


def _tidy(schema: Any) -> Any:
    """Return a schema without the titles that pydantic makes of names, its texts on one line."""
    if isinstance(schema, list):
        return [_tidy(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: one for name, one in schema.items() if not (name == "title" and isinstance(one, str))}
    return {name: " ".join(one.split()) if name == "description" else _tidy(one) for name, one in kept.items()}


def text() -> str:
    """Return the file's text."""
    return json.dumps(document(), indent=1) + "\n"


def main() -> None:
    """Write the file, or with ``--check`` only say whether it is up to date."""
    if "--check" in sys.argv[1:]:
        sys.exit(None if FILE.read_text(encoding="utf-8") == text() else f"{FILE.name} is out of date: write it anew.")
    FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
