"""A disk that is full, read-only or gone while a job runs: a clear state, training goes on, nothing is corrupted."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import distdl_jupyter
from distdl_jupyter.api.submit_process import submit_source
from distdl_jupyter.core import logfile
from distdl_jupyter.core.errors import DiskRefused, JobFailed, JobNotFound
from distdl_jupyter.core.events import State
from distdl_jupyter.core.store import JobStore
from tests.conftest import until_gone, wait_for
from tests.faults import disks, jobs
from tests.processes import distdl
from tests.selection import few_or_all

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("alone")]


@pytest.fixture
def disk(distdl_home):
    """The data directory on a disk of 4 MB."""
    disks.mount(distdl_home, "size=4m", "mode=700")
    yield distdl_home
    disks.unmount(distdl_home)


#: Reports and prints a step every ``PAUSE`` seconds until a file appears. ``SEEN`` holds the step outside of the log.
TRAIN = """
import os, pathlib, time
from distdl_jupyter import log
rank, step = os.environ["DISTDL_RANK"], 0
pathlib.Path(f"{SEEN}-{rank}").write_text("0")
while not pathlib.Path(START).exists():
    time.sleep(0.01)
while not pathlib.Path(UNTIL).exists():
    log(step=step, loss=1 / (step + 1))
    print(f"rank {rank} step {step} " + "x" * SIZE)
    pathlib.Path(f"{SEEN}-{rank}").write_text(str(step))
    step += 1
    time.sleep(PAUSE)
step
"""


def cell(code, **options):
    return submit_source(code, options=options)


class Training:
    """A real job of two processes, and what it did without asking its log."""

    def __init__(self, tmp_path, size=0, pause=0.02, start=True):
        self._start, self._stop, self._seen = (tmp_path / name for name in ("start", "stop", "seen"))
        files = {"START": str(self._start), "UNTIL": str(self._stop), "SEEN": str(self._seen)}
        variables = "\n".join(f"{name} = {value!r}" for name, value in {**files, "SIZE": size, "PAUSE": pause}.items())
        self.job = cell(variables + TRAIN, process_count_per_node=2, distributed_backend="torch")
        wait_for(lambda: self.step == 0, what="ranks that are ready")
        if start:
            self.start()

    def start(self):
        self._start.touch()
        wait_for(lambda: self.step > 5, what="training")

    @property
    def step(self):
        return min(self._step(rank) for rank in (0, 1))

    def _step(self, rank):
        with contextlib.suppress(OSError, ValueError):
            return int(Path(f"{self._seen}-{rank}").read_text())
        return -1

    def goes_on(self, steps=20):
        begin = self.step
        wait_for(lambda: self.step > begin + steps, what="more steps")

    def end(self):
        self._stop.touch()


def notes(job):
    return {note["code"]: note["text"] for note in job.view().notes}


def every_line_is_whole(job):
    for line in job.folder.events.read_bytes().splitlines() + job.folder.log.read_bytes().splitlines():
        assert isinstance(json.loads(line), dict)


@pytest.fixture
def failing_disk(distdl_home, tmp_path):
    """The data directory on a file system that can break down."""
    disks.mount_image(distdl_home, tmp_path / "disk.img")
    yield distdl_home
    disks.unmount(distdl_home)


@pytest.mark.full
@pytest.mark.fault("disk", "a file system fails and becomes read-only: training continues, and nothing waits forever")
def test_a_disk_that_becomes_read_only_while_a_job_writes(failing_disk, tmp_path):
    training = Training(tmp_path)
    job = training.job
    disks.break_down(failing_disk)
    training.goes_on()
    assert job.state is State.RUNNING
    with pytest.raises(DiskRefused, match="Read-only"):
        cell("1")
    with pytest.raises(DiskRefused, match="Read-only"):
        job.cancel()
    training.goes_on()
    # Its supervisor would wait ten minutes for the disk; without it nobody can write an end any more.
    jobs.found_supervisor_of(job).kill()
    assert job.wait(30).state is State.LOST
    assert "Read-only file system" in job.view().reason
    assert distdl_jupyter.attach(job.id).view().metrics["loss"].step > 5
    assert not until_gone(job.id)


@pytest.mark.fault(
    "disk", "training continues; the shortage and its end are reported; after a short one nothing is lost"
)
def test_a_disk_that_is_full_for_a_while(disk, tmp_path, injected):
    training = Training(tmp_path)
    job = training.job
    for _ in range(2):
        disks.fill(disk)
        said = wait_for(lambda: notes(job).get("disk-full"), what="the note that the disk is full")
        assert "No space left on device" in said
        assert "Free space there." in said
        training.goes_on()
        disks.free(disk)
        wait_for(lambda: notes(job).get("disk-writable"), what="the note that there is room")
        injected()
    training.end()
    counts = job.results(120)
    assert job.view().state is State.COMPLETED
    every_line_is_whole(job)
    frame = job.metrics()
    for rank, count in enumerate(counts):
        assert list(frame[frame["rank"] == rank]["step"]) == list(range(count))
        lines = [line.text for line in job.logs(rank)]
        assert lines == [f"rank {rank} step {step} " for step in range(count)]
    assert "Nothing was lost" in notes(job)["disk-writable"]


@pytest.mark.fault("disk", "the end is written to reserved space, with a list of what could not be saved")
def test_a_disk_that_is_full_to_the_end(disk, tmp_path):
    training = Training(tmp_path)
    job = training.job
    disks.fill(disk)
    training.goes_on(50)
    training.end()
    job.wait(120)
    assert disks.is_full(disk) or (disk / "somebody-elses-file").exists()
    view = job.view()
    assert view.state is State.COMPLETED
    assert {rank.code for rank in view.ranks} == {0}
    every_line_is_whole(job)
    assert "disk-full" in notes(job)


@pytest.mark.fault(
    "disk", "more output than there is space for: lines of the log are skipped and counted, the end is written"
)
def test_a_flood_on_a_full_disk(disk, tmp_path):
    training = Training(tmp_path, size=200_000)
    job = training.job
    wait_for(lambda: notes(job).get("disk-full"), what="the note that the disk is full")
    training.goes_on(60)
    training.end()
    job.wait(120)
    every_line_is_whole(job)
    assert job.view().state is State.COMPLETED
    assert "of the log" in notes(job)["disk-writable"]


@pytest.mark.fault("disk", "three jobs at full speed on a full disk: each trains to its end, each log stays readable")
def test_three_jobs_at_full_speed_on_a_full_disk(disk, tmp_path):
    trainings = []
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        trainings.append(Training(tmp_path / name, size=2_000, pause=0.0, start=False))
    for training in trainings:
        training.start()
    disks.fill(disk)
    for training in trainings:
        wait_for(lambda job=training.job: "disk-full" in notes(job), what="the note that the disk is full")
        training.goes_on(100)
    assert set(distdl_jupyter.jobs()) == {training.job for training in trainings}
    for training in trainings:
        training.end()
    for training in trainings:
        assert training.job.wait(120).state is State.COMPLETED, training.job.view().reason
        every_line_is_whole(training.job)


@pytest.mark.fault("disk", "a job can be canceled even if nothing can be written")
def test_cancel_on_a_full_disk(disk, tmp_path):
    training = Training(tmp_path)
    disks.fill(disk)
    training.goes_on()
    training.job.cancel()
    training.job.wait(120)
    assert training.job.view().state is State.CANCELED
    assert until_gone(training.job.id) == []


BIG = "bytes(8_000_000)"
SAVE = "import distdl_jupyter\n(distdl_jupyter.checkpoint_dir() / 'model.pt').write_bytes(bytes(8_000_000))"
SMALL = "40 + 2"


@pytest.mark.fault("disk", "the value is reported as missing, with the reason; no partial file is left")
def test_a_value_that_does_not_fit(disk):
    job = cell(BIG)
    job.wait(120)
    view = job.view()
    assert view.state is State.COMPLETED
    assert any("No space left" in note["text"] for note in view.notes), view.notes
    assert list(job.folder.results.iterdir()) == []


@pytest.mark.fault("disk", "if the training cannot save a file, it ends with its own error, never silently")
def test_a_checkpoint_that_does_not_fit(disk):
    job = cell(SAVE)
    with pytest.raises(JobFailed, match="No space left on device") as failed:
        job.result(120)
    assert failed.value.rank == 0


@pytest.mark.fault("disk", "a submit is rejected with the reason and a fix, and leaves nothing behind")
def test_a_submit_on_a_full_disk(disk, tmp_path):
    first = cell(SMALL)
    assert first.result(120) == 42
    disks.fill(disk)
    with pytest.raises(DiskRefused, match=r"No space left on device\. Free space on that disk"):
        cell(SMALL)
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    done = distdl("submit", script, code=None)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "No space left on device. Free space on that disk" in done.stderr
    with pytest.raises(DiskRefused):
        first.rerun()
    listed = distdl("ls", code=None)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert JobStore().list_ids() == [first.id]
    assert len(list(JobStore().jobs.iterdir())) == 1


@pytest.mark.full
@pytest.mark.fault("disk", "ended jobs can be read; a submit and a removal are rejected with the reason")
def test_a_read_only_home(disk, tmp_path):
    first = cell(SMALL)
    assert first.result(120) == 42
    until_gone(first.id)
    wait_for(lambda: subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=False).returncode == 0)
    with pytest.raises(DiskRefused, match=r"Read-only file system\. .*DISTDL_HOME"):
        cell(SMALL)
    for arguments, code in ((("ls",), 0), (("show", first.id), 0), (("logs", first.id), 0), (("rm", first.id), 2)):
        done = distdl(*arguments, code=code)
        assert "Traceback" not in done.stderr
    assert distdl_jupyter.attach(first.id).result() == 42


@pytest.mark.fault("disk", "another user's folder, a file at its path, no home at all: rejected with the reason")
@pytest.mark.parametrize("kind", ["file", "denied", "nowhere"])
def test_a_home_that_cannot_be(kind, tmp_path):
    home, script = tmp_path / "home", tmp_path / "train.py"
    script.write_text("print(1)")
    tmp_path.chmod(0o755)
    environment = {**os.environ, "DISTDL_HOME": str(home)}
    if kind == "file":
        home.write_text("")
    elif kind == "denied":
        home.mkdir(mode=0o700)
    else:
        elsewhere = ("DISTDL_HOME", "JUPYTER_DATA_DIR")
        environment = {k: v for k, v in environment.items() if k not in elsewhere} | {"HOME": "/proc/none"}
    first = ()
    if kind == "denied" and os.getuid() == 0:  # whom nobody denies anything
        os.chown(home, 65534, 65534)
        first = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")
    elif kind == "denied":
        home.chmod(0o000)
    submitted = distdl("submit", script, code=None, first=first, env=environment)
    assert submitted.returncode == 2, submitted
    assert " cannot be " in submitted.stderr
    assert "Traceback" not in submitted.stderr
    listed = distdl("ls", code=None, first=first, env=environment)
    assert listed.returncode == (2 if kind == "denied" else 0), listed
    assert "Traceback" not in listed.stderr


@pytest.mark.fault(
    "disk", "its processes end; waiting callers get an error, the server answers 404; other jobs and the list continue"
)
def test_a_job_folder_deleted_while_it_runs(server, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    training, other = Training(tmp_path / "one"), Training(tmp_path / "other")
    server.until(training.job.id, "running")
    assert training.job.view().state is State.RUNNING
    shutil.rmtree(training.job.folder.path, ignore_errors=True)
    with pytest.raises(JobNotFound, match="folder was deleted"):
        training.job.wait(60)
    for path in ("", "/result", "/log", "/outputs", "/metrics"):
        assert server.ask("GET", f"/jobs/{training.job.id}{path}").status_code == 404, path
    assert server.ask("POST", f"/jobs/{training.job.id}/cancel", json={}).status_code == 404
    assert until_gone(training.job.id, 60) == []
    assert len(server.get("/jobs")) == 1
    assert distdl_jupyter.jobs() == [other.job]
    assert not training.job.folder.path.exists()
    other.goes_on()
    other.end()
    other.job.results(60)


@pytest.mark.fault("disk", "the data directory is deleted: the jobs in it end, whoever waits is told, new jobs start")
def test_the_data_directory_deleted_while_jobs_run(distdl_home, tmp_path):
    trainings = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        trainings.append(Training(tmp_path / name))
    shutil.rmtree(distdl_home, ignore_errors=True)
    for training in trainings:
        with pytest.raises(JobNotFound):
            training.job.wait(60)
        assert until_gone(training.job.id, 60) == []
    assert distdl_jupyter.jobs() == []
    assert cell(SMALL).result(120) == 42


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
from distdl_jupyter.api.submit_process import submit_source
print(submit_source(sys.argv[1]).id)
"""
FLOOD = """
import os, time
for step in range(2000):
    print("x" * 1000)
while not os.path.exists(UNTIL):
    time.sleep(0.05)
"""


@pytest.mark.fault("disk", "a limit on the size of files ends the log, not the training; the job gets an end")
def test_files_that_may_not_grow(tmp_path):
    script, stop = tmp_path / "limited.py", tmp_path / "stop"
    script.write_text(LIMITED)
    command = [sys.executable, str(script), f"UNTIL = {str(stop)!r}{FLOOD}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    job = distdl_jupyter.attach(done.stdout.strip())
    wait_for(lambda: "disk-full" in notes(job), what="the note that nothing more can be written")
    assert not job.view().state.ended
    stop.touch()
    job.wait(60)
    assert job.view().state is State.COMPLETED
    assert "lines of the log were lost" in notes(job)["disk-writable"]
    every_line_is_whole(job)
    assert max(file.stat().st_size for file in (job.folder.events, job.folder.log)) <= 300_000
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def write_many(writer, text):
    for number in range(200):
        writer.write("log", rank=0, stream="out", text=f"full {number} {text}")


@pytest.mark.fault("disk", "a half-written line is never glued to the next one")
def test_no_line_is_ever_glued_to_a_torn_one(disk, injected):
    place, log = disk / "events.jsonl", disk / "log.jsonl"
    for size in range(1, 40):
        place.unlink(missing_ok=True)
        log.unlink(missing_ok=True)
        writer = logfile.EventWriter(place)
        (disk / "somebody-elses-file").unlink(missing_ok=True)
        for number in range(3):
            writer.write("log", rank=0, stream="out", text=f"before {number}" + "x" * (size * 97))
        disks.fill(disk)
        written = writer.log.size
        with pytest.raises(OSError, match="No space left"):
            write_many(writer, "y" * (size * 97))
        assert log.stat().st_size == writer.log.size >= written
        disks.free(disk)
        writer.write("log", rank=0, stream="out", text="after")
        writer.close()
        found, end = logfile.read(log)
        assert end == log.stat().st_size
        assert len(found) == len(log.read_bytes().splitlines())
        assert found[-1]["text"] == "after"
        injected()


@pytest.mark.full
@pytest.mark.fault("disk", "the server answers what it can, rejects the rest with 507 and a fix, and keeps running")
def test_a_server_whose_disk_is_full(disk, server, tmp_path, injected):
    id_ = server.submit(SMALL)
    server.until_ended(id_)
    for _ in range(few_or_all(1, 3)):
        until_gone(id_)
        disks.fill(disk)
        assert len(server.get("/jobs")) == 1
        assert server.get(f"/jobs/{id_}/result")["ok"] is True
        for path, body in (("/jobs", {"code": SMALL}), (f"/jobs/{id_}/rerun", None)):
            refused = server.ask("POST", path, json=body)
            assert refused.status_code == 507, refused.text
            assert refused.json()["type"] == "DiskRefused"
            assert "Free space on that disk, or" in refused.json()["hint"]
        disks.free(disk)
        again = server.post(f"/jobs/{id_}/rerun")["id"]
        server.until_ended(again)
        server.delete(f"/jobs/{again}")
        injected()
    training = Training(tmp_path)
    disks.fill(disk)
    server.post(f"/jobs/{training.job.id}/cancel", {}, status=202)
    assert server.until_ended(training.job.id)["state"] == "canceled"
