"""What a rank prepares for a script that was written for another system."""

import os

from distdl_jupyter.worker import execute


def test_without_a_layout_nothing_changes():
    assert execute.lay({}, ("$HOME", "-x")) == ("$HOME", "-x")


def test_variables_folders_and_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISTDL_JOB_DIR", str(tmp_path / "job"))
    for name in ("ROOT_OF_TEST", "OUT_OF_TEST"):
        monkeypatch.setenv(name, "")
    told = {
        "variables": [
            ["ROOT_OF_TEST", "$DISTDL_JOB_DIR/mounts"],
            ["OUT_OF_TEST", "$ROOT_OF_TEST/out"],
        ],
        "folders": ["$OUT_OF_TEST/Models"],
    }
    arguments = ("--data=$ROOT_OF_TEST/nfs/train", "${OUT_OF_TEST}/Models", "$NO_SUCH_VARIABLE")
    for _rank in range(2):  # every rank of a node does the same in the same folder
        filled = execute.lay(told, arguments)
    assert filled == (
        f"--data={tmp_path}/job/mounts/nfs/train",
        f"{tmp_path}/job/mounts/out/Models",
        "$NO_SUCH_VARIABLE",
    )
    assert (tmp_path / "job/mounts/out/Models").is_dir()
    assert os.environ["OUT_OF_TEST"] == f"{tmp_path}/job/mounts/out"
