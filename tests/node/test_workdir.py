"""Folders of jobs and copies on a host: made for their user alone, refused where others could write."""

import os
import stat

import pytest

from distdl_jupyter.node import data_cache, files

DIGEST = "0123456789abcdef"
JOB = "20260101-000000-abcde"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def test_a_new_folder_is_its_owner_s_alone(tmp_path):
    before = os.umask(0)
    try:
        place = files.find_workdir(JOB, "", None, str(tmp_path / "base"))
    finally:
        os.umask(before)
    for path in (tmp_path / "base", place.folder.parent, place.folder, place.folder / "code"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_base_that_others_may_write_takes_no_job_and_no_copy(tmp_path):
    (tmp_path / "copies" / DIGEST).mkdir(parents=True)
    tmp_path.chmod(0o777)
    for use in (
        lambda: files.find_workdir(JOB, "", None, str(tmp_path)),
        lambda: data_cache.find_copy(DIGEST, str(tmp_path)),
        lambda: data_cache.FolderCopy(DIGEST, str(tmp_path)),
    ):
        with pytest.raises(PermissionError, match=r"is writable by others .*Use a folder that belongs to you"):
            use()
    assert not (tmp_path / "jobs").exists()


@needs_root
@pytest.mark.parametrize("below", ["", "jobs"])
def test_a_folder_of_another_user_takes_no_job(tmp_path, below):
    (tmp_path / "jobs").mkdir()
    os.chown(tmp_path / below, 4321, 4321)
    with pytest.raises(PermissionError, match=r"belongs to another user \(uid 4321\)"):
        files.find_workdir(JOB, "", None, str(tmp_path))


@needs_root
def test_a_copy_that_another_user_has_put_there_is_not_used(tmp_path):
    (tmp_path / "copies" / DIGEST).mkdir(parents=True)
    assert data_cache.find_copy(DIGEST, str(tmp_path)) == str(tmp_path / "copies" / DIGEST)
    os.chown(tmp_path / "copies" / DIGEST, 4321, 4321)
    with pytest.raises(PermissionError, match=r"belongs to another user \(uid 4321\)"):
        data_cache.find_copy(DIGEST, str(tmp_path))


def test_a_link_in_the_place_of_a_copy_is_not_followed(tmp_path):
    (tmp_path / "copies").mkdir()
    (tmp_path / "planted").mkdir()
    (tmp_path / "copies" / DIGEST).symlink_to(tmp_path / "planted")
    with pytest.raises(PermissionError, match="is a link or a file, not a folder"):
        data_cache.find_copy(DIGEST, str(tmp_path))


def test_only_folders_that_agents_have_made_are_a_job_s(tmp_path):
    own = files.find_workdir(JOB, "", None, str(tmp_path)).folder
    (tmp_path / "jobs" / f"{JOB}-2" / "thesis").mkdir(parents=True)
    (tmp_path / "elsewhere" / "code").mkdir(parents=True)
    (tmp_path / "jobs" / f"{JOB}-3").symlink_to(tmp_path / "elsewhere")
    assert list(files.find_copied_folders(JOB, str(tmp_path))) == [own]
