"""What a page sends, as a request: every type that a field may have, and what is said of a value that is none."""

import json
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, field

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.views.wire import PageRequest, from_json, from_query


class Inner(PageRequest, frozen=True):
    mark: int = 0


class Form(PageRequest, frozen=True):
    name: str
    count: Annotated[int, Meta(ge=1, le=9)] | None = None
    share: float = 0.5
    flag: bool = False
    mode: Literal["band", "ranks"] = "band"
    ids: tuple[str, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)
    inner: dict[str, Inner | None] = field(default_factory=dict)


def sent(data):
    return from_json(Form, json.dumps(data).encode())


def test_json_fills_a_form():
    found = sent({"name": "a", "count": 3, "share": 1, "flag": True, "mode": "ranks", "ids": ["x"],
                  "more": {"a": [None]}, "inner": {"j": {"mark": 4}, "k": None}})  # fmt: skip
    assert found == Form("a", 3, 1.0, True, "ranks", ("x",), {"a": [None]}, {"j": Inner(4), "k": None})
    assert sent({"name": "a"}) == Form("a")
    with pytest.raises(InvalidSpec, match="name is missing"):
        from_json(Form, b"")


def test_a_query_fills_a_form():
    given_ = {"name": [b"x", b"a"], "count": [b"3"], "share": [b"2"], "flag": [b"1"], "ids": [b"x,y,"], "_xsrf": [b"0"]}
    assert from_query(Form, given_) == Form("a", 3, 2.0, True, ids=("x", "y"))
    assert from_query(Form, {"name": [b""], "flag": [b"false"]}) == Form("")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "The request body must be a JSON object."),
        ({}, "name is missing."),
        ({"name": None}, "name must be a string."),
        ({"name": "a", "count": True}, "count must be an integer or nothing."),
        ({"name": "a", "count": 10}, "count must be a number from 1 to 9."),
        ({"name": "a", "count": 0}, "count must be a number from 1 to 9."),
        (
            {"name": "a", "cuont": 1},
            "Unknown request field 'cuont'. Did you mean count?",
        ),
        ({"name": "a", "inner": {"j": {"marke": 1}}}, "Unknown field 'marke' of inner."),
        ({"name": "a", "share": "1"}, "share must be a number."),
        ({"name": "a", "flag": 1}, "flag must be true or false."),
        ({"name": "a", "mode": "fan"}, "mode must be one of band, ranks."),
        ({"name": "a", "mode": ["band"]}, "mode must be one of band, ranks."),
        ({"name": "a", "ids": "x"}, "ids must be a list."),
        ({"name": "a", "ids": [1]}, "ids must be a string."),
        ({"name": "a", "inner": {"j": {"mark": "x"}}}, "mark must be an integer."),
    ],
)
def test_a_wrong_value_is_answered_with_what_is_right(data, message):
    with pytest.raises(InvalidSpec) as caught:
        sent(data)
    assert caught.value.message == message
