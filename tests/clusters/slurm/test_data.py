"""What nodes ask while data is brought to them is answered in a file of each node; no Slurm is needed."""

import json
from types import SimpleNamespace

from distdl_jupyter.clusters.slurm.data import Listener
from distdl_jupyter.core.errors import DataUnavailable

QUESTION = {"type": "renew", "number": 3, "source": "train", "host": "node-a"}


def answered(folder, heard):
    """Return what a node finds after its question, None where nothing was written."""
    (folder / "node-0.says").write_text(json.dumps(QUESTION) + "\n")
    Listener(folder, 1, SimpleNamespace(heard=heard))._look(0)
    file = folder / "node-0.answer"
    return json.loads(file.read_text()) if file.exists() else None


def test_a_question_is_answered_with_its_number(tmp_path):
    signature = {"type": "sas", "source": "train", "sas": "x"}
    assert answered(tmp_path, lambda *_: signature) == {"number": 3, "answer": signature}
    assert (tmp_path / "node-0.answer").stat().st_mode & 0o777 == 0o600


def test_a_refusal_is_an_answer(tmp_path):
    def refuse(*_):
        raise DataUnavailable("No role.", hint="Ask for one.")

    refused = {"type": "sas", "source": "train", "refused": "No role.", "remedy": "Ask for one."}
    assert answered(tmp_path, refuse) == {"number": 3, "answer": refused}


def test_what_has_no_answer_gets_none(tmp_path):
    assert answered(tmp_path, lambda *_: None) is None
