"""Values from other machines are unpickled here: only those of the ranks that ran there are taken, none without end."""

import io
import os
import tarfile
from pathlib import PurePath

import pytest

from distdl_jupyter.clusters.agents import staging
from distdl_jupyter.clusters.agents.agent import AgentNode
from distdl_jupyter.clusters.slurm.script import JobDirectory
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.node.channels import Inbox


@pytest.fixture
def folder(tmp_path):
    store = JobStore(tmp_path / "home")
    return store.publish(store.prepare("20260101-000000-aaaaa"))


@pytest.mark.parametrize("name", ["rank-1.pkl", "rank-3.pkl"])
def test_a_value_of_an_own_rank_is_taken(name):
    assert staging.explain_refusal(PurePath(name), staging.MAX_VALUE_BYTES, {1, 3}) == ""


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [
        ("rank-0.pkl", 1, "results/rank-0.pkl is the value of a rank that did not run on this host"),
        ("rank-01.pkl", 1, "results/rank-01.pkl is not the value of a rank"),
        ("deep/rank-1.pkl", 1, "results/deep/rank-1.pkl is not the value of a rank"),
        ("rank-1.pkl.bak", 1, "results/rank-1.pkl.bak is not the value of a rank"),
        (
            "rank-1.pkl",
            5 * 2**30,
            "results/rank-1.pkl has 5.4 GB, but the limit for a value is 4.3 GB; save it in outputs/ instead",
        ),
    ],
)
def test_any_other_file_stays_there(name, size, why):
    assert staging.explain_refusal(PurePath(name), size, {1, 3}) == why


class Host:
    """The connection to a host that answers every request for files with the same archive."""

    host = "node-b"

    def __init__(self, names):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = len(name)
                archive.addfile(info, io.BytesIO(name.encode()))
        self._content = buffer.getvalue()

    def open_stream(self):
        inbox = Inbox()
        inbox.feed(self._content)
        inbox.feed(b"")
        return 1, inbox

    def begin(self, *_, **__):
        return None

    def result(self, *_):
        return {}


@pytest.mark.fault("entry", "only values of its own ranks are accepted from a host")
def test_a_host_gives_the_values_of_its_own_ranks_only(folder):
    names = ["results/rank-1.pkl", "results/rank-0.pkl", "./results//planted.pkl", "results/.rank-1.pkl.5", "outputs/a"]
    node = AgentNode(Host(names), "/there", "", "", is_shared=False)
    job = staging.StagedJob(JobSpec(id=folder.id, name="n"), folder, None)
    notices = staging.copy_back(job, node, set(), {1})
    assert [path.name for path in folder.results.iterdir()] == ["rank-1.pkl"]
    assert (folder.outputs / "a").exists()
    assert [notice.code for notice in notices] == ["result-left-on-host"] * 2
    for notice, name in zip(notices, ["results/rank-0.pkl", "results/planted.pkl"], strict=True):
        assert f"node-b: {name}" in notice.text
        assert "it is in /there" in notice.text


def test_slurm_s_folder_gives_values_of_ranks_only(folder, tmp_path):
    site = JobDirectory(folder, str(tmp_path / "scratch"))
    for name in ("results", "outputs"):
        (site.job / name).mkdir(parents=True)
    for name in ("rank-0.pkl", "rank-2.pkl", "planted.pkl", "rank-1.pkl"):
        (site.job / "results" / name).write_text(name)
        (site.job / "results" / name).chmod(0o600)
    (site.job / "results" / "rank-1.pkl").chmod(0o666)
    (site.job / "outputs" / "a").touch()
    stayed = site.collect(folder, 2)
    assert [path.name for path in folder.results.iterdir()] == ["rank-0.pkl"]
    assert (folder.outputs / "a").exists()
    assert len(stayed) == 3
    assert "rank-1.pkl was not copied: is writable by others" in stayed[1]
    assert (
        "rank-2.pkl was not copied: results/rank-2.pkl is the value of a rank that did not run on this host."
        in stayed[2]
    )
    remove(site)
    assert (site.job / "results" / "rank-2.pkl").exists()


def remove(site):
    site.run.mkdir(mode=0o700)
    (site.run / "start").touch()
    site.remove()


def test_slurm_s_folder_replaces_what_an_earlier_attempt_has_left_and_writes_through_no_link(folder, tmp_path):
    (tmp_path / "mine").write_text("precious")
    folder.checkpoints.mkdir()
    (folder.checkpoints / "last.pt").symlink_to("step-1.pt")
    (folder.outputs / "model.pt").symlink_to(tmp_path / "mine")
    (folder.outputs / "log").write_text("old")
    site = JobDirectory(folder, str(tmp_path / "scratch"))
    for name in ("results", "outputs/checkpoints"):
        (site.job / name).mkdir(parents=True)
    (site.job / "outputs" / "checkpoints" / "last.pt").symlink_to("step-2.pt")
    (site.job / "outputs" / "model.pt").write_text("new")
    (site.job / "outputs" / "log").write_text("new")
    os.mkfifo(site.job / "outputs" / "pipe")
    (site.job / "results" / "rank-0.pkl").write_text("value")
    assert site.collect(folder, 1) == []
    assert (folder.checkpoints / "last.pt").readlink().name == "step-2.pt"
    assert [(folder.outputs / name).read_text() for name in ("model.pt", "log")] == ["new", "new"]
    assert (folder.get_result_path(0).read_text(), (tmp_path / "mine").read_text()) == ("value", "precious")
    remove(site)
    assert not site.job.exists()


def test_what_cannot_be_brought_from_slurm_s_folder_stays_there(folder, tmp_path):
    site = JobDirectory(folder, str(tmp_path / "scratch"))
    for name in ("results", "outputs"):
        (site.job / name).mkdir(parents=True)
    (site.job / "outputs" / "model.pt").write_text("new")
    folder.outputs.rmdir()
    folder.outputs.write_text("no folder")
    with pytest.raises(OSError, match="outputs"):
        site.collect(folder, 1)
    remove(site)
    assert (site.job / "outputs" / "model.pt").read_text() == "new"


def test_checkpoints_behind_a_link_are_not_the_job_s(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "last.pt").touch()
    folder.checkpoints.symlink_to(tmp_path / "mine")
    staging.remove_stale_checkpoints(folder.checkpoints, set())
    assert (tmp_path / "mine" / "last.pt").exists()
