"""Jobs on disk: ``$DISTDL_HOME/jobs/<id>/``, one private folder each (see ``JobFolder`` for its files).

Reading a job writes only caches. A folder becomes visible only when it is complete and its lock is held. Hidden
folders, ``.new-<id>`` and ``.old-<id>``, are being created or deleted; the next submit removes abandoned ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import shlex
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from distdl_jupyter import permissions
from distdl_jupyter.core import files, machine
from distdl_jupyter.core.errors import DiskRefused, JobNotFound
from distdl_jupyter.core.spec import UNKNOWN, JobEnvironment, JobSpec
from distdl_jupyter.worker import owned, report

#: Prefix of a hidden folder that is being created.
_NEW_PREFIX = ".new-"
#: Prefix of a hidden folder that is being deleted.
_OLD_PREFIX = ".old-"
#: Seconds after its last change during which a hidden folder may still be in use, although it is not locked yet.
_FRESH_SECONDS = 60.0
_STAMP_FORMAT = "%Y%m%d-%H%M%S"
_ID = re.compile(r"\d{8}-\d{6}-[a-z0-9]{4,12}")
#: In ASCII order, so that ids sort like the numbers that they encode.
_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
#: Held while an environment is written, because several threads add fields.
_environment_lock = threading.Lock()


def get_home() -> Path:
    """Return the package's data directory: ``$DISTDL_HOME``, or ``distdl`` in Jupyter's data directory."""
    if override := os.environ.get("DISTDL_HOME"):
        return Path(override).expanduser()
    from jupyter_core.paths import jupyter_data_dir

    return Path(jupyter_data_dir()) / "distdl"


def create_id(now: float | None = None) -> str:
    """Return a new id, sortable by time: ``20261121-024912-k3f9x``.

    The first two letters of the last part encode the fraction of the second, so ids also sort within a second.
    """
    now = time.time() if now is None else now
    fraction = divmod(int(now % 1 * len(_LETTERS) ** 2), len(_LETTERS))
    # Importing secrets loads OpenSSL, which takes longer than everything else here.
    letters = "".join(_LETTERS[number % len(_LETTERS)] for number in (*fraction, *os.urandom(3)))
    return f"{time.strftime(_STAMP_FORMAT, time.localtime(now))}-{letters}"


def is_id(text: str) -> bool:
    """Return whether ``text`` has the form of a job id, which also means that it is not a path."""
    return _ID.fullmatch(text) is not None


def _define_path(name: str) -> functools.cached_property[Path]:
    """Return an attribute for a path in the folder, computed on first use because listings create many folders."""

    def path(folder: JobFolder) -> Path:
        return folder.path / name

    return functools.cached_property(path)


class JobFolder:
    """The paths of one job (see also core.logfile, core.stacks, core.tracking). Creating it opens no files."""

    def __init__(self, path: Path) -> None:
        self.path, self.id = path, path.name

    spec_file = _define_path("spec.json")  # the spec as submitted, written once
    payload = _define_path("payload.pkl")  # the captured function or cell, unpickled by ranks only
    code = _define_path("code")  # modules from the notebook's folder
    events = _define_path("events.jsonl")  # the event log, from which all state is derived (core.events)
    log = _define_path("log.jsonl")  # the output of the ranks (core.logfile)
    lock = _define_path("lock")  # held by the only writer, and names it (core.files)
    control = _define_path("control")  # requests to the supervisor (supervisor.control)
    environment_file = _define_path("environment.json")  # packages, and the state of the code in git
    resources = _define_path("resources.jsonl")  # usage of ranks and machines, one sample a second (core.resources)
    steps = _define_path("steps.jsonl")  # the step times of the ranks (core.step_times)
    results = _define_path("results")  # rank-<n>.pkl, the return values
    outputs = _define_path("outputs")  # files saved by the training code
    checkpoints = _define_path("outputs/checkpoints")  # the files to resume from
    supervisor_log = _define_path("supervisor.log")  # output and errors of the supervisor itself
    reserve = _define_path("reserve")  # disk space that is freed when the disk is full (core.files)
    summary = _define_path("summary.json")  # the job's row in lists, written at its end (views.job_table)
    profiles = _define_path("profiles")  # recorded steps (core.profiles)
    pictures = _define_path("pictures")  # <n>.png or .jpeg, images displayed by the ranks

    def read_spec(self) -> JobSpec:
        """Read the job's spec. Raises JobNotFound if it is missing or invalid, and DiskRefused."""
        try:
            return JobSpec.from_json(json.loads(self.spec_file.read_bytes()))
        except FileNotFoundError:
            raise _make_unknown_error(self.id) from None
        except (OSError, ValueError) as error:
            message = f"Job {self.id} cannot be loaded: {self.spec_file.name} cannot be read ({error})."
            if remedy := machine.find_remedy(error):
                raise DiskRefused(message, code="job-spec-unreadable", hint=remedy) from error
            remedy = f"Use that version, or delete it: rm -r {shlex.quote(str(self.path))}"
            hint = f"Another version of distdl_jupyter may have written it. {remedy}"
            raise JobNotFound(message, code="job-spec-invalid", hint=hint) from error

    def read_supervisor(self) -> files.Holder:
        """Return the holder of the job's lock, with the time when lock or log were last written."""
        return files.read_holder(self.lock, self.events, self.log)

    @property
    def has_checkpoints(self) -> bool:
        """Whether the training saved a checkpoint from which it can be resumed."""
        return any(self.checkpoints.glob("*"))

    def get_result_path(self, rank: int) -> Path:
        """Return the path of the pickled return value of a rank."""
        return self.results / f"rank-{rank}.pkl"

    def read_environment(self) -> JobEnvironment:
        """Return rank 0's Python with its packages, and the git state of the code."""
        try:
            return msgspec.json.decode(self.environment_file.read_bytes(), type=JobEnvironment)
        except (OSError, ValueError):
            return UNKNOWN

    def add_environment(self, **fields: Any) -> None:
        """Add fields to the stored environment, from any thread of the job's supervisor. Raises OSError."""
        with _environment_lock:
            environment = dataclasses.replace(self.read_environment(), **fields)
            files.replace_file(self.environment_file, json.dumps(dataclasses.asdict(environment), indent=1))

    def get_picture_path(self, number: int, form: str) -> Path:
        """Return the path of a picture that ranks have displayed; ``form`` is png or jpeg."""
        return self.pictures / f"{number}.{form}"

    def read_picture(self, number: int) -> tuple[bytes, str] | None:
        """Return a stored picture and its form, or None if it is missing or not a PNG or a JPEG (such as markup)."""
        for form in ("png", "jpeg"):
            with contextlib.suppress(OSError), owned.open_own(self.get_picture_path(number, form)) as file:
                data = file.read(report.MAX_IMAGE_BYTES + 1)
                picture_format = report.detect_format(data)
                if picture_format is not None and picture_format.name == form and len(data) <= report.MAX_IMAGE_BYTES:
                    return data, form
        return None


def _make_unknown_error(id_: str) -> JobNotFound:
    hint = "List the jobs with %dist_jobs or 'distdl ls'."
    return JobNotFound(f"Unknown job {id_!r}.", code="job-unknown", hint=hint)


def make_private(root: Path, jobs: Path) -> None:
    """Create the data directory and its folder of jobs. Raises DiskRefused if others could write to them; OSError."""
    root.parent.mkdir(parents=True, exist_ok=True)
    for folder in (root, jobs):
        folder.mkdir(mode=0o700, exist_ok=True)
        status, uid = folder.stat(), os.geteuid()
        # Root may use folders of other users, such as container volumes: worker.owned does not unpickle their files.
        if uid != 0 and status.st_uid not in (uid, 0):
            message = f"{folder} belongs to another user (uid {status.st_uid})."
            hint = "Set DISTDL_HOME to a folder that belongs to you."
            raise DiskRefused(message, code="folder-of-another-user", hint=hint)
        if permissions.is_open(status):
            others = "everyone" if status.st_mode & 0o002 else f"the group with gid {status.st_gid}"
            message = f"{folder} is writable by {others}, so other users could inject code into your jobs."
            hint = f"Remove that permission: chmod go-w '{folder}'"
            raise DiskRefused(message, code="folder-writable-by-others", hint=hint)


class JobStore:
    """All jobs of one data directory, or with ``kind`` "sweeps" all of its sweeps, which have folders like jobs."""

    def __init__(self, root: Path | None = None, kind: str = "jobs") -> None:
        self.jobs = (root or get_home()) / kind

    def advance_id(self, id_: str) -> str:
        """Return the id, or one that sorts after all existing jobs if the clock was set back."""
        newest = next(iter(self.list_ids()), "")
        if id_ > newest:
            return id_
        try:
            moment = datetime.strptime(newest.rpartition("-")[0], _STAMP_FORMAT) + timedelta(seconds=1)
        except ValueError:  # someone has made a folder whose name is no date
            return id_
        return f"{moment:{_STAMP_FORMAT}}-{id_.rpartition('-')[2]}"

    def prepare(self, id_: str) -> JobFolder:
        """Create the hidden, private folder of a new job. Raises FileExistsError if the id exists."""
        make_private(self.jobs.parent, self.jobs)
        path = self.jobs / f"{_NEW_PREFIX}{id_}"
        path.mkdir(mode=0o700)
        if (self.jobs / id_).exists():
            path.rmdir()
            raise FileExistsError(path)
        for name in ("code", "results", "outputs"):
            (path / name).mkdir(mode=0o700)
        folder = JobFolder(path)
        for file in (folder.spec_file, folder.supervisor_log):
            file.touch(mode=0o600)  # created here, because later writers would apply their umask
        return folder

    def publish(self, folder: JobFolder) -> JobFolder:
        """Make a prepared folder visible under its id. Raises OSError."""
        return JobFolder(folder.path.rename(self.jobs / folder.path.name.removeprefix(_NEW_PREFIX)))

    def discard(self, folder: JobFolder, *, is_published: bool = False) -> None:
        """Delete the folder of a job that could not be started; a visible one only if ``is_published`` is set."""
        if is_published or folder.path.name.startswith(_NEW_PREFIX):
            _delete(folder.path)

    def clean_up(self) -> None:
        """Delete hidden folders whose process died while it created or removed them; it held the folder's lock."""
        for path in [*self.jobs.glob(f"{_NEW_PREFIX}*"), *self.jobs.glob(f"{_OLD_PREFIX}*")]:
            if not is_id(path.name[len(_NEW_PREFIX) :]) or not permissions.is_own(path):
                continue
            with contextlib.suppress(OSError):  # just deleted, or not accessible
                is_old, holder = time.time() - path.stat().st_mtime > _FRESH_SECONDS, files.read_holder(path / "lock")
                # A new folder of another host is left to the next submit there: its lock may not be visible here.
                if is_old and (holder.is_dead if path.name.startswith(_NEW_PREFIX) else not holder.is_held):
                    _delete(path)

    def list_ids(self) -> list[str]:
        """Return all ids, newest first."""
        try:
            names = [entry.name for entry in os.scandir(self.jobs)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise files.make_disk_error(error, self.jobs, "read") from error
        return sorted(filter(is_id, names), reverse=True)

    def list_folders(self) -> Iterator[JobFolder]:
        """Return the folders of all jobs, newest first."""
        return map(self.get_folder, self.list_ids())

    def get_folder(self, id_: str) -> JobFolder:
        """Return the folder of the job with this full id, which may not exist."""
        return JobFolder(self.jobs / id_)

    def find(self, id_: str) -> JobFolder:
        """Return the folder of a job by its id, or by the last part of its id if unique. Raises JobNotFound."""
        if is_id(id_) and (self.jobs / id_).is_dir():
            return self.get_folder(id_)
        matches = [job_id for job_id in self.list_ids() if job_id.rsplit("-", 1)[1] == id_]
        if len(matches) > 1:
            message = f"{len(matches)} jobs have an id that ends in {id_!r}: {', '.join(matches)}."
            raise JobNotFound(message, code="job-id-ambiguous", hint="Use the whole id.")
        if not matches:
            raise _make_unknown_error(id_)
        return self.get_folder(matches[0])

    def remove(self, folder: JobFolder) -> None:
        """Delete a job's folder. Raises JobNotFound, and DiskRefused, also if some of its files remain."""
        hidden_path = folder.path.with_name(f"{_OLD_PREFIX}{folder.id}")
        try:
            folder.path.rename(hidden_path)
        except FileNotFoundError:
            raise _make_unknown_error(folder.id) from None
        except OSError as error:
            raise files.make_disk_error(error, self.jobs) from error
        if _delete(hidden_path):
            message = f"Job {folder.id} was deleted, but some of its files remain in {hidden_path}."
            hint = f"Delete them, or find out why they cannot be deleted: rm -r {shlex.quote(str(hidden_path))}"
            raise DiskRefused(message, code="job-not-fully-deleted", hint=hint)


def _delete(folder: Path) -> bool:
    """Delete as much of a folder as possible. Return whether some of it remains."""
    import shutil  # lazy: it imports all compression modules, and starting a job deletes nothing

    shutil.rmtree(folder, ignore_errors=True)
    return folder.exists()
