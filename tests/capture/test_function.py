"""Function calls captured from a real shell and run in a real rank."""

import functools
from pathlib import Path

import pytest

from distdl_jupyter.capture import capture_function
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import TIMES
from tests.capture.conftest import payload_of


def listed(draft):
    return {one.name: one.detail for one in draft.captured}


def test_a_function_travels_with_what_it_uses(notebook, rank, written):
    notebook.run("import numpy as np\ndigits = np.zeros((1797, 64))\nclass Net:\n    def go(self): return digits.shape")
    notebook.run(
        "def batches(): return Net().go()\ndef train(epochs, lr=0.1, *more, **named):\n    return batches(), epochs"
    )
    draft = capture_function(notebook["train"], (100,), {"lr": 0.5, "seed": 3})
    assert listed(draft) == {
        "Net": "class, cell [1]", "batches": "function, cell [2]", "digits": f"ndarray 1797 {TIMES} 64",
        "epochs": "int = 100", "lr": "float = 0.5", "seed": "int = 3",
    }  # fmt: skip
    assert (draft.kind, draft.name, draft.source.execution_count) == ("function", "train", 2)
    assert draft.source.code.startswith("def train(epochs")
    assert (draft.source.first_line, draft.numbers) == (2, {"epochs": 100, "lr": 0.5, "seed": 3})
    assert payload_of(written(draft))["names"][-3:] == ["function", "args", "kwargs"]
    assert rank(draft).value == ((1797, 64), 100)


def test_lambdas_closures_methods_partials_and_callable_objects(notebook, rank):
    notebook.run(
        "import functools\nbase = 1\nf = lambda x: x + base\n"
        "def outer(n):\n    def inner(x): return x + n\n    return inner\n"
        "class Trainer:\n    k = 5\n    def run(self, x): return self.k + x\n"
        "    def __call__(self, x): return self.run(x)\n"
        "half = functools.partial(outer(10), 3)"
    )
    cases = {
        "f": (capture_function(notebook["f"], (1,)), 2),
        "inner": (capture_function(notebook["outer"](20), (1,)), 21),
        "run": (capture_function(notebook["Trainer"]().run, (1,)), 6),
        "partial": (capture_function(notebook["half"]), 13),
        "object": (capture_function(notebook["Trainer"](), (2,)), 7),
        "class": (capture_function(notebook["Trainer"]), None),
        "builtin": (capture_function(max, (3, 4)), 4),
    }
    for name, (draft, value) in cases.items():
        done = rank(draft)
        assert value is None or done.value == value, name
    assert cases["inner"][0].captured[0].name == "n"
    assert [draft.name for draft, _ in cases.values()] == [
        "lambda", "inner", "run", "inner", "Trainer", "Trainer", "max",
    ]  # fmt: skip


def test_a_function_of_a_module_beside_the_notebook(notebook, rank, written):
    Path("training.py").write_text("import more\nRATE = 2\ndef train(n): return more.K * RATE * n\n")
    Path("more.py").write_text("K = 3\n")
    notebook.run("from training import train")
    draft = capture_function(notebook["train"], (2,))
    assert set(listed(draft)) == {"n", "training.py", "more.py"}
    assert b"RATE" not in written(draft).payload.read_bytes(), "it travels by name, its file beside it"
    assert rank(draft).value == 12


def test_arguments_that_do_not_fit_are_refused(notebook):
    notebook.run("def train(epochs, *, lr): pass")
    with pytest.raises(
        InvalidSpec,
        match=r"train\(epochs, \*, lr\) cannot be called with these arguments: missing a "
        "required",
    ):
        capture_function(notebook["train"], (1,))
    with pytest.raises(InvalidSpec, match="unexpected keyword argument 'rate'"):
        capture_function(notebook["train"], (1,), {"lr": 1, "rate": 2})


def test_async_functions_and_things_that_are_none_are_refused(notebook):
    notebook.run("async def train(): pass")
    with pytest.raises(InvalidSpec, match=r"train is an async function.*asyncio.run\(train\(\)\)"):
        capture_function(notebook["train"])
    with pytest.raises(InvalidSpec, match="3 is not a function"):
        capture_function(3)  # type: ignore[arg-type]


def test_what_cannot_be_pickled_is_named_wherever_it_is(notebook):
    notebook.run(
        "import threading, sqlite3\nlock = threading.Lock()\ndef uses(): return lock\n"
        "def outer():\n    db = sqlite3.connect(':memory:')\n    def inner(): return db\n    return inner, db\n"
        "inner, db = outer()\n"
        "def takes(a): pass\nconfig = {'hooks': [threading.Event()]}"
    )
    with pytest.raises(
        InvalidSpec, match=r"^lock cannot be sent to the ranks: it is a lock\. Create it inside the function"
    ):
        capture_function(notebook["uses"])
    with pytest.raises(
        InvalidSpec,
        match=r"^db cannot be sent to the ranks: it is a Connection\. Open the connection inside the "
        "function",
    ):
        capture_function(notebook["inner"])
    with pytest.raises(InvalidSpec, match=r"^a\['hooks'\]\[0\]\._cond\._lock cannot be sent"):
        capture_function(notebook["takes"], (notebook["config"],))
    notebook["db"].close()


def test_arguments_that_are_one_object_stay_one(notebook, rank):
    notebook.run("def same(a, b): return a is b\nx = [1]")
    assert rank(capture_function(notebook["same"], (notebook["x"],), {"b": notebook["x"]})).value is True


def test_without_a_notebook(rank, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    draft = capture_function(functools.partial(pow, 2), (5,))
    assert (draft.name, listed(draft), draft.source.notebook) == ("pow", {"exp": "int = 5"}, "")
    assert rank(draft).value == 32
