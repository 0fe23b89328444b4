"""The place inside a value that cannot be pickled."""

import functools
import io
import threading

import pytest

from distdl_jupyter.capture.pickler import dump, locate_part

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
    error, culprit = dump([("v", value)], io.BytesIO()).errors["v"]
    path, part = locate_part("v", value, culprit)
    return path, type(part).__name__, str(error)


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
    assert failing_part(value)[:2] == (path, "lock")


def test_a_part_that_is_made_while_pickling_is_reported_as_its_owner():
    assert failing_part(Stated())[:2] == ("v", "Stated")


def test_a_value_that_cannot_say_what_it_is_made_of_is_the_culprit():
    class Closed:
        def __reduce_ex__(self, protocol):
            raise RuntimeError("closed")

    assert failing_part([Closed()]) == ("v[0]", "Closed", "closed")
