"""The queue of a machine assigns nothing twice, even if processes are killed or files are deleted."""

import itertools
import os
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest

from distdl_jupyter.node import processes, slots
from distdl_jupyter.node.slots import QueueSlot, ResourceRequest
from tests.conftest import wait_for
from tests.faults.disks import fill, free, mount, unmount

USER = 4711
GPUS = ("GPU-a", "GPU-b", "MIG-GPU-c/1/0")


def gpus(count, among=GPUS):
    return ResourceRequest(count, among)


def takes(one, need, **more):
    """Request the resources until the job has them."""
    wait_for(lambda: one.acquire(need, **more) is None, 10, "the job's turn")
    return one.gpus


def own_files(folder):
    return sorted(path for path in (folder / f"distdl-queue-{os.getuid()}").iterdir() if path.name[0] != ".")


def test_free_gpus_come_first_and_are_given_back(slot):
    first, second, third = slot("first"), slot("second"), slot("third")
    assert first.acquire(gpus(1)) is None
    assert second.acquire(gpus(2)) is None
    assert (first.gpus, second.gpus) == (("GPU-a",), ("GPU-b", "MIG-GPU-c/1/0"))
    turn = third.acquire(gpus(2))
    assert (turn.position, turn.waiting_count, turn.missing) == (1, 1, ("gpus",))
    jobs = {entry.key: entry.job for entry in turn.entries}
    assert [jobs[key] for key in turn.holders] == ["20260101-000000-first", "20260101-000000-second"]
    first.release()
    assert third.acquire(gpus(2)) is not None
    second.release()
    assert takes(third, gpus(2)) == ("GPU-a", "GPU-b")


def test_the_order_is_that_of_coming_and_another_priority_changes_it(slot):
    holder, early, late = slot("holder"), slot("early"), slot("late")
    holder.acquire(gpus(3))
    assert early.acquire(gpus(3)).position == 1
    assert late.acquire(gpus(1)).position == 2
    assert late.acquire(gpus(1), priority=1).position == 1
    time.sleep(0.6)
    turn = early.acquire(gpus(3))
    assert turn.position == 2
    holder.release()
    assert takes(late, gpus(1), priority=1) == ("GPU-a",)
    wait_for(lambda: early.acquire(gpus(3)).position == 1, 5, "the place to change")


def test_a_job_with_its_number_takes_its_place_again(slot):
    holder, first, again = slot("holder"), slot("first"), slot("again", queued_at=0)
    holder.acquire(gpus(3))
    first.acquire(gpus(1))
    assert again.acquire(gpus(1)).position == 1


CODE = """
import sys, time
from distdl_jupyter.node.slots import QueueSlot
from distdl_jupyter.node.slots import ResourceRequest
slot = QueueSlot(sys.argv[1], "it")
while slot.acquire(ResourceRequest(int(sys.argv[2]), ("GPU-a", "GPU-b", "MIG-GPU-c/1/0"))) is not None:
    time.sleep(0.05)
print(*slot.gpus, time.monotonic(), flush=True)
time.sleep(float(sys.argv[3]))
slot.release()
"""


def process(job, count, seconds):
    return subprocess.Popen(
        [sys.executable, "-c", CODE, job, str(count), str(seconds)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.fault("queue", "the resources of a killed supervisor are free within a second, and its file is removed")
def test_what_a_killed_process_held_is_free_and_its_place_too(slot, folder):
    holder, waiting = process("holder", 3, 600), None
    try:
        assert holder.stdout.readline().startswith("GPU-a")
        waiting = process("waiting", 3, 600)
        wait_for(lambda: len(slots.read_entries()) == 2, 30, "the second process")
        mine = slot("mine")
        assert mine.acquire(gpus(1)).position == 2
        waiting.send_signal(signal.SIGKILL)
        waiting.wait()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        began = time.monotonic()
        takes(mine, gpus(1))
        assert time.monotonic() - began < 5
        assert [path.name.partition(".")[0] for path in own_files(folder)] == ["20260101-000000-mine"]
    finally:
        for one in filter(None, (holder, waiting)):
            one.kill()
            one.wait()
            one.stdout.close()


def test_gpus_are_free_although_a_forked_process_has_inherited_the_lock(slot):
    held, other = slot("held"), slot("other")
    held.acquire(gpus(3))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    held.release()
    assert other.acquire(gpus(3)) is None
    os.close(write)
    os.close(read)
    os.waitpid(child, 0)


# what goes wrong --------------------------------------------------------------------------------


@pytest.mark.fault("queue", "the queue's folder is deleted: its files are restored before anything is assigned twice")
def test_files_and_folders_that_were_deleted_come_back_before_anything_is_given_twice(slot, folder, monkeypatch):
    holder, waiting = slot("holder"), slot("waiting")
    holder.acquire(gpus(3))
    waiting.acquire(gpus(1))
    monkeypatch.setattr(slots.processes, "read_environment", lambda _pid: {b"DISTDL_JOB_ID": b"holder"})
    shutil.rmtree(folder)
    until = time.monotonic() + 3.5
    while time.monotonic() < until:
        assert waiting.acquire(gpus(1)) is not None
        if time.monotonic() > until - 2.5:
            holder.ensure_file()
        time.sleep(0.05)
    assert waiting.acquire(gpus(1)).missing == ("gpus",)
    assert len(own_files(folder)) == 2
    holder.release()
    takes(waiting, gpus(1))


@pytest.mark.fault("queue", "a full disk keeps jobs waiting, with the reason, and they start when there is space")
def test_a_folder_on_a_full_disk_is_a_reason_to_wait(slot, folder):
    mount(folder, "size=64k,mode=1777")
    try:
        fill(folder)
        one = slot("one")
        assert (
            one.acquire(gpus(1)).problem
            == f"Cannot write to the queue in {slots.find_queue_directory()}: No space left on device."
        )
        free(folder)
        assert takes(one, gpus(1)) == ("GPU-a",)
    finally:
        unmount(folder)


def test_a_record_that_is_half_written_leaves_the_one_before(slot, folder):
    one = slot("one")
    one.acquire(gpus(2))
    [path] = own_files(folder)
    with path.open("r+b") as file:
        file.seek(4096 * ((one._sequence + 1) % 2))
        file.write(b"00000000 {" * 20)
    [entry] = slots.read_entries()
    assert (entry.state, entry.gpus) == ("holds", ("GPU-a", "GPU-b"))


@pytest.mark.fault("queue", "a job of before the machine's restart holds nothing, whatever its file says")
def test_a_file_of_another_boot_or_without_a_lock_says_nothing(slot, folder, monkeypatch):
    holder, other = slot("holder"), slot("other")
    with monkeypatch.context() as patched:
        patched.setattr(slots, "_get_boot_id", lambda: "an earlier one")
        holder._fields["boot"] = "an earlier one"
        holder.acquire(gpus(3))
    assert other.acquire(gpus(3)) is None
    left = own_files(folder)[0].with_name("20250101-000000-dead.0000")
    shutil.copy(own_files(folder)[0], left)
    assert [one.name for one in slots.read_entries()] == ["other"]
    assert not left.exists()


@pytest.mark.fault("queue", "a wall clock that jumps changes no order")
def test_a_clock_that_jumps_changes_no_order(slot, monkeypatch):
    holder, early, late = slot("holder"), slot("early"), slot("late")
    holder.acquire(gpus(3))
    early.acquire(gpus(3))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    turn = late.acquire(gpus(3))
    assert turn.position == 2
    monkeypatch.setattr(time, "time", lambda: now + 86_400)
    time.sleep(0.6)
    assert early.acquire(gpus(3)).position == 1


# claims ---------------------------------------------------------------------------------------


MEMORY = ResourceRequest(amounts={"memory": 40.0})


def claims_between(first, second, need, monkeypatch):
    """Let ``first`` claim and hold after ``second`` has claimed, before it reads; return what ``second`` is told."""
    write = QueueSlot._write

    def writes(one, changes):
        write(one, changes)
        if one is second and changes.get("state") == slots.CLAIMING:
            with monkeypatch.context() as patched:
                patched.setattr(QueueSlot, "_write", write)
                first.acquire(need, priority=1.0)

    monkeypatch.setattr(QueueSlot, "_write", writes)
    return second.acquire(need)


@pytest.mark.parametrize("need", [gpus(2), MEMORY])
@pytest.mark.parametrize("numbers", [(1, 2), (2, 1)])
def test_of_two_claims_at_once_at_most_one_holds(slot, need, numbers, monkeypatch):
    monkeypatch.setattr(slots, "measure_limits", lambda: {"memory": 79})
    first, second = slot("first", queued_at=numbers[0]), slot("second", queued_at=numbers[1])
    first.acquire(need, blocked=True)
    claims_between(first, second, need, monkeypatch)
    assert [first.has_resources, second.has_resources].count(True) <= 1
    wait_for(lambda: first.acquire(need) is None or second.acquire(need) is None, 10, "one of them to start")
    assert [first.has_resources, second.has_resources].count(True) == 1


def test_two_claims_at_once_both_hold_where_there_is_enough(slot, monkeypatch):
    monkeypatch.setattr(slots, "measure_limits", lambda: {"memory": 80})
    first, second = slot("first"), slot("second")
    first.acquire(MEMORY, blocked=True)
    assert claims_between(first, second, MEMORY, monkeypatch) is None
    takes(first, MEMORY)


@pytest.mark.full
@pytest.mark.fault("many", "two hundred jobs wait at once; each starts once, in order, and none holds what another has")
def test_two_hundred_jobs_at_once(tmp_path):
    """Four processes have fifty jobs each, which write down when they began and ended with which GPUs."""
    code = (
        "import sys, time\n"
        "from distdl_jupyter.node.slots import QueueSlot\n"
        "from distdl_jupyter.node.slots import ResourceRequest\n"
        "jobs = [QueueSlot(f'{sys.argv[1]}-{number}', 'n') for number in range(50)]\n"
        "running = {}\n"
        "while jobs or running:\n"
        "    for number, slot in enumerate(list(jobs)):\n"
        "        if slot.acquire(ResourceRequest(1 + len(slot._fields['job']) % 2, ('a', 'b', 'c', 'd'))) is None:\n"
        "            jobs.remove(slot); running[slot] = time.monotonic()\n"
        "    for slot, began in list(running.items()):\n"
        "        if time.monotonic() > began + 0.05:\n"
        "            print(began, time.monotonic(), *slot.gpus, flush=True)\n"
        "            slot.release(); del running[slot]\n"
        "    time.sleep(0.05)\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    lines = [line.split() for one in started for line in one.communicate(timeout=500)[0].splitlines()]
    assert len(lines) == 200
    for gpu in "abcd":
        spans = sorted((float(began), float(ended)) for began, ended, *held in lines if gpu in held)
        assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))


def test_a_place_among_many_is_found_in_a_file_of_the_system(monkeypatch, tmp_path):
    monkeypatch.delenv("DISTDL_QUEUE")
    base = slots.find_queue_directory()
    seen = base.stat()
    assert seen.st_uid == 0
    assert seen.st_mode & stat.S_ISVTX
    assert processes.identify_boot()
