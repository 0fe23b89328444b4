"""The place inside a value that cannot be pickled."""

import functools
import io
import threading

import pytest

from distdl_jupyter.capture.pickler import dump, raise_errors
from distdl_jupyter.core.errors import InvalidSpec

LOCK = threading.Lock()


class Thing:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("a", "lock")

    def __init__(self):
        self.a, self.lock = 1, LOCK


class ListedJob(list):
    pass


class Rebuilt:
    def __init__(self, handle):
        self.handle = handle

    def __reduce__(self):
        return Rebuilt, (self.handle,)


class Stated:
    def __getstate__(self):
        return [1, LOCK]


def made(x=LOCK):
    return x


made.__module__ = "__main__"
made.__qualname__ = "made_in_notebook"

CYCLE = Thing(name="cycle", lock=LOCK)
CYCLE.me = CYCLE


def failing_part(value):
    report = dump([("v", value)], io.BytesIO())
    with pytest.raises(InvalidSpec) as caught:
        raise_errors(report, {"v": value}, unit="cell")
    return caught.value.field, caught.value.message


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (LOCK, "v"),
        ([1, LOCK], "v[1]"),
        ((1, (2, LOCK)), "v[1][1]"),
        ({"a": {"b": LOCK}}, "v['a']['b']"),
        ({LOCK: 1}, "the key lock of v"),
        ({(1, 2): LOCK}, "v[tuple]"),
        ({LOCK}, "a part of v"),
        (Thing(logger=Thing(handlers=[Thing(stream=LOCK)])), "v.logger.handlers[0].stream"),
        (Slotted(), "a part of v"),
        (ListedJob([1, LOCK]), "v[1]"),
        (Rebuilt(LOCK), "v.handle"),
        (CYCLE, "v.lock"),
        (made, "the defaults of made[0]"),
        (Thing(x=LOCK).__init__, "v.__self__.x"),
        (functools.partial(print, [LOCK]), "a part of v[0][0]"),
    ],
)
def test_the_innermost_failing_part_is_found(value, path):
    found, message = failing_part(value)
    assert found == path
    assert "it is a lock" in message


def test_a_part_that_is_made_while_pickling_is_reported_as_its_owner():
    found, message = failing_part(Stated())
    assert found == "v"
    assert "it is a Stated" in message


def test_a_value_that_cannot_say_what_it_is_made_of_is_the_culprit():
    class Closed:
        def __reduce_ex__(self, protocol):
            raise RuntimeError("closed")

    found, message = failing_part([Closed()])
    assert found == "v[0]"
    assert "it is a Closed (closed)" in message
