"""Options of a plug-in as a JSON schema."""

from dataclasses import dataclass, field
from typing import Any, Literal

import jsonschema
import pytest

from distdl_jupyter.api.clusters import create_json_schema
from distdl_jupyter.core import registry


@dataclass(frozen=True)
class Options:
    host: str
    count: int = field(default=2, metadata={"help": "how many"})
    share: float | None = None
    fast: bool = False
    way: str = field(default="a", metadata={"choices": ("a", "b")})
    mode: Literal["x", "y"] = "x"
    words: tuple[str, ...] = ("one",)
    more: dict[str, int] = field(default_factory=dict)
    other: Any = None


def test_every_type_has_its_schema():
    schema = create_json_schema(Options)
    assert schema["properties"]["more"].pop("default", {}) == {}  # only msgspec 0.23 and later writes it
    assert schema == {
        "title": "Options",
        "type": "object",
        "properties": {
            "host": {"type": "string"},
            "count": {"type": "integer", "description": "how many", "default": 2},
            "share": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
            "fast": {"type": "boolean", "default": False},
            "way": {"enum": ["a", "b"], "default": "a"},
            "mode": {"enum": ["x", "y"], "default": "x"},
            "words": {"type": "array", "items": {"type": "string"}, "default": ("one",)},
            "more": {"type": "object", "additionalProperties": {"type": "integer"}},
            "other": {"default": None},
        },
        "required": ["host"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in registry.KINDS for n in registry.list_names(k)])
def test_the_schema_of_every_plug_in_is_one_and_takes_its_defaults(kind, name):
    schema = create_json_schema(registry.get(kind, name).Options)
    jsonschema.Draft202012Validator.check_schema(schema)
    usual = {one: said["default"] for one, said in schema["properties"].items() if "default" in said}
    jsonschema.validate(usual, schema)


@pytest.mark.parametrize(
    ("kind", "names"),
    [("ssh", ["hosts"]), ("slurm", ["partition", "time_limit", "gpus_per_node"])],
)
def test_what_is_asked_for_at_once_when_a_cluster_is_added(kind, names):
    properties = create_json_schema(registry.get("clusters", kind).Options)["properties"]
    assert [name for name, property_ in properties.items() if property_.get("x-first")] == names
