"""The folder that nodes share: code in it is run, so it is this user's alone; only what is the job's is removed."""

import errno
import os

import pytest

from distdl_jupyter.clusters.slurm.script import JobDirectory, SlurmOptions, make_unusable_error
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore


@pytest.fixture
def folder(tmp_path):
    store = JobStore(tmp_path / "home")
    return store.publish(store.prepare("20260101-000000-aaaaa"))


def write(directory, folder):
    directory.write(folder, JobSpec(id=folder.id, name="n"), SlurmOptions())


def test_a_directory_that_others_may_write_is_refused(tmp_path, folder):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(OSError, match=f"{shared} is writable by others") as caught:
        write(JobDirectory(folder, str(shared)), folder)
    assert "a folder that you own and that all nodes share" in make_unusable_error(caught.value, shared).hint
    assert list(shared.iterdir()) == []
    shared.chmod(0o1777)
    write(JobDirectory(folder, str(shared)), folder)
    assert (shared / folder.id / "slurm" / "start").exists()


def plant_link(job, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    job.symlink_to(tmp_path / "elsewhere")


def plant_folder(job, _tmp_path):
    job.mkdir()
    os.chown(job, 4321, 4321)


def plant_run(job, tmp_path):
    job.mkdir(mode=0o700)
    plant_link(job / "slurm", tmp_path)


@pytest.mark.fault("entry", "code of another user in a shared folder is not run")
@pytest.mark.parametrize(
    "plant",
    [plant_link, plant_run,
     pytest.param(plant_folder, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away"))],
)  # fmt: skip
def test_what_somebody_else_has_put_in_the_job_s_place_is_not_used(tmp_path, folder, plant):
    (tmp_path / "scratch").mkdir()
    directory = JobDirectory(folder, str(tmp_path / "scratch"))
    plant(directory.job, tmp_path)
    with pytest.raises(OSError, match=r"belongs to another user|is a link or a file, not a folder"):
        write(directory, folder)
    assert not list((tmp_path).glob("elsewhere/*"))
    directory.remove()
    assert os.path.lexists(directory.job)


def test_a_directory_that_is_the_folder_of_jobs_keeps_the_job(folder):
    directory = JobDirectory(folder, str(folder.path.parent))
    write(directory, folder)
    directory.remove()
    assert folder.spec_file.exists()
    assert not directory.run.exists()


def test_the_job_s_folder_goes_and_what_lies_beside_it_stays(tmp_path, folder):
    directory = JobDirectory(folder, str(tmp_path / "scratch"))
    write(directory, folder)
    (tmp_path / "scratch" / "mine").touch()
    directory.remove()
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["mine"]


def test_a_folder_that_a_node_still_uses_stays_without_an_error(tmp_path, folder, monkeypatch):
    directory = JobDirectory(folder, str(tmp_path / "scratch"))
    write(directory, folder)

    def refuse(path, **_more):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)

    monkeypatch.setattr(os, "rmdir", refuse)
    directory.remove()
    assert directory.job.exists()
    assert not (directory.run / "start").exists()
