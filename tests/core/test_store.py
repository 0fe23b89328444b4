"""Job folders: private, complete when visible, found by id and never by path."""

import os
import stat
import time

import pytest

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.spec import Captured, CodeSource, JobSpec
from distdl_jupyter.core.store import JobFolder, JobStore, create_id, is_id


@pytest.fixture
def store(tmp_path):
    return JobStore(tmp_path)


def make(store, id_=None):
    spec = JobSpec(
        id=id_ or create_id(), name="digits", captured=(Captured(name="x", kind="int"),), source=CodeSource(code="1")
    )
    folder = store.prepare(spec.id)
    folder.spec_file.write_text(spec.dumps())
    return store.publish(folder), spec


def test_a_folder_is_private_and_visible_only_when_published(store):
    folder = store.prepare(create_id())
    assert store.list_ids() == []
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    published = store.publish(folder)
    assert store.list_ids() == [published.id]


def test_a_spec_survives_the_disk(store):
    folder, spec = make(store)
    assert folder.read_spec() == spec


def test_fields_of_a_newer_version_are_ignored():
    data = JobSpec(id="a", name="b").to_json()
    data["invented_later"] = 1
    data["source"]["invented_later"] = 2
    assert JobSpec.from_json(data) == JobSpec(id="a", name="b")


def test_jobs_are_listed_newest_first_and_found_by_their_last_part(store):
    make(store, "20260101-000000-aaaa")
    make(store, "20260102-000000-bbbb")
    assert store.list_ids() == ["20260102-000000-bbbb", "20260101-000000-aaaa"]
    assert store.find("aaaa").id == "20260101-000000-aaaa"


def test_an_id_sorts_after_all_jobs_even_if_the_clock_was_set_back(store):
    make(store, "20260101-235959-aaaa")
    assert store.advance_id("20260102-000000-bbbb") == "20260102-000000-bbbb"
    assert store.advance_id("20250101-000000-bbbb") == "20260102-000000-bbbb"
    (store.jobs / "99999999-999999-cccc").mkdir()
    assert store.advance_id("20250101-000000-bbbb") == "20250101-000000-bbbb", "the name of the folder is no date"


def test_an_ambiguous_last_part_names_the_candidates(store):
    make(store, "20260101-000000-aaaa")
    make(store, "20260102-000000-aaaa")
    with pytest.raises(JobNotFound, match="2 jobs have an id that ends in 'aaaa'"):
        store.find("aaaa")


@pytest.mark.parametrize("text", ["", "..", "../../etc/passwd", "/etc", "20260101-000000-aaaa/../x", ".new-x", "a\0b"])
def test_a_path_is_not_an_id(store, text):
    assert not is_id(text)
    with pytest.raises(JobNotFound):
        store.find(text)


def test_ids_are_unique_in_the_same_moment():
    assert len({create_id(1.0) for _ in range(200)}) > 190


def test_ids_sort_by_time_within_a_second():
    ids = [create_id(1_795_229_352 + milliseconds / 1000) for milliseconds in range(0, 1000, 5)]
    assert ids == sorted(ids)


def hidden(store, name, age=3600.0):
    folder = JobFolder(store.jobs / name)
    folder.path.mkdir(parents=True)
    (folder.path / "payload.pkl").write_bytes(b"x")
    folder.lock.touch()
    before = time.time() - age
    os.utime(folder.path, (before, before))
    return folder


@pytest.mark.parametrize("name", [".new-20260101-000000-aaaa", ".old-20260101-000000-aaaa"])
def test_a_hidden_folder_is_swept_when_nobody_holds_it(store, name):
    folder = hidden(store, name)
    lock = JobLock.acquire(folder.lock)
    store.clean_up()
    assert folder.path.is_dir(), "it is being made"
    lock.release()
    store.clean_up()
    assert not folder.path.exists()


def test_a_sweep_keeps_jobs_new_folders_and_foreign_folders(store):
    job, _ = make(store)
    fresh = hidden(store, ".new-20260101-000000-aaaa", age=1.0)
    foreign = [hidden(store, name) for name in (".cache", ".new-thesis", ".old-", ".old-20260101-000000-aaaa-2")]
    elsewhere = hidden(store, "elsewhere")
    (store.jobs / ".old-20260101-000000-bbbb").symlink_to(elsewhere.path)
    store.clean_up()
    assert all(folder.path.is_dir() for folder in (job, fresh, *foreign, elsewhere))
    assert elsewhere.payload.exists()


def test_a_prepared_folder_can_be_discarded_and_a_job_cannot(store):
    prepared = store.prepare(create_id())
    store.discard(prepared)
    assert not prepared.path.exists()
    job, _ = make(store)
    store.discard(job)
    assert store.list_ids() == [job.id]
