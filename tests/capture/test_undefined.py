"""Names that nothing defines: what is refused fails in every run whose loops run, and what runs is never refused."""

import ast
import contextlib

import pytest
from hypothesis import given

from distdl_jupyter.capture import capture_cell, capture_function, capture_script
from distdl_jupyter.core.errors import InvalidSpec
from tests.capture.test_free_names import BLOCKS


def undefined(code, namespace=None):
    draft = capture_cell(code, namespace or {}, first_line=1)
    return {one.name: one.certain for one in draft.undefined}


def fails_with(code):
    """Return the name that a run of the code does not find, "" when it runs."""
    try:
        with contextlib.redirect_stdout(None):
            exec(compile(code, "<cell>", "exec", dont_inherit=True), {"__name__": "__main__"})
    except NameError as error:
        return error.name or str(error)  # UnboundLocalError has no name
    except SystemExit:
        return ""
    return ""


REFUSED = [
    "lost",
    "def f():\n    return lost\nf()",
    "def f():\n    g()\ndef g():\n    lost\nf()",
    "for i in range(3):\n    lost(i)",
    "epochs = 2\nfor i in range(epochs):\n    lost(i)",
    "for i in range(2):\n    if i == 5:\n        continue\nlost",
    "for x in [1, 2]:\n    for y in enumerate('ab'):\n        lost",
    "if __name__ == '__main__':\n    lost",
    "with open('/dev/null') as file:\n    lost",
    "while True:\n    lost\n    break",
    "while True:\n    break\nlost",
    "class A(lost): pass",
    "import os as lost2\nlost.path",
    "def f():\n    import os as lost\nf()\nlost",
    "[lost for lost in range(2)]\nlost",
    "def f():\n    for lost in (1, 2): pass\nf()\nlost",
    "vars(lost)",
    "print(f'{lost:3}')",
]

#: Code that fails with an undefined name, but is only warned of.
WARNED = [
    "def f():\n    def inner():\n        return lost\n    return inner()\nf()",
    "if True:\n    lost",
    "try:\n    lost\nfinally:\n    print()",
    "try:\n    lost\nexcept KeyboardInterrupt:\n    pass",
    "def f(x=lost): pass",
    "@lost\ndef f(): pass",
    "x = 1 if lost else 2",
    "x = [lost for i in [1]]",
    "assert lost",
]

#: Code that runs; with what warns, or nothing.
RUNS = {
    "def f():\n    return perhaps": ["perhaps"],
    "if len(''):\n    perhaps": ["perhaps"],
    "class Lazy:\n    if len(''):\n        perhaps": ["perhaps"],
    "x = len('a') or perhaps": ["perhaps"],
    "x = perhaps if len('') else 1": ["perhaps"],
    "x = 2 > 3 > perhaps": ["perhaps"],
    "[perhaps for i in []]": ["perhaps"],
    "lambda: perhaps": ["perhaps"],
    "class A:\n    def f(self): return perhaps\nA()": ["perhaps"],
    "def f():\n    yield perhaps\nf()": ["perhaps"],
    "async def f():\n    perhaps\nf().close()": ["perhaps"],
    "def skip(f): return lambda: 1\n@skip\ndef f():\n    return perhaps\nf()": ["perhaps"],
    "def f():\n    if len('a'):\n        return\n    perhaps\nf()": ["perhaps"],
    "import sys\nif len('a'):\n    sys.exit()\nperhaps": ["perhaps"],
    "if len('a'):\n    raise SystemExit(0)\nperhaps": ["perhaps"],
    "import sys\ndef done():\n    sys.exit()\ndone()\nperhaps": ["perhaps"],
    "for i in range(2):\n    if i == 0:\n        continue\n    if i == 1:\n        break\n    perhaps": ["perhaps"],
    "while True:\n    if len('a'):\n        break\n    perhaps": ["perhaps"],
    "try:\n    1 / 0\n    perhaps\nexcept ZeroDivisionError:\n    pass": ["perhaps"],
    "try:\n    int('x')\nexcept ValueError:\n    pass\nelse:\n    perhaps": ["perhaps"],
    "import sys\nif sys.platform == 'win32':\n    perhaps": ["perhaps"],
    "match 1:\n    case 2:\n        perhaps": ["perhaps"],
    "assert len('a'), perhaps": ["perhaps"],
    "def f(g=0):\n    g = 1\n    return perhaps if not g else 2\nf()": ["perhaps"],
    "def f(): return perhaps\nf = print\nf()": ["perhaps"],
    "def f(): return perhaps\nfor f in [print]:\n    f()": ["perhaps"],
    # Nothing to say.
    "try:\n    maybe\nexcept NameError:\n    maybe = 1\nmaybe": [],
    "try:\n    unicode\nexcept:\n    unicode = str\nunicode(1)": [],
    "try:\n    get_ipython()\nexcept NameError:\n    pass": [],
    "if len('a'):\n    x = 1\nprint(x)": [],
    "for i in range(3):\n    last = i\nprint(last)": [],
    "while len('a'):\n    x = 1\n    break\nprint(x)": [],
    "with open('/dev/null') as x: pass\nx": [],
    "try:\n    import nowhere_to_be_found as x\nexcept ImportError:\n    x = None\nx": [],
    "def set_up():\n    global model\n    model = 1\ndef use(): return model\nset_up()\nuse()": [],
    "from math import *\npi": [],
    "exec('made = 1')\nmade": [],
    "globals()['made'] = 1\nmade": [],
    "locals()['made'] = 1\nmade": [],
    "import builtins\nbuiltins.made_up = 1\nmade_up\ndel builtins.made_up": [],
    "import sys\nsys.modules.setdefault('made', sys)": [],
    "x = 1\ndel x\nx = 2\nx": [],
    "class A:\n    n = 2\n    m = n + 1\n    name = __qualname__, __module__\n    k = [i for i in range(n)]": [],
    "class Meta(type):\n    def __prepare__(*a): return dict(red=1)\nclass A(metaclass=Meta):\n    x = red": ["red"],
    "class Meta(type):\n    def __prepare__(*a): return dict(red=1)\nclass B(metaclass=Meta): pass\n"
    "class A(B):\n    x = red": ["red"],
    "class A:\n    def f(self): return __class__\nA().f()": [],
    "from __future__ import annotations\ndef f(x: Lost) -> Lost2:\n    y: Lost3 = 1\nf(1)\nz: Lost4 = 2": [],
    "def f(x: 'Lost') -> 'Lost2':\n    y: Lost3 = 1\nf(1)\nz: 'Lost4' = 2": [],
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import Lost\n    Lost.b\n"
    "def f(x: 'Lost'): pass\nf(1)": [],
    "import typing\nif typing.TYPE_CHECKING:\n    from a import Lost\ndef f(x: 'Lost'): pass": [],
    "[x := 1 for i in range(2)]\nx": [],
    "if (n := len('abc')) > 2:\n    print(n)": [],
    "print(__name__, __doc__, __debug__, __builtins__)": [],
    "match [1, 2]:\n    case [a, *b]:\n        print(a, b)\n    case {'k': c, **d}:\n        print(c, d)": [],
    "import os.path\nos.path.join('a')": [],
    "def f(a, *b, c=1, **d):\n    e = a\n    def g():\n        nonlocal e\n        e = 2\n        return a, b, c, d\n"
    "    return g()\nf(1)": [],
    "f = lambda a, b=2: a + b\nf(1)": [],
    "def f():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n        return error\nf()": [],
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_fails_in_every_run_is_refused(code):
    assert fails_with(code) == "lost"
    assert undefined(code) == {"lost": True}


@pytest.mark.parametrize("code", WARNED)
def test_what_fails_elsewhere_is_warned_of(code):
    assert fails_with(code) == "lost"
    assert undefined(code) == {"lost": False}


def test_a_loop_counts_as_run():
    assert undefined("for i in []:\n    lost") == {"lost": True}
    assert undefined("while len(''):\n    lost") == {"lost": True}
    assert undefined("class A:\n    x = 1\n    y = lost") == {"lost": False}


@pytest.mark.parametrize("code", RUNS)
def test_what_runs_is_never_refused(code):
    assert fails_with(code) == ""
    found = undefined(code)
    assert True not in found.values()
    if RUNS[code] is not None:
        assert list(found) == RUNS[code]


@given(BLOCKS)
def test_random_code_that_is_refused_fails(code):
    try:
        ast.parse(code)
        compile(code, "<cell>", "exec")
    except SyntaxError:
        return
    certain = [name for name, is_certain in undefined(code).items() if is_certain]
    assert not certain or fails_with(code)


def all_undefined(draft):
    return [(one.name, one.location, one.where, one.certain, one.similar) for one in draft.undefined]


def test_functions_of_the_notebook_are_read_too(notebook):
    notebook.run("epochs = 2")
    notebook.run("def step(x):\n    return mislaid + x\n\ndef train():\n    for i in range(epochs):\n        step(i)")
    cell = notebook.capture("train()", first_line=2)
    assert all_undefined(cell) == [("mislaid", "line 2 of Cell [2]", "the cell or the notebook", True, ())]
    branch = notebook.capture("if len('a'):\n    train()")
    assert [(one.name, one.certain) for one in branch.undefined] == [("mislaid", False)]
    assert notebook.capture("mislaid = 1\ntrain()").undefined == ()
    rebound = notebook.capture("step = print\ntrain()")
    assert [(one.name, one.certain) for one in rebound.undefined] == [("mislaid", False)] or not rebound.undefined
    notebook.run("def train(step): step(1)")
    assert notebook.capture("train(print)").undefined == ()


@pytest.mark.parametrize(
    ("cell", "function", "found"),
    [
        ("def g(): return mislaid", "g", [("mislaid", True)]),
        ("class A:\n    def g(self): return mislaid", "A().g", [("mislaid", True)]),
        ("class A:\n    def __call__(self): return mislaid", "A()", [("mislaid", True)]),
        ("import functools\ndef h(x): return mislaid", "functools.partial(h, 1)", [("mislaid", True)]),
        ("g = lambda: mislaid", "g", [("mislaid", True)]),
        ("def g():\n    if len('a'): mislaid", "g", [("mislaid", False)]),
        ("def h(): return mislaid\ndef g(): return h()", "g", [("mislaid", True)]),
        ("def h(): return mislaid\ndef g(): return h", "g", [("mislaid", False)]),
        ("def outer(x):\n    def g(): return x + mislaid\n    return g", "outer(1)", [("mislaid", True)]),
        ("def g():\n    try:\n        return get_ipython()\n    except NameError: pass", "g", []),
        ("def g():\n    display(In, Out, _)\n    return get_ipython", "g", []),
        ("from __future__ import annotations\ndef g(x: Lost = 1) -> Lost:\n    y: Lost = 2", "g", []),
        ("def h():\n    global made\n    made = 1\ndef g():\n    h()\n    return made", "g", []),
        ("def g():\n    exec('made = 1')\n    return made", "g", []),
        ("def g(*, lr=0.1):\n    class A:\n        n = lr\n        m = n\n    return [n for n in range(3)]", "g", []),
        ("import functools\n@functools.lru_cache\ndef g(): return 1", "g", []),
    ],
)
def test_functions_that_are_submitted(notebook, cell, function, found):
    notebook.run(cell)
    draft = capture_function(eval(function, notebook.shell.user_ns))
    assert [(one.name, one.certain) for one in draft.undefined] == found
    assert all(one.where == "the notebook" and one.location.endswith(" of Cell [1]") for one in draft.undefined)


def test_functions_of_a_module_are_read_by_its_names(notebook, tmp_path):
    (tmp_path / "notebooks" / "steps.py").write_text("one = 1\ndef f(): return one + mislaid\ndef g(): return one\n")
    notebook.run("import steps\nmislaid = 2")
    assert all_undefined(capture_function(notebook["steps"].f)) == [
        ("mislaid", "line 2 of steps.py", "steps.py", True, ())
    ]
    assert capture_function(notebook["steps"].g).undefined == ()


def test_scripts(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse\nargs = argparse.Namespace(n=1)\nprint(__file__, vars(args))\n"
        "def main():\n    print(argz)\n\nif __name__ == '__main__':\n    main()\n"
    )
    assert all_undefined(capture_script(script)) == [("argz", "line 5 of train.py", "train.py", True, ("args",))]
    script.write_text("from os.path import *\njoin('a')\n")
    assert capture_script(script).undefined == ()


DEEP = {
    "a sum": lambda n: f"x = 1{' + 1' * n}",
    "a chain of elif": lambda n: "x = 1\nif x == 0: pass\n" + "".join(f"elif x == {i}: pass\n" for i in range(n)),
    "a chain of calls": lambda n: f"x = ''{'.strip()' * n}",
}


@pytest.mark.parametrize("kind", DEEP)
def test_deeply_nested_code_is_read_as_far_as_python_compiles_it(kind, tmp_path):
    assert undefined(DEEP[kind](600) + "\nlost") == {"lost": True}
    with pytest.raises(InvalidSpec) as caught:
        undefined(DEEP[kind](20_000))
    assert caught.value.code == "code-nested-too-deeply"
    assert caught.value.hint
    script = tmp_path / "deep.py"
    script.write_text(DEEP[kind](20_000))
    with pytest.raises(InvalidSpec) as caught:
        capture_script(script)
    assert caught.value.code == "code-nested-too-deeply"
