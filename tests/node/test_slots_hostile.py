"""Files, folders and locks of another user of the machine, and how the queue treats them.

A process of a second real user creates them.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import resource
import signal
import stat
import struct
import time
import zlib

import pytest

from distdl_jupyter.clusters import base
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, create_id
from distdl_jupyter.jobs import job_queue
from distdl_jupyter.node import processes, slots
from distdl_jupyter.node.slots import QueueSlot, ResourceRequest
from distdl_jupyter.supervisor import launch
from distdl_jupyter.supervisor.recorder import EventRecorder
from tests.conftest import wait_for
from tests.node.test_slots import GPUS, USER, gpus, own_files, process, takes

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as a second user")


@pytest.fixture
def attacker(folder, tmp_path):
    """Return ``attacker(function)``: another user's process runs it, and keeps its locks until the test ends."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)
    for path in (tmp_path, *list(tmp_path.parents)[:3]):
        path.chmod(path.stat().st_mode | 0o011)
    children = []

    def run(function, user=USER):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(read)
                hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
                result = function()
                if callable(result):
                    os.write(write, b"null")
                    result()
                os.write(write, json.dumps(result).encode())
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        children.append(child)
        os.close(write)
        with os.fdopen(read, "rb") as answer:
            text = os.read(answer.fileno(), 65_536)
        assert text, "the attack itself has failed"
        return json.loads(text)

    yield run
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def fields(**changes):
    """Return what a file says of a job that waits for nothing, with ``changes``."""
    return {
        "boot": slots._get_boot_id(),
        "job": "20260101-000000-theirs",
        "name": "theirs",
        "number": 0,
        "count": 0,
        "among": [],
        "amounts": {},
        "priority": 0.0,
        "blocked": False,
        "state": "waits",
        "gpus": [],
    } | changes


def record(sequence=b"0000000000000001", **changes):
    """Return a file's record, whatever it says and however long it is."""
    return packed(sequence + b" " + json.dumps(fields(**changes)).encode())


def packed(content):
    """Return a record of any content, with its checksum."""
    return (b"%08x %s" % (zlib.crc32(content), content)).ljust(4096)


def plant(base, files, user=USER):
    """Write and lock files in the user's own folder; return how many."""
    own = base / f"distdl-queue-{user}"
    own.mkdir(exist_ok=True)
    own.chmod(0o755)
    for name, content in files.items():
        fd = os.open(os.path.join(os.fsencode(own), os.fsencode(name)), os.O_RDWR | os.O_CREAT, 0o644)
        os.fchmod(fd, 0o644)
        os.pwrite(fd, content, 0)
        slots._lock(fd, fcntl.F_WRLCK)
    return len(files)


def names():
    return [entry.name for entry in slots.read_entries()]


# what is held -----------------------------------------------------------------------------------


@pytest.mark.fault("queue", "two users of one machine never hold the same GPU, and see each other wait")
def test_two_users_never_get_the_same_gpu(attacker, slot):
    mine = slot("mine")
    assert mine.acquire(gpus(2)) is None

    def theirs():
        other = QueueSlot("theirs", "theirs")
        first = other.acquire(gpus(1)) is None
        waits = QueueSlot("waits", "waits").acquire(gpus(1))
        return [first, list(other.gpus), waits.missing, [(one.name, one.user, one.is_own) for one in waits.entries]]

    first, got, lacks, seen = attacker(theirs)
    assert (first, got, lacks) == (True, ["MIG-GPU-c/1/0"], ["gpus"])
    assert ["mine", "root", False] in seen
    assert ["theirs", f"user {USER}", True] in seen


def test_another_user_can_neither_delete_nor_change_nor_hide_what_is_held(attacker, slot, folder):
    mine = slot("mine")
    mine.acquire(gpus(3))
    [file], own = own_files(folder), folder / f"distdl-queue-{os.getuid()}"
    assert stat.S_IMODE(own.stat().st_mode) == 0o755

    def attack():
        refused = 0
        for deed in (
            file.unlink,
            lambda: file.write_text("x"),
            lambda: own.rename(folder / "away"),
            lambda: (own / "new").write_text("x"),
        ):
            try:
                deed()
            except PermissionError:
                refused += 1
        return [refused, QueueSlot("theirs", "theirs").acquire(gpus(1)) is None]

    assert attacker(attack) == [4, False]


# names ------------------------------------------------------------------------------------------


@pytest.mark.fault("queue", "names that another user gives to folders and files raise no error and stop no job")
@pytest.mark.parametrize(
    "name",
    [
        b"distdl-queue-\xc2\xb2",
        "distdl-queue-٣".encode(),
        b"distdl-queue-",
        b"distdl-queue--1",
        b"distdl-queue-99999999999999999999999",
        b"distdl-queue-4711.\xc2\xb2",
        b"distdl-queue-4711\n",
        b"distdl-queue-\xff\xfe",
        b"distdl-queue-0x1f",
        b"distdl-queue-0004711",
        b"distdl-queue-1e3",
        b"distdl-queue-" + b"9" * 240,
    ],
)
def test_no_name_of_a_folder_is_an_error(attacker, slot, folder, name):
    attacker(lambda: os.mkdir(os.fsencode(folder) + b"/" + name))
    mine = slot("mine")
    assert takes(mine, gpus(1)) == ("GPU-a",)
    assert names() == ["mine"]
    assert len(job_queue.queue().holding) == 1


def test_no_name_or_kind_of_a_file_is_an_error(attacker, slot, folder):
    strange = ["²", "\udcff\udcfe", "a\nb", "-rf", "x" * 255, "..x", "\x1b[2J", "٣", "a b"]

    def attack():
        plant(folder, {name: record() * 2 for name in strange})
        own = folder / f"distdl-queue-{USER}"
        os.mkfifo(own / "fifo")
        (own / "link").symlink_to("/etc/passwd")
        (own / "loop").symlink_to(own / "loop")
        (own / "folder").mkdir()
        (own / "secret").write_text("x")
        (own / "secret").chmod(0)
        plant(folder, {"sparse": record() * 2})
        os.truncate(own / "sparse", 1 << 40)

    attacker(attack)
    assert takes(slot("mine"), gpus(1)) == ("GPU-a",)
    assert sorted(names()) == ["mine", "theirs"]


def test_a_folder_that_is_not_of_the_user_in_its_name_does_not_count(attacker, slot, folder):
    (folder / "distdl-queue-0").rmdir()
    attacker(lambda: plant(folder, {"x": record(state="holds", count=3, among=GPUS, gpus=[0, 1, 2]) * 2}, user=0))
    mine = slot("mine")
    assert takes(mine, gpus(3)) == GPUS
    assert names() == ["mine"]
    assert mine._path.parent.name.startswith("distdl-queue-0.1")


# another's file in the name of one's own job ------------------------------------------------------


@pytest.mark.fault("queue", "a file that another user writes in a job's name neither starts it nor keeps it waiting")
@pytest.mark.parametrize(
    "changes",
    [
        {"count": 0},
        {"count": 1, "among": ["GPU-a"]},
        {"count": 1, "among": ["GPU-of-nobody"]},
        {"blocked": True},
        {"state": "holds", "count": 1, "among": ["GPU-of-nobody"], "gpus": [0]},
        {"state": "claims", "count": 1, "among": ["GPU-a"], "gpus": [0]},
        {"priority": 1e6, "count": 0},
    ],
)
def test_a_file_with_the_id_of_a_waiting_job_answers_for_nobody(attacker, slot, folder, changes):
    holder, mine = slot("holder"), slot("mine")
    assert takes(holder, gpus(3)) == GPUS
    need = ResourceRequest(1, GPUS[1:])
    assert mine.acquire(need) is not None
    file = own_files(folder)[1].name
    planted = record(job=mine._fields["job"], name="mine", **changes) * 2
    attacker(lambda: plant(folder, {file: planted, "other": planted}))
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        turn = mine.acquire(need)
        assert turn is not None
        assert turn.missing == ("gpus",)
        time.sleep(0.05)
    view = base.build_view(turn, need, {}, 0)
    assert "20260101-000000-holder"[-5:] in view.why
    holder.release()
    assert takes(mine, need) == (GPUS[1],)


# locks --------------------------------------------------------------------------------------------


SHARED = struct.pack(slots._LOCK_FORMAT, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)


def lock_all(base, locked):
    """Take every kind of shared lock on all files of other users that can be opened."""
    for own in base.glob("distdl-queue-0*"):
        for name in os.listdir(own):
            if name in locked:
                continue
            try:
                fd = os.open(own / name, os.O_RDONLY)
            except OSError:
                continue
            locked[name] = fd
            for lock in (
                lambda fd=fd: fcntl.fcntl(fd, slots._SET_LOCK, SHARED),
                lambda fd=fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
                lambda fd=fd: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB),
                lambda fd=fd: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK),
            ):
                try:
                    lock()
                except OSError:
                    continue


@pytest.mark.fault("queue", "another user who locks each new file at once keeps no job from the queue")
def test_no_lock_of_another_user_keeps_a_job_from_the_queue(attacker, slot, folder):
    def attack():
        def forever():
            locked = {}
            while True:
                lock_all(folder, locked)

        return forever

    attacker(attack)
    for number in range(100):
        mine = slot(f"mine{number}")
        turn = mine.acquire(gpus(0), blocked=True)
        assert turn.problem == ""
        assert takes(mine, gpus(1)) == ("GPU-a",)
        mine.release()


@pytest.mark.fault("queue", "another user's lock on the file of a killed job keeps nothing held")
def test_what_a_killed_job_held_is_free_although_another_user_has_locked_its_file(attacker, slot, folder):
    holder = process("holder", 3, 600)
    try:
        assert holder.stdout.readline().startswith("GPU-a")

        def attack():
            lock_all(folder, {})
            (file,) = folder.glob("distdl-queue-0*/*")
            fd = os.open(file, os.O_RDONLY)

            def lock():
                fcntl.fcntl(fd, slots._SET_LOCK + 1, SHARED)  # waits for the end of the holder
                (folder / "locked").touch()
                signal.pause()

            return lock

        attacker(attack)
        assert len(slots.read_entries()) == 1
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    wait_for((folder / "locked").exists, 10, "the lock of the other user")
    assert takes(slot("mine"), gpus(3)) == GPUS


# how much ---------------------------------------------------------------------------------------


def counted(monkeypatch):
    """Return a list that gets an item for each file that is opened or parsed."""
    opened = []
    read = slots._read_file

    def reads(directory, name, uid):
        if uid != os.getuid():
            opened.append(name)
        return read(directory, name, uid)

    monkeypatch.setattr(slots, "_read_file", reads)
    return opened


@pytest.mark.fault("queue", "2,000 locked files of another user: few are read, and a job starts as on an idle machine")
@pytest.mark.parametrize(
    "content",
    [
        b"00000000 broken".ljust(8192),
        record(count=128, among=[f"GPU-{'x' * 22}{number}" for number in range(96)], amounts={"cores": 1.0})[:4096] * 2,
        b"[" * 8192,
        packed(b"0000000000000001 " + b"[" * 4000) * 2,
        record(number=10**3000) * 2,
    ],
    ids=["broken", "large", "nested", "nested with its checksum", "number"],
)
def test_many_files_of_another_user_take_little_time(attacker, slot, folder, content, monkeypatch):
    assert attacker(lambda: plant(folder, {f"f{number}": content for number in range(2_000)})) == 2_000
    opened = counted(monkeypatch)
    began = time.process_time()
    slots.read_entries()
    seconds = time.process_time() - began
    assert 0 < len(opened) <= slots._MAX_FILES
    assert seconds < 0.1
    assert takes(slot("mine"), ResourceRequest(1, GPUS, {"cores": 1.0}), priority=1) == ("GPU-a",)
    queue = job_queue.queue()
    assert len(repr(queue)) < 200_000


@pytest.mark.fault(
    "queue", "in a folder that only root can write, no user can slow the queue with folders of their own"
)
def test_an_administrator_can_keep_all_other_folders_out(attacker, slot, folder):
    folder.chmod(0o755)
    for user in (USER, USER + 1):
        (folder / f"distdl-queue-{user}").mkdir()
        os.chown(folder / f"distdl-queue-{user}", user, user)

    def attack():
        denied = 0
        for name in (f"distdl-queue-{USER + 2}", f"distdl-queue-{USER}.ff", "x"):
            try:
                os.mkdir(folder / name)
            except PermissionError:
                denied += 1
        return denied

    def start():
        theirs = QueueSlot("20260101-000000-theirs", "theirs")
        return [theirs.acquire(ResourceRequest(1, GPUS)) is None, *theirs.gpus]

    assert attacker(attack) == 3
    assert attacker(start, USER + 1) == [True, "GPU-a"]
    assert names() == ["theirs"]
    assert takes(slot("mine"), gpus(1)) == ("GPU-b",)


@pytest.mark.fault("queue", "with 100,000 folders of another user, every job is found and the queue is read in 100 ms")
def test_any_number_of_folders_of_another_user_is_read_in_100_ms(attacker, slot, folder):
    def attack():
        for number in range(100_000, 150_000):
            os.mkdir(folder / f"distdl-queue-{number}")
            os.mkdir(folder / f"distdl-queue-{USER}.{number:x}")

    attacker(attack)
    attacker(lambda: plant(folder, {"x": record(name="other") * 2}, user=50_000 + USER), 50_000 + USER)
    mine = slot("mine")
    assert takes(mine, gpus(1)) == ("GPU-a",)
    began = time.process_time()
    assert sorted(names()) == ["mine", "other"]
    assert time.process_time() - began < 0.1


def test_where_other_users_processes_cannot_be_seen_all_folders_are_listed(attacker, slot, folder, monkeypatch):
    monkeypatch.setattr(processes, "_FIRST_PID_NAMESPACE", 1)
    assert processes.find_users() is None
    attacker(lambda: [os.mkdir(folder / f"distdl-queue-{number}") for number in range(10_000, 15_000)] and None)
    attacker(lambda: plant(folder, {"x": record(name="other") * 2}, user=50_000), 50_000)
    assert names() == ["other"]


@pytest.mark.parametrize("others", [0, 5_000])
def test_names_of_ones_own_folder_that_another_user_has_taken(attacker, slot, folder, others):
    (folder / "distdl-queue-0").rmdir()

    def attack():
        for number in range(others):
            os.mkdir(folder / f"x{number}")
        for ending in ["", *(f".{number}" for number in range(1, 9))]:
            os.makedirs(folder / f"distdl-queue-0{ending}" / "x")

    attacker(attack)
    mine = slot("mine")
    assert takes(mine, gpus(1)) == ("GPU-a",)
    assert mine._path.parent.name == "distdl-queue-0.9"
    mine.release()
    (folder / "distdl-queue-0.9").rmdir()
    attacker(lambda: os.makedirs(folder / "distdl-queue-0.9" / "x"))
    problem = slot("second").acquire(gpus(1)).problem
    assert f"user {USER} owns the folders" in problem
    assert "distdl-queue-0*" in problem


def test_one_users_files_take_nothing_from_what_is_read_of_another(attacker, folder):
    attacker(lambda: plant(folder, {f"f{number}": record() * 2 for number in range(400)}))
    attacker(lambda: plant(folder, {"x": record(name="other") * 2}, user=USER + 1), USER + 1)
    assert names().count("other") == 1
    assert names().count("theirs") <= slots._MAX_FILES


def test_a_user_writes_no_more_files_than_others_read(slot, monkeypatch):
    monkeypatch.setattr(slots, "_MAX_JOBS", 2)
    first, second, third = slot("first"), slot("second"), slot("third")
    takes(first, gpus(1))
    takes(second, gpus(1))
    assert third.acquire(gpus(1)).problem.startswith("You already have 2 jobs in the queue")
    first.release()
    takes(third, gpus(1))


@pytest.mark.fault("queue", "1,900 changing entries of another user: few and small events of a waiting job")
def test_events_of_a_waiting_job_are_few_and_small(attacker, slot, folder, distdl_home, monkeypatch):
    fake = {
        f"f{number}": record(
            name=f"{number}" + "ü" * 400, state="holds", count=1, among=[f"GPU-{number}", "GPU-a"], gpus=[0, 1],
            amounts={"cores": 1.0},
        ) * 2
        for number in range(1_900)
    }  # fmt: skip
    attacker(lambda: plant(folder, fake))
    mine = slot("mine")
    turn = mine.acquire(ResourceRequest(1, GPUS[:1], {"cores": 1.0}))
    view = base.build_view(turn, ResourceRequest(1, GPUS[:1], {"cores": 1.0}), {}, 0)
    store = JobStore()
    spec = JobSpec(id=create_id(), name="mine", created=time.time())
    made = store.prepare(spec.id)
    made.spec_file.write_text(spec.dumps())
    lock = JobLock.acquire(made.lock)
    made = store.publish(made)
    recorder = EventRecorder(made, spec)
    try:
        wait = launch.QueueRecorder(recorder)
        now = [time.monotonic()]
        monkeypatch.setattr(launch.time, "monotonic", lambda: now[0])
        for number in range(1_000):
            now[0] += 1.1
            changed = dataclasses.replace(view, why=f"{view.why}{number}")
            wait.record(changed, ())
        monkeypatch.undo()
    finally:
        recorder.close()
        lock.release()
    text = made.events.read_bytes()
    events = [json.loads(line) for line in text.splitlines()]
    assert 30 <= sum(event["type"] == "queue" for event in events) <= 100
    assert max(map(len, text.splitlines())) < 8_000
    assert len(text) < 600_000
    assert len(view.why) < 500


# what a file says -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 10**30}, {"number": float("inf")}, {"number": None}, {"number": -1}, {"number": 1.5},
        {"amounts": {"cores": -1}}, {"amounts": []}, {"amounts": {"cores": float("nan")}}, {"amounts": {"x": 1e308}},
        {"amounts": {"memory": 1e308}}, {"amounts": {"cores": True}}, {"name": "a\x1b[2Jb\x07\n"}, {"name": None},
        {"name": "\u202eabc"}, {"name": "x" * 3_000}, {"name": ["x"]}, {"job": {"a": 1}}, {"job": "\x1b]0;x\x07"},
        {"priority": float("nan")}, {"priority": 1e300}, {"priority": "1"}, {"among": None}, {"among": "GPU-a"},
        {"among": [["GPU-a"]]}, {"count": -3}, {"count": 10**400}, {"count": 1e300}, {"gpus": [5]}, {"gpus": [-1]},
        {"gpus": {"a": 1}}, {"gpus": ["GPU-a"]}, {"gpus": [1e308], "state": "holds"}, {"state": 7},
        {"state": ["holds"]}, {"blocked": 1}, {"boot": "another"}, {"boot": None}, {"sequence": b"x"},
        {"sequence": b"f" * 40}, {"extra": [[[]]] * 500},
    ],
    ids=str,
)  # fmt: skip
def test_no_content_of_a_file_is_an_error_or_keeps_others_from_starting(attacker, slot, folder, changes):
    attacker(lambda: plant(folder, {"one": record(**changes) * 2, "two": record(**changes) + b" " * 4096}))
    mine, third = slot("mine"), slot("third")
    assert takes(mine, gpus(2)) == ("GPU-a", "GPU-b")
    assert third.acquire(gpus(3)) is not None
    for entry in slots.read_entries():
        assert (entry.name + entry.job + entry.user).isprintable()
        assert len(entry.name) <= 60
        assert 0 <= entry.queued_at <= 1 << 53
        assert all(0 <= amount <= 1e18 for amount in entry.request.amounts.values())
        assert abs(entry.priority) <= 1e6
    queue = job_queue.queue()
    shown = repr(queue)
    assert queue._repr_html_()
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    json.dumps(dataclasses.asdict(base.build_view(third.acquire(gpus(3)), gpus(3), {}, 0)), allow_nan=False)


# turns ------------------------------------------------------------------------------------------


@pytest.mark.fault("queue", "another user's job that could start and never does keeps no job waiting for long")
def test_a_job_that_never_takes_its_turn_is_passed(attacker, slot, folder, monkeypatch):
    monkeypatch.setattr(slots, "_RESERVATION_SECONDS", 1.0)
    all_of_it = record(count=3, among=list(GPUS)) * 2
    attacker(lambda: plant(folder, {"one": all_of_it, "two": all_of_it}))
    mine = slot("mine")
    assert mine.acquire(gpus(1)).missing == ("order",)
    began = time.monotonic()
    assert takes(mine, gpus(1)) == ("GPU-a",)
    assert time.monotonic() - began > 0.9
    second = slot("second")
    second.acquire(gpus(1))


def test_new_files_in_the_place_of_those_that_never_start_win_no_time(attacker, slot, folder, monkeypatch):
    monkeypatch.setattr(slots, "_RESERVATION_SECONDS", 1.0)
    all_of_it = record(count=3, among=list(GPUS)) * 2

    def attack():
        plant(folder, {"f0": all_of_it})

        def forever():
            number = 0
            while True:
                time.sleep(0.2)
                number += 1
                plant(folder, {f"f{number}": all_of_it})
                (folder / f"distdl-queue-{USER}" / f"f{number - 1}").unlink()

        return forever

    attacker(attack)
    mine = slot("mine")
    wait_for(lambda: mine.acquire(gpus(1)) is None, 5, "the job's turn")
