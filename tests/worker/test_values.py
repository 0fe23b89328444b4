"""Values in a few words."""

import collections
import dataclasses
import pathlib
import types

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.worker.values import MAX_SHORT_CHARS, describe

Pair = collections.namedtuple("Pair", "image target")


@dataclasses.dataclass
class Config:
    lr: float
    password: str


class Rude:
    shape = property(lambda self: 1 / 0)

    def __repr__(self):
        raise RuntimeError

    def keys(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (312, "312"),
        (0.412, "0.412"),
        (0.1 + 0.2, "0.3"),
        (1 << 9999, "int of 10,000 bits"),
        (None, "None"),
        ("a\nb", r"'a\nb'"),
        ("x" * 100, f"'{'x' * 80}'… (100)"),
        (torch.ones(32, 10), "Tensor 32 \N{MULTIPLICATION SIGN} 10 float32"),
        (torch.tensor(0.5), "Tensor 0.5 float32"),
        (torch.nn.Parameter(torch.ones(2)), "Parameter 2 float32"),
        (torch.ones(3, device="meta"), "Tensor 3 float32 meta"),
        (np.ones((1797, 64)), "ndarray 1797 \N{MULTIPLICATION SIGN} 64 float64"),
        (np.float32(0.5), "float32 0.5 float32"),
        (pd.DataFrame({"a": [1, 2]}), "DataFrame 2 \N{MULTIPLICATION SIGN} 1"),
        (torch.nn.Linear(2, 2), "Linear"),
        ({"image": 1, "target": 2}, "dict, keys image, target"),
        ({}, "dict, empty"),
        ({n: n for n in range(20)}, "dict, keys 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"),
        (collections.OrderedDict(a=1), "OrderedDict, keys a"),
        (collections.UserDict(a=1), "UserDict, keys a"),
        (types.MappingProxyType({"a": 1}), "mappingproxy, keys a"),
        ([1, 2.5, "x"], "[1, 2.5, 'x']"),
        ([], "list()"),
        ([torch.ones(2), [1, [2]]], "[Tensor 2 float32, [1, list of 1]]"),
        (list(range(1200)), "list of 1,200"),
        ({1}, "{1}"),
        (Pair(1, 2), "Pair"),
        (Config(0.1, "hunter2"), "Config"),
        (pathlib.Path("/tmp"), "PosixPath('/tmp')"),
        (range(3), "range(0, 3)"),
        (ValueError("x"), "ValueError: x"),
        (Rude(), "Rude"),
        (object(), "object"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_short(value, expected):
    assert describe(value) == expected


anything = st.recursive(
    st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner), st.tuples(inner, inner)),
)


@given(anything)
def test_short_is_one_short_line(value):
    text = describe(value)
    assert len(text) <= MAX_SHORT_CHARS
    assert len(text.splitlines()) <= 1
