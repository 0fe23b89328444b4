"""What was captured is rebuilt as one notebook, or the name that cannot be is told with its reason."""

import pickle
import subprocess
import sys

import pytest

from distdl_jupyter.worker import payload
from tests.worker import ranks


def notebook(code, names):
    """Return the values of ``names`` after running ``code`` as a notebook's ``__main__``, pickled by one pickler."""
    program = (
        "import sys, cloudpickle\n"
        f"exec(compile({code!r}, '/tmp/ipykernel_1/1.py', 'exec'))\n"
        "pickler = cloudpickle.Pickler(sys.stdout.buffer)\n"
        f"[pickler.dump(globals()[name]) for name in {names!r}]\n"
    )
    return subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout


def cell_with(folder, captured, names, code):
    folder.cell(code, values=dict.fromkeys(names))
    (folder.path / "payload.pkl").write_bytes(notebook(captured, names))
    return ranks.run(folder)


def test_two_names_of_one_object_stay_one_object(folder):
    ended = cell_with(folder, "a = [1]\nb = {'a': a}", ["a", "b"], "a.append(2)\nb['a'] is a, b")
    assert ended.code == 0, ended.err
    assert folder.value() == (True, {"a": [1, 2]})


def test_captured_functions_see_what_the_cell_sets(folder):
    """As in the notebook, where all cells share one namespace."""
    captured = "rate = 0.1\ndef get():\n    return rate\nclass Step:\n    def size(self):\n        return 10 * rate"
    ended = cell_with(folder, captured, ["get", "Step", "rate"], "rate = 0.5\nget(), Step().size()")
    assert ended.code == 0, ended.err
    assert folder.value() == (0.5, 5.0)


def test_captured_functions_set_what_the_cell_sees(folder):
    captured = "count = 0\ndef bump():\n    global count\n    count += 1"
    ended = cell_with(folder, captured, ["bump", "count"], "bump()\nbump()\ncount")
    assert ended.code == 0, ended.err
    assert folder.value() == 2


def test_captured_functions_call_each_other(folder):
    captured = "def even(n):\n    return n == 0 or odd(n - 1)\ndef odd(n):\n    return n > 0 and even(n - 1)"
    ended = cell_with(folder, captured, ["even"], "even(10), even(7)")
    assert ended.code == 0, ended.err
    assert folder.value() == (True, False)


@pytest.fixture
def gone(tmp_path):
    """A pickle that refers to a module which the rank does not have."""
    (tmp_path / "shards_of_mine.py").write_text("class Batch:\n    pass\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import shards_of_mine, pickle\n"
    code += "sys.stdout.buffer.write(pickle.dumps(1) + pickle.dumps(shards_of_mine.Batch()))"
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout


def test_a_name_whose_module_is_missing_is_told(folder, gone):
    folder.cell("1", values={"step": None, "batch": None})
    (folder.path / "payload.pkl").write_bytes(gone)
    ended = ranks.run(folder)
    assert ended.code == 1
    assert ended.error["type"] == "CannotLoad"
    assert ended.error["message"].startswith(
        f"The captured variable 'batch' cannot be loaded in this rank: the module shards_of_mine is not installed for "
        f"{sys.executable} on "
    )
    (cause,) = ended.error["causes"]
    assert cause["type"] == "ModuleNotFoundError"


class Picky:
    """Refuses to be rebuilt."""

    def __reduce__(self):
        return refuse, ()


def refuse():
    raise OSError("the licence server is not here")


def test_a_value_that_refuses_to_be_rebuilt_is_told(folder):
    folder.cell("1", values={"tool": None})
    (folder.path / "payload.pkl").write_bytes(pickle.dumps(Picky()))
    ended = ranks.run(folder, PYTHONPATH=str(__import__("pathlib").Path(__file__).parents[2]))
    assert ended.error["message"] == (
        "The captured variable 'tool' cannot be loaded in this rank: OSError: the licence server is not here."
    )


def test_a_payload_that_ends_early_is_told(folder):
    folder.cell("1", values={"a": 1, "b": 2})
    (folder.path / "payload.pkl").write_bytes(pickle.dumps(1))
    assert ranks.run(folder).error["message"] == (
        "The captured variable 'b' cannot be loaded in this rank: the payload ends early."
    )


def test_a_payload_of_a_later_version_is_refused(tmp_path):
    (tmp_path / "payload.json").write_text('{"format": 2, "kind": "cell"}')
    with pytest.raises(payload.CannotLoad, match="has format 2, but this version of distdl-jupyter reads format 1"):
        payload.read(tmp_path)


def test_a_payload_that_is_missing_is_told(tmp_path):
    with pytest.raises(payload.CannotLoad, match=r"payload\.json cannot be read"):
        payload.read(tmp_path)
