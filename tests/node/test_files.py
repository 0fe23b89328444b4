"""Files are sent as a tar; neither a hostile archive nor a hostile folder writes or reads outside of its folder."""

import io
import os
import tarfile
import threading
from pathlib import Path

import pytest

from distdl_jupyter.node import channels, files
from distdl_jupyter.node.files import TransferRefused
from tests.node.driver import resident, until


def packed(folder, *paths):
    pieces = []
    moved = files.pack(folder, paths, pieces.append)
    return b"".join(pieces), moved


def tar(*members):
    """Return a tar of (name, kind, link, content)."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, kind, link, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, len(content)
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    (path / "outputs" / "deep").mkdir(parents=True)
    (path / "payload.json").write_text("{}")
    (path / "outputs" / "model.pt").write_bytes(b"m" * 100_000)
    (path / "outputs" / "deep" / "run.sh").write_text("#!/bin/sh\n")
    (path / "outputs" / "deep" / "run.sh").chmod(0o755)
    (path / "outputs" / "ünï codé.txt").write_text("ü")
    return path


@pytest.fixture
def outside(tmp_path):
    path = tmp_path / "outside"
    path.mkdir()
    (path / "secret").write_text("secret")
    return path


def test_files_arrive_as_they_were(folder, tmp_path):
    content, moved = packed(folder, "payload.json", "outputs", "outputs/deep", "not/there")
    (target := tmp_path / "target").mkdir()
    assert files.unpack(target, io.BytesIO(content)) == moved._replace(skipped=())
    assert (moved.files, moved.bytes) == (4, 100_000 + len("#!/bin/sh\n") + len("{}") + len("ü".encode()))
    assert names(target) == names(folder)
    for name in names(folder):
        assert (target / name).read_bytes() == (folder / name).read_bytes()
        assert (target / name).stat().st_mtime == pytest.approx((folder / name).stat().st_mtime, abs=1e-5)
    assert os.access(target / "outputs/deep/run.sh", os.X_OK)
    assert (target / "outputs/model.pt").stat().st_mode & 0o777 == 0o600


def test_links_and_what_is_no_file_stay_behind(folder, outside, tmp_path):
    at = folder / "outputs"
    (at / "out.txt").symlink_to(outside / "secret")
    (at / "outdir").symlink_to(outside)
    (at / "broken").symlink_to("nowhere")
    (at / "same.pt").symlink_to("model.pt")
    (at / "round").symlink_to(".")
    os.mkfifo(at / "pipe")
    content, moved = packed(folder, "outputs")
    (target := tmp_path / "target").mkdir()
    files.unpack(target, io.BytesIO(content))
    assert set(moved.skipped) == {f"outputs/{name}" for name in ("out.txt", "outdir", "broken", "round", "pipe")}
    assert names(target) == sorted(f"outputs/{name}" for name in ("model.pt", "same.pt", "deep/run.sh", "ünï codé.txt"))
    assert not (target / "outputs/same.pt").is_symlink()
    assert b"secret" not in content.replace(b"payload", b"")


def test_a_folder_that_is_itself_a_link_out_is_not_read(folder, outside):
    (folder / "results").symlink_to(outside)
    content, moved = packed(folder, "results")
    assert (moved.files, moved.skipped) == (0, ("results",))
    assert b"secret" not in content


@pytest.mark.parametrize("path", ["../outside/secret", "/etc/passwd", "outputs/../../outside", "", ".", "a\0b"])
def test_paths_out_of_the_folder_are_refused(folder, path):
    with pytest.raises(TransferRefused, match="points outside the folder"):
        packed(folder, path)


def test_a_file_that_becomes_shorter_meanwhile_does_not_spoil_the_others(folder, tmp_path):
    path = folder / "outputs" / "a"
    path.write_bytes(b"a" * 3_000_000)
    pieces = []

    def write(content):
        if not pieces:  # its length is said, and with it how much must follow
            os.truncate(path, 10)
        pieces.append(content)

    files.pack(folder, ["outputs"], write)
    (target := tmp_path / "target").mkdir()
    files.unpack(target, io.BytesIO(b"".join(pieces)))
    assert (target / "outputs/a").stat().st_size == 3_000_000
    assert (target / "outputs/a").read_bytes().endswith(b"\0")
    assert (target / "outputs/model.pt").read_bytes() == (folder / "outputs/model.pt").read_bytes()


HOSTILE = [
    tar(("../escaped", tarfile.REGTYPE, "", b"x")),
    tar(("a/../../escaped", tarfile.REGTYPE, "", b"x")),
    tar(("/tmp/distdl-escaped", tarfile.REGTYPE, "", b"x")),
    tar(("link", tarfile.SYMTYPE, "/", b""), ("link/tmp/distdl-escaped", tarfile.REGTYPE, "", b"x")),
    tar(("link", tarfile.SYMTYPE, "outputs", b"")),
    tar(("hard", tarfile.LNKTYPE, "/etc/passwd", b"")),
    tar(("device", tarfile.CHRTYPE, "", b"")),
    tar(("pipe", tarfile.FIFOTYPE, "", b"")),
    tar((".", tarfile.REGTYPE, "", b"x")),
    tar(("outputs", tarfile.REGTYPE, "", b"x")),
    tar(("payload.json/x", tarfile.REGTYPE, "", b"x")),
    tar(("inner/escaped", tarfile.REGTYPE, "", b"x")),
    tar(("inner", tarfile.DIRTYPE, "", b"")),
]


@pytest.mark.parametrize("content", HOSTILE)
def test_a_hostile_archive_writes_nothing_outside(folder, outside, content):
    (folder / "inner").symlink_to(outside)
    with pytest.raises((TransferRefused, OSError)):
        files.unpack(folder, io.BytesIO(content))
    assert names(outside) == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert not (folder.parent / "escaped").exists()
    assert not Path("/tmp/distdl-escaped").exists()


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(folder, outside):
    (folder / "x").symlink_to(outside / "secret")
    files.unpack(folder, io.BytesIO(tar(("x", tarfile.REGTYPE, "", b"new"))))
    assert (outside / "secret").read_text() == "secret"
    assert (folder / "x").read_text() == "new"
    assert not (folder / "x").is_symlink()


@pytest.mark.parametrize("content", [b"no tar at all" * 100, b"\0" * 100])
def test_what_is_no_tar_is_said_to_be_none(folder, content):
    with pytest.raises((tarfile.TarError, TransferRefused)):
        files.unpack(folder, io.BytesIO(content))


# over the wire --------------------------------------------------------------------------------------


def put(agent, content, channel=77):
    number = agent.request("put", channel=channel)
    agent.say(channels.encode_data(channel, content) + channels.encode_data(channel, b""))
    return until(lambda: agent.reply(number), "put was not answered")


@pytest.mark.parametrize("content", [HOSTILE[0], b"no tar at all" * 1000, b""])
def test_a_bad_archive_is_answered_and_the_agent_goes_on(ready, content):
    assert put(ready, content)["error"].endswith(".")
    assert not (ready.folder.parent / "escaped").exists()
    fine = put(ready, tar(("code/x.py", tarfile.REGTYPE, "", b"x")))
    assert fine["files"] == 1
    assert (ready.folder / "code" / "x.py").read_text() == "x"


def test_much_is_put_without_being_held_in_memory(ready):
    size = 300_000_000
    head = tarfile.TarInfo("outputs/big")
    head.size = size
    number = ready.request("put", channel=9)

    def send():
        ready.say(channels.encode_data(9, head.tobuf()))
        for _ in range(size // 1_000_000):
            ready.say(channels.encode_data(9, b"\0" * 1_000_000))
        ready.say(channels.encode_data(9, b"\0" * 1024) + channels.encode_data(9, b""))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    most = 0
    while ready.reply(number) is None:
        most = max(most, resident(ready.process.pid))
    assert ready.reply(number)["bytes"] == size
    assert (ready.folder / "outputs" / "big").stat().st_size == size
    assert most < 100_000_000
    sender.join(30)


def test_a_get_that_nobody_reads_does_not_hold_up_the_agent(agent, tmp_path):
    one = agent(listen=False, timeout=3)
    number = one.request("prepare", job=one.job, folder="/none", proof=None, base=str(tmp_path))
    fd = one.process.stdout.fileno()
    until(lambda: one.hear(os.read(fd, 65_536)) or one.reply(number))
    target = tmp_path / "jobs" / one.job / "outputs" / "big"
    target.write_bytes(b"x" * 50_000_000)
    one.request("get", channel=1, paths=["outputs"])
    one.hang_up()
    assert one.wait(30) == 1
    assert target.exists(), "what a job has written stays when nobody collected it"
