"""A job's files are its user's alone, whatever the umask; what somebody else could have written is not opened."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from distdl_jupyter import jobs, permissions, sweep
from distdl_jupyter.core import space
from distdl_jupyter.core.errors import DistDLError, JobNotFound
from distdl_jupyter.core.events import State
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.space import SweepPlan
from distdl_jupyter.core.spec import Group, JobSpec
from distdl_jupyter.core.store import JobStore, create_id
from distdl_jupyter.jobs import client
from distdl_jupyter.jobs.rerun import StoredCode
from distdl_jupyter.node import run_dir
from distdl_jupyter.worker.payload import LoadError, Payload, extend_path, load
from tests.processes import executable

TIMEOUT = 240
#: What the user's own code makes is as open as the user wants; the folder around it is not.
USERS = ("outputs",)


def too_open(root):
    found = {}
    for path in [root, *root.rglob("*")]:
        seen = path.lstat()
        below = path.relative_to(root).parts
        if stat.S_ISLNK(seen.st_mode) or any(part in USERS for part in below[:-1]):
            continue
        if seen.st_mode & 0o077:
            found["/".join(below)] = oct(stat.S_IMODE(seen.st_mode))
    return found


SUBMIT = """
import os, sys
os.umask(0)
import distdl_jupyter
from distdl_jupyter.core.errors import JobFailed

def train(fails):
    import distdl_jupyter, os, pathlib
    print("hello")
    distdl_jupyter.log(loss=1.0)
    mask = os.umask(0); os.umask(mask)
    if fails:
        raise ValueError("on purpose")
    return oct(mask)

backend, count, fails = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "fails"
job = distdl_jupyter.submit(train, (fails,), process_count_per_node=count, distributed_backend=backend)
try:
    print(job.results(timeout=240))
except JobFailed as error:
    print(error)
"""


@pytest.mark.cold  # a template with another umask is of no use to other tests
@pytest.mark.parametrize(
    ("backend", "count", "fails"),
    [pytest.param("plain", 1, "", marks=pytest.mark.full), ("plain", 1, "fails"), ("horovod-mpi", 2, "")],
)
def test_no_file_of_a_job_is_open_to_others_whatever_the_umask(distdl_home, backend, count, fails):
    before = {path.name for path in Path("/tmp").glob("distdl-*")}
    done = subprocess.run(
        [sys.executable, "-c", SUBMIT, backend, str(count), fails],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("on purpose" if fails else "0o0") in done.stdout, "the user's code keeps the user's umask"
    assert too_open(distdl_home) == {}
    # Other tests make folders of other jobs meanwhile.
    own = {run_dir._build_prefix(job.name) for job in (distdl_home / "jobs").iterdir()}
    left = [path for path in Path("/tmp").glob("distdl-*") if path.name not in before and path.name[:16] in own]
    assert [path for path in left if too_open(path)] == []


@pytest.mark.parametrize(("mode", "who"), [(0o777, "everyone"), (0o775, "the group with gid")])
def test_a_data_directory_that_others_may_write_is_refused(distdl_home, mode, who):
    distdl_home.mkdir()
    distdl_home.chmod(mode)
    with pytest.raises(DistDLError, match=f"is writable by {who}") as caught:
        client.submit(print, ("never",))
    assert "chmod go-w" in caught.value.hint
    assert not (distdl_home / "jobs").exists() or not list((distdl_home / "jobs").iterdir())
    distdl_home.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_data_directory_of_another_user_is_refused():
    home = Path(tempfile.mkdtemp())
    try:
        os.chown(home, 4321, 4321)
        home.chmod(0o777 | stat.S_ISVTX)
        code = (
            "import os\nfrom pathlib import Path\nfrom distdl_jupyter.core.store import make_private\n"
            f"home = Path({str(home)!r})\nos.setgid(4322)\nos.setuid(4322)\nmake_private(home, home / 'jobs')"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert f"{home} belongs to another user (uid 4321)." in done.stderr
    finally:
        shutil.rmtree(home)


def finished():
    job = client.submit(_pair, process_count_per_node=1)
    assert job.wait(TIMEOUT).results() == [("a", 1)]
    return job


def _pair():
    return "a", 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_look_at_jobs_of_another_user_starts_nothing_that_they_name(distdl_home, tmp_path):
    """Whoever finds a job that nothing drives any more starts what goes on with it, by the Python in its spec."""
    program = executable(tmp_path / "program", f"touch {tmp_path}/started")
    plan = SweepPlan(parameters=space.check_space({"lr": [1, 2]}), trials=2, metric="loss")
    for kind in ("jobs", "sweeps"):
        store = JobStore(kind=kind)
        folder = store.publish(store.prepare(create_id()))
        group = Group(kind="sweep", id=folder.id, name="n", size=2, plan=plan) if kind == "sweeps" else None
        spec = JobSpec(id=folder.id, name="n", cluster="ssh", compute_target="ssh", python=str(program), group=group)
        folder.spec_file.write_text(spec.dumps())
        EventWriter(folder.events).write("state", state="queued", reason="")
        os.chown(folder.path, 4321, 4321)
    view, study = jobs()[0].view(), sweep(folder.id).study
    for state, why in ((view.state, view.reason), (study.state, study.problem)):
        assert state is State.LOST
        assert "belongs to another user (uid 4321)" in why
    time.sleep(0.5)
    assert not (tmp_path / "started").exists()
    assert not JobStore().get_folder(jobs()[0].id).summary.exists()


def test_a_value_that_others_may_have_written_is_not_opened(tmp_path):
    job = finished()
    value = job.folder.get_result_path(0)
    value.chmod(0o666)
    with pytest.raises(DistDLError, match="is writable by others"):
        job.results()
    value.chmod(0o600)
    assert job.results() == [("a", 1)]
    planted = tmp_path / "planted.pkl"
    planted.write_bytes(value.read_bytes())
    value.unlink()
    value.symlink_to(planted)
    with pytest.raises(DistDLError, match="is a symbolic link"):
        job.results()
    value.unlink()
    os.mkfifo(value, 0o600)
    with pytest.raises(DistDLError, match="is not a regular file"):
        job.results()
    if os.geteuid() == 0:
        value.unlink()
        value.write_bytes(planted.read_bytes())
        os.chown(value, 4321, 4321)
        with pytest.raises(DistDLError, match="belongs to another user"):
            job.results()


def test_a_rank_opens_no_payload_that_others_may_have_written(tmp_path):
    path = tmp_path / "payload.pkl"
    path.write_bytes(b"")
    path.chmod(0o602)
    with pytest.raises(LoadError, match=r"is writable by others \(run chmod go-w on it\)"):
        load(tmp_path, Payload("cell", names=("x",)), {})


def ended_job(home):
    """Return the folder of a job as it lies on the disk when it has ended."""
    folder = JobStore(home).prepare("20260101-000000-aaaaa")
    folder.spec_file.write_text(JobSpec(id=folder.id, name="n").dumps())
    for path in (folder.path / "payload.json", folder.payload, folder.code / "shards.py"):
        path.touch(mode=0o600)
    folder.checkpoints.mkdir()
    (folder.checkpoints / "last.pt").touch()
    return folder


def let_others_write(folder, name, mode):
    """Open a file of a job; modes say nothing in a folder that nobody else enters."""
    for closed in (folder.path, folder.code):
        closed.chmod(0o755)
    (folder.path / name).chmod(mode)


@pytest.mark.parametrize(
    ("name", "mode"), [("payload.pkl", 0o666), ("payload.pkl", None), ("code/shards.py", 0o666), ("code", 0o777),
                       ("spec.json", 0o666)],
)  # fmt: skip
def test_a_rerun_copies_nothing_that_somebody_else_could_have_put_there(tmp_path, name, mode):
    """``mode`` None stands for a symbolic link."""
    earlier, new = ended_job(tmp_path / "a"), ended_job(tmp_path / "b")
    code = StoredCode(earlier, earlier.read_spec())
    code.write(new)
    if mode is None:
        (earlier.path / name).rename(earlier.path / "elsewhere")
        (earlier.path / name).symlink_to(earlier.path / "elsewhere")
    else:
        let_others_write(earlier, name, mode)
    with pytest.raises(JobNotFound, match=r"is writable by others|is a symbolic link") as caught:
        code.write(new)
    assert str(caught.value).startswith(f"The code of job {earlier.id} cannot be read: ")
    assert "Submit it from its notebook again" in caught.value.hint


@pytest.mark.fault("entry", "a rerun and a resume copy no file of another user")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["payload.pkl", "code/shards.py", "code", "spec.json", "outputs/checkpoints/last.pt"])
def test_files_of_another_user_never_become_the_user_s_own(tmp_path, name):
    earlier, new = ended_job(tmp_path / "a"), ended_job(tmp_path / "b")
    os.chown(earlier.path / name, 4321, 4321)
    shutil.rmtree(new.checkpoints)
    with pytest.raises(JobNotFound, match="belongs to another user"):
        StoredCode(earlier, earlier.read_spec(), checkpoints="all").write(new)
    assert not new.checkpoints.exists()


def test_a_module_that_somebody_else_could_have_put_there_is_not_imported(tmp_path):
    folder = ended_job(tmp_path)
    path = sys.path[:]
    try:
        extend_path(folder.path, Payload("cell"))
        assert sys.path[0] == str(folder.code)
        sys.path[:] = path
        let_others_write(folder, "code/shards.py", 0o666)
        with pytest.raises(LoadError, match=r"modules cannot be imported: .*shards\.py is writable by others"):
            extend_path(folder.path, Payload("cell"))
        assert sys.path == path
    finally:
        sys.path[:] = path


def test_modes_in_a_folder_that_nobody_else_enters_say_nothing(tmp_path):
    """A rank writes its checkpoints as the user's umask says; the folder around them is closed."""
    folder = ended_job(tmp_path)
    (folder.code / "shards.py").chmod(0o666)
    folder.checkpoints.chmod(0o777)
    assert permissions.find_tree_refusal(folder.code) == ""
    assert permissions.find_tree_refusal(folder.checkpoints) == ""
    assert permissions.find_tree_refusal(folder.path / "none") == ""
