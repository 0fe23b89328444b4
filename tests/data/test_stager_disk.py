"""The disk of a node: what fits and what does not, what stays and what goes, and several programs at once."""

import errno
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from distdl_jupyter.data.stager import DataStager
from distdl_jupyter.node.data_cache import Cache, LinkTree, PartialFile, StagingFailed, compute_mtime, remove_links
from tests.data.stage import noise, reading, source

MB = 2**20


@pytest.fixture
def disk(tmp_path):
    """Mount a disk of so many bytes at the stager's base; None where this user may not mount."""
    place = tmp_path / "base"
    mounted = []

    def mount(size):
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True)
        if done.returncode:
            pytest.skip("only root may mount a small disk; the limit of a file's size stands in for it below")
        mounted.append(place)
        return place

    yield mount
    for one in mounted:
        subprocess.run(["umount", str(one)], check=True)


@pytest.mark.full
def test_a_disk_that_is_too_small_is_seen_before_anything_is_fetched(stage, large, disk):
    disk(8 * MB)
    run = stage.run(source(large), sas=reading(large))
    last = run.failed()
    assert "17.8 MB needed, 8.3 MB free" in last["text"]
    assert "shard" in last["remedy"]
    assert run.asked == 0


def test_a_file_that_may_not_grow_is_no_file(stage, large):
    limited = ["sh", "-c", 'ulimit -f 10000; exec "$@"', "sh"]
    last = stage.run(source(large), sas=reading(large), before=limited).failed()
    assert last["text"] == f"The disk of {stage.base} is full."
    assert "Downloaded files are kept." in last["remedy"]
    assert stage.left("") == stage.left(".part") == []
    last = stage.run(source(large), sas=reading(large)).staged()
    assert stage.files(last["paths"]["DISTDL_DATA_TRAIN"]) == {"large": large.data}


def test_a_disk_too_full_lets_go_of_what_no_job_uses(stage, container, disk):
    disk(10 * MB)
    for name in "abc":
        container.put(name, noise(4 * MB, ord(name)))
        told = source(container, name)
        last = stage.run(told, sas=reading(container), job=f"job-{name}", limit_bytes=99 * MB).staged()
        assert last["bytes"] == 4 * MB
        remove_links(f"job-{name}", str(stage.base))
    assert len(stage.left("")) == 2


@pytest.mark.full
@pytest.mark.fault(
    "disk", "downloads continue while others fill the disk, as long as the cache has data that no job uses"
)
def test_a_disk_that_fills_up_meanwhile_lets_go_of_what_no_job_uses(stage, container, disk, blob_proxy):
    place = disk(30 * MB)
    container.put("old", noise(8 * MB, 1), md5=False)
    stage.run(source(container, "old"), sas=reading(container), job="old", limit_bytes=99 * MB).staged()
    remove_links("old", str(stage.base))
    container.put("large", noise(17 * MB), md5=False)
    slow = blob_proxy.add("/large", rate=8 * MB, times=1000)
    told = source(container, "large", address=blob_proxy.endpoint)
    run = stage.run(told, sas=reading(container), workers=1, limit_bytes=99 * MB)
    run.until(lambda message: message["type"] == "progress" and message["done"] > 5 * MB)
    (place / "filler").write_bytes(bytes(8 * MB))
    slow.times = 0
    last = run.staged()
    assert stage.files(last["paths"]["DISTDL_DATA_TRAIN"]) == {"large": noise(17 * MB)}
    assert len(stage.left("")) == 1


def unused(cache, name, size, used=0):
    """A whole file of the cache that no job uses."""
    path = Path(cache.get_path("https://h/c", name, "1"))
    path.write_bytes(b"x" * size)
    os.utime(path, (used, compute_mtime(str(path))))
    return path


def test_a_quota_that_is_used_up_lets_go_of_what_no_job_uses(tmp_path, monkeypatch):
    """``statvfs`` tells no quota, so it is met while a file is written."""
    stager = DataStager(None, job="job", sources=[], base=str(tmp_path))
    cache = Cache(str(tmp_path))
    cache.prepare()
    old, write = unused(cache, "old", 5000), os.pwrite

    def within_quota(*given):
        if old.exists():
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return write(*given)

    monkeypatch.setattr(os, "pwrite", within_quota)
    made = PartialFile(cache.get_path("https://h/c", "new", "1"), lambda: None)
    stager._write(made, 0, memoryview(b"1234"))
    assert Path(f"{made.path}.part").read_bytes() == b"1234"
    old.write_bytes(b"not ours any more")
    with pytest.raises(OSError, match="quota") as caught:
        stager._write(made, 0, memoryview(b"1234"))
    assert stager._to_staging_failed(caught.value).text == f"Your disk quota for {tmp_path} is exhausted."
    made.close()


@pytest.mark.parametrize(("size", "most"), [(200_000, 10**11), (10**12, 20_000)], ids=["small disk", "large disk"])
def test_without_a_limit_the_cache_holds_a_tenth_of_its_disk_up_to_a_maximum(tmp_path, monkeypatch, size, most):
    monkeypatch.setattr("distdl_jupyter.node.data_cache._MAX_BYTES", most)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=size, f_bavail=size, f_frsize=1))
    cache = Cache(str(tmp_path))
    cache.prepare()
    files = [unused(cache, str(number), 8000, used=number) for number in range(3)]
    assert cache.make_room(0, None) == 0
    assert all(path.exists() for path in files)  # nothing comes, so nothing goes
    for limit in (None, 10**9):
        cache.make_room(1, limit)
        assert [path.exists() for path in files] == [False, True, True]


def test_what_a_job_uses_stays_even_over_the_limit(stage, container):
    for name in "ab":
        container.put(name, noise(3 * MB, ord(name)))
    first = stage.run(source(container, "a"), sas=reading(container), job="first").staged()
    run = stage.run(source(container, "b"), sas=reading(container), job="second", limit_bytes=4 * MB)
    run.staged()
    assert [(note["code"], note["level"]) for note in run.of("note")] == [("cache-limit", "warning")]
    assert stage.files(first["paths"]["DISTDL_DATA_TRAIN"])["a"] == noise(3 * MB, ord("a"))
    assert len(stage.left("")) == 2


def test_two_programs_that_want_the_same_fetch_it_once(stage, container, blob_proxy):
    stored = {"large": noise(17 * MB), **{f"small/{n}": noise(1000, n) for n in range(20)}}
    for name, data in stored.items():
        container.put(name, data, md5=False)
    blob_proxy.add("", rate=16 * MB, times=10_000)
    told = source(container, address=blob_proxy.endpoint)
    runs = [stage.run(told, sas=reading(container), job=f"job-{n}") for n in range(2)]
    ends = [run.staged() for run in runs]
    assert blob_proxy.sent() == sum(last["bytes"] for last in ends) == sum(map(len, stored.values()))
    for last in ends:
        assert stage.files(last["paths"]["DISTDL_DATA_TRAIN"]) == stored
        assert last["bytes"] + last["cached"] == sum(map(len, stored.values()))
    assert "elsewhere" in [note["code"] for run in runs for note in run.of("note")]


def test_who_waits_goes_on_when_the_other_one_dies(stage, large, blob_proxy):
    slow = blob_proxy.add("", rate=4 * MB, times=10_000)
    told = source(large, address=blob_proxy.endpoint)
    first = stage.run(told, sas=reading(large), job="first", workers=1)
    first.until(lambda message: message["type"] == "progress" and message["done"] > 5 * MB)
    second = stage.run(told, sas=reading(large), job="second")
    second.until(lambda message: message.get("code") == "elsewhere")
    slow.times = 0
    first.kill()
    last = second.staged()
    assert stage.files(last["paths"]["DISTDL_DATA_TRAIN"]) == {"large": large.data}
    assert last["bytes"] == len(large.data)


def test_a_disk_without_hard_links_is_refused_with_the_remedy(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    cache = Cache(str(tmp_path))
    cache.prepare()
    with pytest.raises(StagingFailed, match="file system without hard links") as failed:
        LinkTree(cache, "job", 0).add("train", "one", cache.get_path("https://h/c", "one", "1"))
    assert failed.value.remedy == "Choose another folder for staged data."


def test_a_part_that_nobody_fetches_any_more_is_removed(tmp_path):
    cache = Cache(str(tmp_path))
    cache.prepare()
    parts = {name: PartialFile(cache.get_path("https://h/c", name, "1"), lambda: None) for name in ("left", "locked")}
    for part in parts.values():
        part.write(0, memoryview(noise(4 * MB)))
    os.close(parts["left"].fd)
    cache.make_room(0, 0)
    assert [name for name, part in parts.items() if Path(f"{part.path}.part").exists()] == ["locked"]
    parts["locked"].close()


@pytest.mark.fault("disk", "only files that the package created are removed from a folder that the user named")
def test_room_is_made_by_files_of_the_cache_only(tmp_path):
    """The folder is the user's own choice and may hold a ``blobs`` of theirs."""
    cache = Cache(str(tmp_path))
    cache.prepare()
    cached = Path(cache.get_path("https://h/c", "ours", "1"))
    mine = [
        tmp_path / "blobs" / "photos" / "holiday.jpg",
        tmp_path / "blobs" / cached.parent.name / "notes.part",
        cached.with_name("0" * 62),  # somebody has written to it, or made it
    ]
    for path in (cached, *mine):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 5000)
        os.utime(path, (0, 0))
    os.utime(cached, (0, compute_mtime(str(cached))))
    (tmp_path / "blobs" / "list.txt").write_text("x")
    cache.make_room(0, 0)
    assert not cached.exists()
    assert [path for path in mine if not path.exists()] == []


def test_a_file_that_others_could_have_put_there_is_fetched_anew(tmp_path):
    cache = Cache(str(tmp_path))
    cache.prepare()
    path = Path(cache.get_path("https://h/c", "data", "1"))
    path.write_bytes(b"x" * 5)
    os.utime(path, (0, compute_mtime(str(path))))
    assert cache.has(str(path), 5)
    path.chmod(0o666)
    assert not cache.has(str(path), 5)
    assert not path.exists()


def test_a_base_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StagingFailed, match=rf"Cannot store data in {tmp_path}/file \(File exists\)\."):
        Cache(str(tmp_path / "file")).prepare()
    (tmp_path / "blobs").symlink_to(tmp_path)
    with pytest.raises(StagingFailed, match="blobs is a link or a file, not a folder"):
        Cache(str(tmp_path)).prepare()
    tmp_path.chmod(0o777)
    with pytest.raises(StagingFailed, match="is writable by others"):
        Cache(str(tmp_path)).prepare()
