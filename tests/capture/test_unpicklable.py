"""The place inside a value that cannot be pickled."""

import threading

import pytest

from distdl_jupyter.capture.pickler import find, why_not

LOCK = threading.Lock()


class Thing:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("a", "lock")

    def __init__(self):
        self.a, self.lock = 1, LOCK


class Listed(list):
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


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (LOCK, "v"),
        ([1, LOCK], "v[1]"),
        ((1, (2, LOCK)), "v[1][1]"),
        ({"a": {"b": LOCK}}, "v['a']['b']"),
        ({LOCK: 1}, "the key lock of v"),
        ({(1, 2): LOCK}, "v[tuple]"),
        ({LOCK}, "an item of v"),
        (Thing(logger=Thing(handlers=[Thing(stream=LOCK)])), "v.logger.handlers[0].stream"),
        (Slotted(), "v.lock"),
        (Listed([1, LOCK]), "v[1]"),
        (Rebuilt(LOCK), "v.handle"),
        (Stated(), "the state of v[1]"),
        (CYCLE, "v.lock"),
        (made, "the defaults of made[0]"),
        (Thing().__init__.__self__ and Thing(x=LOCK).__init__, "v.__self__.x"),
    ],
)
def test_the_innermost_failing_part_is_found(value, path):
    error = why_not(value)
    assert error is not None
    found = find("v", value, error)
    assert (found.path, found.type_name) == (path, "lock")


def test_the_search_ends_when_its_time_is_over():
    ticks = iter(range(100))
    value = [[[[LOCK]]]]
    found = find("v", value, why_not(value), clock=lambda: next(ticks) * 3.0)
    assert found.path == "v[0]"


def test_a_value_that_cannot_say_what_it_is_made_of_is_the_culprit():
    class Closed:
        def __reduce_ex__(self, protocol):
            raise RuntimeError("closed")

    value = [Closed()]
    found = find("v", value, why_not(value))
    assert (found.path, str(found.error)) == ("v[0]", "closed")
