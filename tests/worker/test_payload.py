"""A captured value that cannot be loaded is named with the reason."""

import pickle
import subprocess
import sys

import pytest

from tests.worker import ranks


@pytest.fixture
def gone(tmp_path):
    """A pickle that refers to a module which the rank does not have."""
    (tmp_path / "shards_of_mine.py").write_text("class Batch:\n    pass\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import shards_of_mine, pickle\n"
    code += "sys.stdout.buffer.write(pickle.dumps(1) + pickle.dumps(shards_of_mine.Batch()))"
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout


def test_a_missing_module_is_named(folder, gone):
    folder.cell("1", values={"step": None, "batch": None})
    (folder.path / "payload.pkl").write_bytes(gone)
    ended = ranks.run(folder)
    assert ended.code == 1
    assert ended.error["type"] == "LoadError"
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


def test_a_value_that_cannot_be_unpickled_is_named(folder):
    folder.cell("1", values={"tool": None})
    (folder.path / "payload.pkl").write_bytes(pickle.dumps(Picky()))
    ended = ranks.run(folder, PYTHONPATH=str(__import__("pathlib").Path(__file__).parents[2]))
    assert ended.error["message"] == (
        "The captured variable 'tool' cannot be loaded in this rank: OSError: the licence server is not here."
    )
