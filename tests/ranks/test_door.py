"""Nobody but the user's own processes that know the job's folder gets a word in."""

import contextlib
import json
import os
import socket
import stat
import struct

import pytest

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.ranks import request
from distdl_jupyter.ranks.answer import RanksBusy
from distdl_jupyter.worker import rank_socket
from distdl_jupyter.worker.rank_socket import MessageConnection
from tests.conftest import wait_for


def note(session, rank=0):
    return json.loads((session.job.folder.path / "serving" / f"rank-{rank}.json").read_text())


def encode(header, body=b""):
    """A message as the pieces that are sent."""
    head = json.dumps(header).encode()
    return [struct.pack("!i", len(head)), head, struct.pack("!i", len(body)), body]


def connected(path):
    stranger = socket.socket(socket.AF_UNIX)
    stranger.settimeout(30)
    stranger.connect(path)
    return stranger


def hung_up(stranger):
    with stranger:
        try:
            return stranger.recv(4096) == b""
        except ConnectionResetError:
            return True


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_sockets_and_tokens_are_the_users_own(shared):
    said = note(shared)
    assert mode(said["socket"]) == 0o600
    assert mode(os.path.dirname(said["socket"])) == 0o700
    folder = shared.job.folder.path
    assert [mode(path) for path in (folder, folder / "serving", folder / "serving" / "rank-0.json")] == [
        0o700, 0o700, 0o600,
    ]  # fmt: skip
    assert note(shared, 1)["token"] != said["token"]


@pytest.mark.parametrize(
    "words",
    [
        encode({"do": "hello", "token": "wrong"}),
        encode({"do": "hello"}),
        encode({"do": "run", "id": 1, "code": "1", "filename": "x", "title": "x"}),
        encode({"do": "hello", "token": "wrong"}, b"a pickle"),
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"\xff" * 64],
        encode({"do": "hello", "token": "x" * 100_000}),
    ],
)
def test_who_does_not_know_the_token_is_hung_up_on(shared, words):
    stranger = connected(note(shared)["socket"])
    for piece in words:
        try:
            stranger.sendall(piece)
        except BrokenPipeError:
            break
    assert hung_up(stranger)
    assert dict(shared.run("rank").values) == {0: 0, 1: 1}


def test_nothing_is_opened_before_the_token(shared, tmp_path):
    """A pickle behind a wrong handshake is never loaded, whatever it would do."""
    trap = tmp_path / "opened"
    evil = b"cposix\nsystem\n(S'touch " + str(trap).encode() + b"'\ntR."
    asked = {"do": "push", "id": 1, "names": ["x"]}
    stranger = connected(note(shared)["socket"])
    stranger.sendall(b"".join([*encode({"do": "hello", "token": "wrong"}), *encode(asked, evil)]))
    assert hung_up(stranger)
    friend = MessageConnection(connected(note(shared)["socket"]))
    friend.send({"do": "hello", "token": note(shared)["token"]})
    friend.send(asked, evil)
    assert [friend.receive().header["say"] for _ in range(2)] == ["hello", "done"]
    friend.close()
    assert trap.exists(), "the trap itself works"


def test_cells_use_the_same_connections_until_one_is_broken(shared):
    shared.run("x = 1")
    connections = dict(shared._connections)
    shared.run("x = 2")
    assert shared.state() == "idle"
    assert shared._connections == connections
    connections[1].close()
    assert dict(shared.run("x + rank").values) == {0: 2, 1: 3}
    assert shared._connections[1] is not connections[1]
    other = type(shared)(shared.job)
    assert dict(other.run("rank").values) == dict(shared.run("rank").values) == {0: 0, 1: 1}


def test_a_rank_hangs_up_on_another_user_without_reading(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    one = rank_socket.Listener(tmp_path, 0)
    stranger, friend = connected(str(one.path)), connected(str(one.path))
    real = os.getuid()
    answers = iter([real + 1, real])
    monkeypatch.setattr(rank_socket, "read_uid", lambda _connection: next(answers))
    accepted = one.accept()
    assert hung_up(stranger)
    friend.close()
    accepted.close()
    one.socket.close()
    one.close()
    assert not one.path.exists()


def test_a_kernel_says_nothing_to_another_users_socket(shared, monkeypatch):
    monkeypatch.setattr(request, "read_uid", lambda _connection: os.getuid() + 1)
    with pytest.raises(DistDLError, match="Another process is listening at"):
        request.RankConnection(shared.job.folder, 0)


@pytest.mark.parametrize("wrong", [0o755, 0o770])
def test_a_rank_listens_in_a_private_folder_only(tmp_path, wrong):
    tmp_path.chmod(wrong)
    with pytest.raises(PermissionError, match="is not a private folder of its owner, so the"):
        rank_socket.Listener(tmp_path, 0)


def test_a_client_that_never_reads_makes_no_rank_wait(shared):
    said = note(shared)
    deaf = connected(said["socket"])
    deaf.sendall(b"".join(encode({"do": "hello", "token": said["token"]})))
    fields = {"code": "'y' * 50_000_000", "filename": "<deaf>", "title": "deaf", "label": "deaf"}
    deaf.sendall(b"".join(encode({"do": "run", "id": 5, **fields})))
    wait_for(lambda: shared.state() == "idle")

    def values():
        with contextlib.suppress(RanksBusy):  # until the cell has ended
            return dict(shared.run("rank").values)

    assert wait_for(values) == {0: 0, 1: 1}
    deaf.close()
