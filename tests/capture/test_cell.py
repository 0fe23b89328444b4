"""Cells captured from a real shell and run in a real rank."""

import pytest

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import TIMES


def listed(draft):
    return {one.name: (one.kind, one.detail) for one in draft.captured}


def test_names_that_the_cell_uses_are_sent_and_listed(notebook, rank):
    notebook.run("import numpy as np\nunused = 1\nepochs = 100\ndigits = np.zeros((1797, 64))")
    notebook.run("class DigitsCNN:\n    def width(self):\n        return digits.shape[1]")
    notebook.run("def batches(n):\n    return [DigitsCNN().width()] * n")
    draft = notebook.capture("print('on it')\nbatches(epochs)[:2]", notebook="/x/quickstart.ipynb", cell_id="c7")
    assert listed(draft) == {
        "DigitsCNN": ("class", "class, cell [2]"),
        "batches": ("function", "function, cell [3]"),
        "digits": ("value", f"ndarray 1797 {TIMES} 64"),
        "epochs": ("value", "int = 100"),
    }
    assert [one.kind for one in draft.captured] == ["class", "function", "value", "value"]
    assert draft.format_heading() == "4 names, 921 kB"
    assert draft.format_summary().startswith("4 names, 921 kB: digits 920 kB, ")
    assert (draft.name, draft.source.cell_id, draft.source.execution_count) == ("quickstart [7]", "c7", 7)
    done = rank(draft)
    assert done.value == [64, 64]
    assert "on it" in done.out


def test_each_name_has_its_own_size(notebook):
    notebook.run("import numpy as np\nbig = np.zeros(100_000)\ndef first(): return big\ndef second(): return first()")
    sizes = {one.name: one.size for one in notebook.capture("second()").captured}
    assert 800_000 < sizes["big"] < 801_000
    assert sizes["first"] < 2000
    assert sizes["second"] < 2000


def test_names_keep_sharing_what_they_share(notebook, rank):
    notebook.run("shared = [1]\na = {'list': shared}\nb = {'list': shared}\ndef see(): return a")
    code = "a['list'].append(2)\n(b['list'], see() is a, shared)"
    assert rank(notebook.capture(code)).value == ([1, 2], True, [1, 2])


def test_functions_see_what_the_cell_assigns(notebook, rank):
    notebook.run("lr = 1.0\ndef rate(): return lr\ndef rise():\n    global lr\n    lr += 1")
    assert rank(notebook.capture("lr = 5.0\nrise()\n(lr, rate())")).value == (6.0, 6.0)


def test_an_instance_comes_back_as_the_notebooks_class(notebook, rank):
    notebook.run("class Point:\n    def __init__(self, x): self.x = x\np = Point(3)")
    draft = notebook.capture("p.x += 1\np")
    assert listed(draft) == {"Point": ("class", "class, cell [1]"), "p": ("value", "Point")}
    value = rank(draft).value
    assert isinstance(value, notebook["Point"])
    assert value.x == 4


def test_mutual_recursion(notebook, rank):
    notebook.run(
        "def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)\n"
        "class Tree:\n    def grow(self): return Tree\n"
    )
    assert rank(notebook.capture("(even(10), odd(10), Tree().grow() is Tree)")).value == (True, False, True)


def test_closures_partials_methods_and_lambdas(notebook, rank):
    notebook.run(
        "import functools\nbase = 10\n"
        "def make(n):\n    def add(x): return x + n + base\n    return add\n"
        "add = make(5)\nhalf = functools.partial(add, 1)\nsquare = lambda x: x * base\n"
        "class Counter:\n    n = 3\n    def get(self): return self.n + base\nget = Counter().get\n"
        "@functools.lru_cache\ndef cached(x): return x + base\n"
        "by_name = {'square': square, 'nested': [add]}"
    )
    code = "(add(1), half(), square(2), get(), cached(1), by_name['nested'][0](2))"
    draft = notebook.capture(code)
    assert listed(draft)["base"] == ("value", "int = 10")
    assert rank(draft).value == (16, 16, 20, 13, 11, 17)


def test_ipythons_replacements_are_not_sent(notebook, rank, tmp_path):
    notebook.run(
        "import sys, logging\n"
        "def read(): return open('/dev/null').read()\n"
        "def in_notebook():\n    try:\n        get_ipython()\n        return True\n"
        "    except NameError:\n        return False\n"
        "handler = logging.StreamHandler(sys.stdout)\n"
        "class Tee:\n    def __init__(self, stream): self.stream = stream\n"
        "tee = Tee(sys.stdout)"
    )
    assert notebook["in_notebook"]() is True
    draft = notebook.capture(
        "tee.stream.write('told\\n')\ndisplay(3)\n(open('/dev/null').read(), read(), in_notebook())"
    )
    assert "open" not in draft.payload_json["names"]
    done = rank(draft)
    assert done.value == ("", "", False)
    assert "told\n" in done.out
    assert "3\n" in done.out


def test_all_values_that_cannot_be_sent_are_named_at_once(notebook):
    notebook.run("g = (i for i in [1])\nimport threading, io\nlock = threading.Lock()\ndef use(): return lock")
    with pytest.raises(InvalidSpec) as caught:
        notebook.capture("use(), g, lock")
    assert str(caught.value) == (
        "lock cannot be sent to the ranks: it is a lock. Create it inside the cell. g cannot be sent to the ranks: it "
        "is a generator. Convert it to a list, or create it inside the cell."
    )


def test_the_place_inside_a_value_is_named(notebook):
    notebook.run(
        "import torch, threading\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.body = torch.nn.Sequential(torch.nn.ReLU())\n"
        "        self.body[0].stream = open('log.txt', 'w')\n"
        "model = Net()"
    )
    with pytest.raises(InvalidSpec) as caught:
        notebook.capture("model")
    assert caught.value.field == "model.body.0.stream"
    assert "it is a TextIOWrapper" in str(caught.value)
    assert "Open the file inside the cell." in str(caught.value)
    notebook["model"].body[0].stream.close()


def test_imported_modules_are_sent_by_name(notebook, rank):
    notebook.run(
        "import numpy as np\nfrom collections import OrderedDict as OD\nfrom math import floor\nimport os.path"
    )
    draft = notebook.capture("(np.sum([1, 2]).item(), OD(a=1)['a'], floor(2.5), os.path.basename('/a/b'))")
    assert draft.captured == ()
    assert draft.format_heading() == "nothing captured"
    assert draft.aliases["np"] == "numpy"
    assert draft.aliases["OD"] == "collections.OrderedDict"
    assert rank(draft).value == (3, 1, 2, "b")


def test_details_of_common_values(notebook):
    notebook.run(
        "import numpy as np, torch, pandas as pd\n"
        "a = torch.zeros(3, 4)\nb = torch.nn.Linear(10, 2)\nc = pd.DataFrame({'x': [1, 2]})\n"
        "d = 'short'\ne = 'x' * 50\n"
        "f = [1, 2, 3]\ng = None\nh = 0.01\ni = {'a': 1}\nj = np.float32(2)\nk = True\nl = 10 ** 40"
    )
    details = {one.name: one.detail for one in notebook.capture("a,b,c,d,e,f,g,h,i,j,k,l").captured}
    assert details == {
        "a": f"Tensor 3 {TIMES} 4", "b": "Linear, 22 parameters", "c": f"DataFrame 2 {TIMES} 1", "d": "str = 'short'",
        "e": "str, 50 characters", "f": "list, 3 items", "g": "None", "h": "float = 0.01", "i": "dict, 1 item",
        "j": "float32 scalar", "k": "bool = True", "l": "int = 10000000000000000000000…",
    }  # fmt: skip


def test_submodules_are_imported(notebook, rank):
    notebook.run("import xml.etree.ElementTree, logging.handlers as lh, concurrent.futures\nimport os.path")
    code = "(xml.etree.ElementTree.fromstring('<a/>').tag, lh.BufferingHandler.__name__, os.path.sep)"
    assert rank(notebook.capture(code)).value == ("a", "BufferingHandler", "/")
    notebook.run("def parse(): return xml.etree.ElementTree.fromstring('<b/>').tag")
    assert rank(notebook.capture("parse()")).value == "b"


def test_objects_whose_pickling_raises_anything(notebook):
    notebook.run("class Odd:\n    def __reduce__(self): raise ZeroDivisionError('no way')\nodd = [Odd()]")
    with pytest.raises(InvalidSpec, match=r"odd\[0\] cannot be sent to the ranks: it is an Odd \(no way\)\."):
        notebook.capture("odd")
