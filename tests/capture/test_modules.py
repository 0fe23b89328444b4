"""Modules beside the notebook travel as files; installed ones do not."""

import os
import sys
from pathlib import Path

import cloudpickle
import pytest

from distdl_jupyter.capture import capture_function
from distdl_jupyter.capture.modules import find_modules, find_roots
from distdl_jupyter.capture.notebook import CodeLocation
from distdl_jupyter.core.errors import InvalidSpec


def write(path, text=""):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def labels(draft):
    return {one.name: one.detail for one in draft.captured if one.kind == "module"}


def test_a_module_and_what_it_imports_travel(notebook, rank, written):
    write("shards.py", "from deeper import X\ndef part(): return X\n")
    write("deeper.py", "import json\nX = 5\n")
    write("other.py", "raise SystemExit\n")
    notebook.run("import shards")
    draft = notebook.capture("shards.part()")
    assert labels(draft) == {
        "shards.py": "module in the notebook's folder",
        "deeper.py": "module in the notebook's folder",
    }
    assert sorted(p.name for p in written(draft).code.iterdir()) == ["deeper.py", "shards.py"]
    assert rank(draft).value == 5


def test_the_copy_is_what_runs(notebook, rank, written, monkeypatch):
    write("shards.py", "X = 'as it was'\n")
    draft = notebook.capture("import shards\n(shards.X, shards.__file__)")
    folder = written(draft)
    value, file = rank(draft).value
    assert value == "as it was"
    assert "/code/shards.py" in file
    assert (folder.code / "shards.py").read_text() == "X = 'as it was'\n"


def test_functions_and_classes_of_a_module_bring_it_along(notebook, rank):
    write("shards.py", "class Net:\n    def go(self): return helper()\ndef helper(): return 3\n")
    notebook.run("from shards import Net, helper\nnet = Net()")
    draft = notebook.capture("(net.go(), helper())")
    assert set(labels(draft)) == {"shards.py"}
    assert [one.name for one in draft.captured] == ["net", "shards.py"]
    assert rank(draft).value == (3, 3)


def test_imports_inside_a_captured_function_count(notebook, rank):
    write("shards.py", "X = 8\n")
    notebook.run("def f():\n    import shards\n    return shards.X")
    draft = notebook.capture("f()")
    assert set(labels(draft)) == {"shards.py"}
    assert rank(draft).value == 8


def test_a_package_travels_whole_but_for_large_data(notebook, rank, written):
    write("mylib/__init__.py", "from .inner import deep\n")
    write("mylib/inner/deep.py", "from pathlib import Path\nX = Path(__file__).with_name('words.txt').read_text()\n")
    write("mylib/inner/words.txt", "hello")
    write("mylib/inner/big.bin", "x" * 1_000_001)
    write("mylib/.git/config", "no")
    write("mylib/__pycache__/x.pyc", "no")
    draft = notebook.capture("import mylib.inner.deep\nmylib.inner.deep.X")
    assert labels(draft) == {"mylib/": "package in the notebook's folder"}
    assert [str(p) for p in draft.modules[0].omitted] == ["mylib/inner/big.bin"]
    folder = written(draft)
    assert sorted(str(p.relative_to(folder.code)) for p in folder.code.rglob("*") if p.is_file()) == [
        "mylib/__init__.py", "mylib/inner/deep.py", "mylib/inner/words.txt",
    ]  # fmt: skip
    assert rank(draft).value == "hello"


def test_a_package_without_init_travels(notebook, rank):
    write("plainlib/one.py", "X = 4\n")
    notebook.run("import plainlib.one")
    draft = notebook.capture("plainlib.one.X")
    assert labels(draft) == {"plainlib/": "package in the notebook's folder"}
    assert rank(draft).value == 4


def test_a_folder_put_on_the_path_by_hand_counts(notebook, rank, tmp_path):
    write(tmp_path / "src" / "tools.py", "X = 6\n")
    notebook.run(f"import sys\nsys.path.insert(0, {str(tmp_path / 'src')!r})\nimport tools")
    draft = notebook.capture("tools.X")
    assert labels(draft) == {"tools.py": "module from src/"}
    assert rank(draft).value == 6


@pytest.mark.parametrize("name", ["lib/python3.11/site-packages", "vendor"])
def test_packages_installed_elsewhere_stay_and_ranks_find_them(notebook, rank, tmp_path, name):
    write(tmp_path / name / "shapes" / "__init__.py", "X = 4\n")
    write(tmp_path / name / "shapes-1.0.dist-info" / "METADATA")
    notebook.run(f"import site\nsite.addsitedir({str(tmp_path / name)!r})\nimport shapes")
    draft = notebook.capture("shapes.X")
    assert labels(draft) == {}
    assert rank(draft).value == 4


def test_modules_that_are_too_large_to_travel_are_named_before_they_are_read(notebook, tmp_path):
    write("torchlike/__init__.py", "import more")
    (Path("torchlike") / "core.so").touch()
    os.truncate("torchlike/core.so", 300_000_000)
    write("more.py", "(")  # is never read
    with pytest.raises(
        InvalidSpec, match=r"would send, such as torchlike/ in .*, take 300 MB or more, but the limit is 200 MB"
    ):
        notebook.capture("import torchlike")


def test_a_folder_that_a_pth_file_of_such_packages_names_is_installed(notebook, rank, tmp_path):
    write(tmp_path / "project" / "shapes.py", "X = 4\n")
    write(tmp_path / "site-packages" / "shapes.pth", f"{tmp_path / 'project'}\n")
    notebook.run(f"import site\nsite.addsitedir({str(tmp_path / 'site-packages')!r})\nimport shapes")
    draft = notebook.capture("shapes.X")
    assert labels(draft) == {}
    assert rank(draft).value == 4


def test_the_notebooks_own_folder_counts_when_it_is_another_one(notebook, rank, tmp_path):
    write(tmp_path / "elsewhere" / "shards.py", "X = 7\n")
    (tmp_path / "elsewhere" / "n.ipynb").touch()
    draft = notebook.capture("import shards\nshards.X", notebook=str(tmp_path / "elsewhere" / "n.ipynb"))
    assert set(labels(draft)) == {"shards.py"}
    assert rank(draft).value == 7


def test_a_linked_module_belongs_where_the_link_is(notebook, rank, tmp_path):
    write(tmp_path / "real" / "original.py", "X = 9\n")
    Path("linked.py").symlink_to(tmp_path / "real" / "original.py")
    notebook.run("import linked")
    draft = notebook.capture("linked.X")
    assert set(labels(draft)) == {"linked.py"}
    assert rank(draft).value == 9


@pytest.mark.parametrize("name", ["numpy", "json", "sys", "distdl_jupyter", "pytest", "no_such_module", "__main__"])
def test_installed_and_missing_modules_stay(notebook, name):
    assert find_modules([name], find_roots(CodeLocation())) == []


def test_a_file_that_is_hidden_by_an_installed_module_stays(notebook):
    write("pickle.py", "raise SystemExit\n")
    assert find_modules(["pickle"], find_roots(CodeLocation())) == []


def test_packages_installed_in_editable_form_stay():
    assert not any((root / "distdl_jupyter").is_dir() for root in find_roots(CodeLocation()) if root != Path.cwd())
    assert Path(sys.prefix) not in find_roots(CodeLocation())


def test_a_module_that_is_registered_to_travel_by_value_is_not_copied(notebook, rank, monkeypatch):
    write("mylib/__init__.py")
    write("mylib/shards.py", "BASE = 2\ndef helper(): return BASE\nclass Net:\n    def go(self): return helper() + 1\n")
    notebook.run("import mylib\nfrom mylib.shards import Net, helper\nnet = Net()")
    monkeypatch.setattr(cloudpickle.cloudpickle, "_PICKLE_BY_VALUE_MODULES", {"mylib"})
    draft = notebook.capture("(net.go(), helper())")
    assert [one.name for one in draft.captured] == ["net"]
    assert (labels(draft), rank(draft).value) == ({}, (3, 2))
    draft = capture_function(notebook["net"].go)
    assert (labels(draft), rank(draft).value) == ({}, 3)


MYMOD = """
import functools
VALUE = 2
def fn(): return VALUE
lam = lambda: VALUE
def kept(f):
    @functools.wraps(f)
    def inner(): return f() * VALUE
    return inner
@kept
def decorated(): return VALUE
@functools.cache
def cached(): return VALUE
def make(more):
    def made(): return VALUE + more
    return made
class Net:
    def go(self): return VALUE
    class Inner:
        @staticmethod
        def go(): return VALUE
"""
RELOAD = {
    "as imported": "pass",
    "reloaded": "importlib.reload(mymod)",
    "imported anew": "del sys.modules['mymod']; import mymod",
    "forgotten": "del sys.modules['mymod']",
}


@pytest.mark.parametrize("how", RELOAD)
def test_functions_see_their_module_as_its_file_is_however_they_reached_the_cell(notebook, rank, how):
    write("mymod.py", MYMOD)
    notebook.run("import functools, importlib, sys, mymod\nfrom mymod import *\nmade, net = make(0), Net()")
    notebook.run(f"part, method, later = functools.partial(fn), net.go, [lam]\n{RELOAD[how]}\nmymod.VALUE = 77")
    notebook.run("fn.__globals__['VALUE'] = 77\nclass Own(Net): pass\ndef own(): return fn()")
    calls = (
        "fn(), lam(), decorated() // 2, made(), net.go(), Net().go(), part(), method(), later[0](), own(), Own().go()"
    )
    draft = notebook.capture(f"({calls}, Net.Inner.go())")
    assert set(labels(draft)) == {"mymod.py"}
    assert rank(draft).value == (2,) * 12
    for name in ("fn", "lam", "made", "method", "part"):
        assert rank(capture_function(notebook[name])).value == 2, name
    if how != "forgotten":
        draft = notebook.capture(
            "import mymod\n(mymod.fn is fn, mymod.Net is Net, isinstance(net, mymod.Net), cached())"
        )
        assert rank(draft).value == (True, True, True, 2)


def test_a_function_inside_a_decorated_one_or_replaced_in_the_notebook_stays_itself(notebook, rank):
    write("mymod.py", MYMOD)
    notebook.run(
        "import mymod\ninner, fn = mymod.decorated.__wrapped__, mymod.fn\nmymod.fn = lambda: 5\nmymod.VALUE = 77"
    )
    assert rank(notebook.capture("inner(), fn(), mymod.fn()")).value == (2, 2, 2)


def test_a_function_of_a_file_that_no_rank_finds_travels_by_value(notebook, rank, tmp_path):
    write(tmp_path / "elsewhere" / "settings.py", "BASE = 2\nhalf = lambda: BASE\n")
    notebook.run(
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('settings', {str(tmp_path / 'elsewhere/settings.py')!r})\n"
        "settings = sys.modules['settings'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(settings)\nhalf = settings.half"
    )
    assert rank(notebook.capture("half()")).value == 2
