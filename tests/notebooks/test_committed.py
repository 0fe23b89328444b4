"""The committed notebooks: with their outputs or without, and with no path of the machine that wrote them."""

import json
import re

import pytest

from tests.notebooks.book import NOTEBOOKS

#: Those whose outputs are part of what a reader is shown.
SHOWN = {"quickstart", "ranks", "when_training_hangs"}


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.rglob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_has_outputs_where_it_should_and_no_path_of_its_machine(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/home/|/root/|/work/|/tmp/", text)
    assert any(cell.get("outputs") for cell in json.loads(text)["cells"]) == (path.stem in SHOWN)


def test_the_job_file_is_one_of_batch_ai_alone():
    job, script = (NOTEBOOKS / "batch-ai" / name for name in ("job.json", "train_digits.py"))
    assert json.loads(job.read_text())["$schema"].endswith("/2018-05-01/job.json")
    for text in (job.read_text(), script.read_text()):
        assert "distdl" not in text
        assert not re.search(r"/home/|/root/|/work/|/tmp/", text)
