"""Files to hosts that do not see this machine's folders, and back."""

import pytest

from distdl_jupyter.core.store import JobStore
from tests.hosts import needs_hosts

pytestmark = [needs_hosts, pytest.mark.timeout(280)]

SCRIPT = """
import os, pathlib, sys
import shards
outputs = pathlib.Path(os.environ["DISTDL_JOB_DIR"], "outputs")
(outputs / "deep" / "er").mkdir(parents=True, exist_ok=True)
(outputs / "deep" / "er" / os.environ["RANK"]).write_bytes(bytes(3_000_000))
(outputs / "run.sh").write_text("same everywhere")
os.symlink("/etc/passwd", outputs / f"link-{os.environ['RANK']}")
print("argument", sys.argv[1:], shards.names(), os.path.basename(sys.argv[0]))
"""


@pytest.fixture
def away(lab_of, tmp_path):
    """Two hosts: the second sees nothing of this test's folder, and keeps jobs in a folder that only it has."""
    return lab_of(2, private={"node-b": [str(tmp_path)]}, directory=str(tmp_path / "base"), patience_seconds=4.0)


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "shards.py").write_text("def names():\n    return ['one', 'two']\n")
    return folder


def test_a_script_and_the_modules_beside_it_travel(away, project):
    job = away.submit(None, entry_script="train.py", source_directory=str(project), script_params={"--epochs": 3},
                      distributed_backend="torch")  # fmt: skip
    away.until_state("completed", "failed")
    said = {event["rank"]: event["text"] for event in away.events("log") if event["rank"] is not None}
    for rank in (0, 1):
        assert said[rank] == "argument ['--epochs', '3'] ['one', 'two'] train.py"
    outputs = JobStore().find(job.id).outputs
    assert (outputs / "deep" / "er" / "0").stat().st_size == 3_000_000
    assert (outputs / "deep" / "er" / "1").stat().st_size == 3_000_000
    assert not (outputs / "node-b").exists(), "the same content twice is one file"
    notes = [event["text"] for event in away.events("note")]
    assert any(text.startswith("node-b: outputs/link-1 not copied back") for text in notes), notes
    assert job.state == "completed"


@pytest.mark.full
def test_what_did_not_come_back_is_said_with_its_place(away):
    def write():
        import os
        import time

        open(os.path.join(os.environ["DISTDL_JOB_DIR"], "outputs", "kept"), "w").close()
        print("written")
        time.sleep(600)

    job = away.submit(write, distributed_backend="torch")
    away.until_said("written", 1)
    away.hosts.cut("node-b")
    away.until_state("failed")
    assert "No response from node-b for" in job.view().reason
    notes = [event["text"] for event in away.events("note") if event["code"] == "not-collected"]
    assert len(notes) == 1
    assert "Cannot copy the values and files of 1 host back: node-b (" in notes[0]
    assert job.id in notes[0]
    away.until_nothing_is_left()
    away.hosts.join("node-b")
    folder = away.events("handle")[0]["data"]["hosts"][1]["folder"]
    assert away.hosts.ssh("node-b", "find", folder, "-type", "f").stdout.strip() == f"{folder}/outputs/kept"
