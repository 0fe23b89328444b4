"""Secrets that a supervisor knows are masked in all that it writes: also those of a script's arguments."""

import json

import pytest

from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.supervisor import recorder
from distdl_jupyter.worker.secret_patterns import MASK

SECRET = "gd8Vx2pQm41"


def redactor(folder, *shown):
    spec = JobSpec(id="20261121-024912-k3f9x", name="x", kind="script", script_arguments=shown)
    return recorder.build_redactor(JobFolder(folder), spec, {})


@pytest.mark.parametrize("true", [["--token", SECRET], [f"--token={SECRET}", "x"]])
def test_an_argument_that_is_shown_masked_is_masked_everywhere(tmp_path, true):
    (tmp_path / "payload.json").write_text(json.dumps({"arguments": true}))
    shown = [word.replace(SECRET, MASK) for word in true]
    assert redactor(tmp_path, *shown).mask_text(f"logging in with {SECRET}") == f"logging in with {MASK}"


@pytest.mark.parametrize("payload", ["", "[]", '{"arguments": 3}', "{}"])
def test_arguments_that_cannot_be_read_end_nothing(tmp_path, payload):
    (tmp_path / "payload.json").write_text(payload)
    assert redactor(tmp_path, "--token", MASK).mask_text("plain words") == "plain words"
