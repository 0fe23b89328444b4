"""What was captured is rebuilt as one notebook, or the name that cannot be is told with its reason."""

import pickle
import subprocess
import sys

import pytest

from distdl_jupyter.worker import payload
from tests.worker import ranks


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
