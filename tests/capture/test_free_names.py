"""Which names a cell takes: by example, and by running random cells with and without the rest of the notebook."""

import sys

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from distdl_jupyter.capture.free_names import find_free_names
from distdl_jupyter.core.source import list_imports, parse

TAKEN = {
    "x": {"x"},
    "x = 1\nx": set(),
    "x = x + 1": {"x"},
    "x += 1": {"x"},
    "x: int = y": {"int", "y"},
    "x: int\nx": {"int", "x"},
    "model.fit(data)": {"model", "data"},
    "model.weight = 3": {"model"},
    "table[key] = 3": {"table", "key"},
    "(a := b) + a": {"b"},
    "def f():\n    return y\nf()": {"y"},
    "def f(y):\n    return y\nf(1)": set(),
    "def f(n=width):\n    return n": {"width"},
    "def f(x: Shape) -> Out:\n    return 1": {"Shape", "Out"},
    "@jit\ndef f(): pass": {"jit"},
    "def f():\n    return g()\ndef g():\n    return h\nf()": {"h"},
    "def f():\n    def g():\n        return deep\n    return g": {"deep"},
    "def f():\n    y = 1\n    def g():\n        return y\n    return g": set(),
    "def f():\n    global n\n    n += 1": {"n"},
    "def f():\n    if c:\n        return a\n    return b": {"a", "b", "c"},
    "lambda a: a + b": {"b"},
    "lambda a, b=c: a": {"c"},
    "[i * k for i in items if i > low]": {"items", "k", "low"},
    "[items for items in items]": {"items"},
    "[a for a in b for b in a]": {"b"},
    "{k: v for k, v in pairs}": {"pairs"},
    "[lambda: w for _ in n]": {"n", "w"},
    "(x for x in y)\nx": {"y", "x"},
    "class A(Base, metaclass=M):\n    n = size\n    m = n\n    def f(self):\n        return helper(n)": {
        "Base", "M", "size", "helper", "n",
    },
    "class A:\n    def f(self):\n        return A": set(),
    "@dataclass\nclass A:\n    x: Shape\n    y: list[Out] = 1": {"dataclass", "Shape", "list", "Out"},
    "class A:\n    def f(self):\n        return helper\ndef helper(): pass\nA().f()": set(),
    "class A:\n    def f():\n        return x\n    y = f()\nx = 1": {"f", "x"},
    "def f():\n    return x\nx = 1\nf()": set(),
    "@run\ndef f():\n    return x\nx = 1": {"run", "x"},
    "import numpy as np\nnp.zeros(n)": {"n"},
    "import os.path\nos": set(),
    "from shards import batches\nbatches()": set(),
    "np.zeros(3)\nimport numpy as np": {"np"},
    "for i in range(n):\n    print(i)\nprint(i)": {"range", "n", "print"},
    "for i in r:\n    total = total + i": {"r", "total"},
    "for i in r:\n    loss = i\nloss": {"r"},
    "while go:\n    x = 1\nx": {"go"},
    "while True:\n    x = 1\n    if done: break\nx": {"done"},
    "if c:\n    x = 1\nx": {"c", "x"},
    "if c:\n    x = 1\nelse:\n    x = 2\nx": {"c"},
    "if c:\n    x = 1\nelse:\n    raise E\nx": {"c", "E"},
    "for i in r:\n    if c:\n        continue\n    else:\n        x = 1\n    x": {"r", "c"},
    "try:\n    import fast\nexcept ImportError:\n    fast = None\nfast": {"ImportError"},
    "try:\n    x = f()\nexcept E as e:\n    print(e)\nx": {"f", "E", "print", "x"},
    "try:\n    x = f()\nexcept E:\n    raise\nx": {"f", "E"},
    "try:\n    pass\nfinally:\n    close(h)": {"close", "h"},
    "with open(p) as f:\n    f.read()": {"open", "p"},
    "match command:\n    case [x, *rest]:\n        print(x, rest)\n    case {'a': y, **more}:\n        y, more\n"
    "    case Point(z) as p:\n        z, p\n    case _:\n        other": {"command", "print", "Point", "other"},
    "x if c else y": {"x", "c", "y"},
    "f'{a!r:{width}}'": {"a", "width"},
    "del x": {"x"},
    "x\ndel x": {"x"},
    "x = 1\ndel x\nx": {"x"},
    "async def f():\n    async with a as b:\n        await b\n    async for c in d:\n        c": {"a", "d"},
    "print(__name__)": {"print"},
}  # fmt: skip


@pytest.mark.parametrize("code", TAKEN, ids=range(len(TAKEN)))
def test_names_taken(code):
    assert set(find_free_names(code)) == TAKEN[code]


def test_names_come_in_the_order_of_their_first_use():
    assert find_free_names("a = 1\n\nb(c)\ndef f():\n    return d\nc") == ["b", "c", "d"]


def test_imports_are_found_everywhere():
    code = "import a.b, c as d\ndef f():\n    from e.f import g\n    from . import h\nclass K:\n    import m"
    assert set(list_imports(parse(code))) == {"a.b", "c", "e.f.g", "m"}


def test_imports_are_found_in_every_block_of_a_statement():
    code = """
if x: import a
elif y: import b
else: import c
for _ in x: import d
else: import e
while x:
    with y: import f
try: import g
except OSError: import h
else: import i
finally: import j
match x:
    case 1: import k
async def load():
    async with y: import l
    async for _ in x: import m
try: import n
except* ValueError: import o
"""
    assert set(list_imports(parse(code))) == set("abcdefghijklmno")


def test_warnings_of_the_code_are_left_to_the_ranks():
    assert set(find_free_names(r"x = '\d' is y")) == {"y"}


# Random cells: what they compute with the captured names alone must equal what they compute in the notebook.

NAMES = st.sampled_from(["a", "b", "c", "d"])
EXPRESSIONS = st.recursive(
    st.one_of(NAMES, st.integers(0, 9).map(str)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "*", "-"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, NAMES).map(lambda t: f"sum([{t[0]} + {t[1]} for {t[1]} in range(2)])"),
        st.tuples(NAMES, inner).map(lambda t: f"({t[0]} := {t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} % 2 else {t[2]})"),
        st.tuples(inner, NAMES, inner).map(lambda t: f"(lambda {t[1]}: {t[0]})({t[2]})"),
    ),
    max_leaves=4,
)


def indent(block):
    return "\n".join(f"    {line}" for line in block.split("\n"))


SIMPLE = st.one_of(
    st.tuples(NAMES, EXPRESSIONS).map(lambda t: f"{t[0]} = {t[1]}"),
    st.tuples(NAMES, EXPRESSIONS).map(lambda t: f"{t[0]} += {t[1]}"),
    EXPRESSIONS.map(lambda e: f"print({e})"),
    NAMES.map(lambda n: f"{n} = 1\ndel {n}\n{n} = 2"),
)
BLOCKS = st.recursive(
    st.lists(SIMPLE, min_size=1, max_size=3).map("\n".join),
    lambda inner: st.lists(
        st.one_of(
            SIMPLE,
            st.tuples(EXPRESSIONS, inner).map(lambda t: f"if {t[0]} % 2:\n{indent(t[1])}"),
            st.tuples(EXPRESSIONS, inner, inner).map(
                lambda t: f"if {t[0]} % 2:\n{indent(t[1])}\nelse:\n{indent(t[2])}"
            ),
            st.tuples(NAMES, inner).map(lambda t: f"for {t[0]} in range(2):\n{indent(t[1])}"),
            st.tuples(NAMES, inner).map(
                lambda t: f"for {t[0]} in range(3):\n    if {t[0]} == 1:\n        break\n{indent(t[1])}"
            ),
            st.tuples(inner, inner).map(
                lambda t: f"try:\n{indent(t[0])}\n    1 / 0\nexcept ZeroDivisionError:\n{indent(t[1])}"
            ),
            st.tuples(NAMES, EXPRESSIONS).map(lambda t: f"def f_{t[0]}():\n    return {t[1]}\nprint(f_{t[0]}())"),
            st.tuples(NAMES, EXPRESSIONS).map(
                lambda t: f"def g_{t[0]}():\n    global {t[0]}\n    {t[0]} = {t[1]}\ng_{t[0]}()"
            ),
            st.tuples(NAMES, inner).map(lambda t: f"class C_{t[0]}:\n{indent(t[1])}"),
        ),
        min_size=1,
        max_size=4,
    ).map("\n".join),
    max_leaves=5,
)


def outcome(code, names):
    printed = []
    space = {**names, "print": printed.append}
    exec(compile(code, "<cell>", "exec"), space)
    return printed


@given(BLOCKS)
def test_a_cell_runs_alike_with_only_the_names_it_takes(code):
    notebook = {"a": 11, "b": 22, "c": 33, "d": 44}
    try:
        expected = outcome(code, notebook)
    except (NameError, SyntaxError):
        reject()
    taken = {name: value for name, value in notebook.items() if name in find_free_names(code)}
    assert outcome(code, taken) == expected


NEWER = {
    "def f[T: Bound](x: T) -> list[T]:\n    return y": {"Bound", "list", "y"},
    "class A[T](Base[T]):\n    x: T\n    def f(self) -> T: return z": {"Base", "z"},
    "type Pair[T] = tuple[T, Other]": {"tuple", "Other"},
}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is Python 3.12's")
@pytest.mark.parametrize("code", NEWER)
def test_type_parameters_are_no_names_of_the_notebook(code):
    taken = set(find_free_names(code))
    assert NEWER[code] - {"Bound"} <= taken
    assert "T" not in taken
