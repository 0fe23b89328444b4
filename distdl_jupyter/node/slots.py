"""The job queue of a machine, made of files and locks without a daemon: resources of running jobs, and waiting jobs.

* Every user has a folder ``distdl-queue-UID`` in a sticky, world-writable system folder (``/run/lock``, else ``/tmp``),
  with one file for each job that is waiting or holds resources. The job's supervisor, or its agent on another host,
  holds a write lock on the file. A write lock requires write permission, so other users cannot fake it. A file without
  a write lock belongs to a job that has exited.
* The files of all users are read, but only the user's own are written. A folder is accepted only if it belongs to the
  user in its name and no other user may write to it; a file is accepted only if it belongs to that user. Links are not
  followed, and anything else is ignored. For every other user, a bounded number of files of a fixed
  size is read, and their content is validated and truncated (``_parse``).
* A job is identified by its user and its file. The job id in a file is for display only.
* A job that can start writes a claim for what it needs, and then reads all files. If the resources
  that other jobs do not hold or claim are sufficient, it holds them; otherwise it withdraws its claim and waits. Every
  job writes before it reads, so of two competing jobs at least one sees the other.
* Running jobs rewrite their deleted files. After a folder has been deleted, no job starts until they have done so.

Times are those of the monotonic clock, which starts at boot.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import json
import math
import os
import pwd
import re
import secrets
import stat
import struct
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.node import devices, ports, processes

#: Environment variable that overrides the queue directory, for example to share it between containers with shared GPUs.
FOLDER_VARIABLE = "DISTDL_QUEUE"
_SYSTEM_FOLDERS = ("/run/lock", "/tmp")  # noqa: S108 - only if owned by root, sticky and world-writable
#: Name of a user's folder. A suffix is added if another user already owns the name.
_PREFIX, _SUFFIXES = "distdl-queue-", ("", *(f".{number}" for number in range(1, 10)))
_FOLDER_NAME = re.compile(r"distdl-queue-(0|[1-9][0-9]{0,9})(?:\.[1-9])?")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
#: Bytes of a record. A file has two, and the older one is overwritten, so a reader always gets a complete one.
_RECORD_BYTES = 4_096
#: Limits: jobs of one user in the queue, and files read of another user.
_MAX_JOBS, _MAX_FILES = 256, 300
#: Number of names in the system folder above which users' folders are found by user id, not by listing.
_MAX_LISTED = 4_000
#: Limits of the content of another user's file.
_MAX_DEVICES, _MAX_DEVICE_CHARS, _MAX_JOB_CHARS, _MAX_NAME_CHARS = 128, 80, 100, 60
_MAX_NUMBER, _MAX_AMOUNT, _MAX_PRIORITY = 1 << 53, 1e18, 1e6
#: Maximum number of brackets in a record, because deeply nested JSON is slow to reject.
_MAX_BRACKETS = 256
#: States of a job in the queue.
WAITING, CLAIMING, HOLDING = "waits", "claims", "holds"
#: Seconds for which resources stay reserved for a job that could start but has not.
_RESERVATION_SECONDS = 20.0
#: Seconds between two checks that a running job's file exists.
_FILE_CHECK_SECONDS = 1.0
#: Seconds without starts after a folder was deleted.
_BLOCKED_SECONDS = 2.5
#: Seconds between two reads of the queue for the first _FRONT + 1 jobs; grows with the position to _MAX_READ_SECONDS.
_READ_SECONDS, _FRONT, _MAX_READ_SECONDS = 0.25, 4, 10.0
#: Maximum number of running jobs and of holders in a ``QueuePosition``.
_MAX_RUNNING, _MAX_HOLDERS = 16, 4
#: The only entry of ``QueuePosition.missing`` if everything is free but reserved for jobs ahead of it.
ORDER = "order"
#: File that stores until when starts are blocked after a folder has been recreated.
_BLOCKED_FILE = ".until"


class ResourceRequest(NamedTuple):
    """A number of ``gpus``, chosen from ``candidates`` (preferred first), and ``amounts`` of resources by name.

    GPUs are devices with names; everything else (cores, bytes of memory) is an amount.
    """

    gpus: int = 0
    candidates: tuple[str, ...] = ()
    amounts: Mapping[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self.gpus or self.amounts)


class QueueEntry(NamedTuple):
    """A job in the queue. ``key`` identifies its user and file; ``job`` is the job id from the file, for display only.

    ``queued_at`` is in microseconds of the monotonic clock. Nothing is reserved for a waiting job that is ``blocked``.
    """

    key: str
    uid: int
    queued_at: int
    request: ResourceRequest
    state: str = WAITING
    gpus: tuple[str, ...] = ()
    priority: float = 0.0
    blocked: bool = False
    job: str = ""
    name: str = ""
    user: str = ""
    is_own: bool = False

    @property
    def has_resources(self) -> bool:
        """Whether the job holds or claims the resources that it needs."""
        return self.state != WAITING


class QueuePosition(NamedTuple):
    """A job's ``position`` among ``waiting_count`` jobs, from 1, and whether it ``can_start`` now, with its ``gpus``.

    ``missing`` has the resources that are not free ("gpus" or an amount), or only ``ORDER``. ``holders`` are the keys
    of the first jobs that hold or reserve these resources, ``other_holder_count`` is the number of further jobs.
    ``free`` is the free amount of each resource that the job needs. ``acquire`` also sets ``queued_at``, running jobs
    and the holders as ``entries``, and the ``problem`` if nothing can be acquired now.
    """

    key: str
    position: int
    waiting_count: int
    can_start: bool = False
    gpus: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    other_holder_count: int = 0
    free: Mapping[str, float] = {}
    queued_at: int = 0
    entries: tuple[QueueEntry, ...] = ()
    problem: str = ""


def measure_limits() -> dict[str, float]:
    """Return the number of ``cores`` and bytes of ``memory`` of this machine."""
    memory = devices.read_memory_limit()
    return {"cores": devices.cores(), **({"memory": memory} if memory is not None else {})}


# the order of starts: first come, first served; pure functions --------------------------------------


def order_jobs(waiting: Iterable[QueueEntry]) -> list[QueueEntry]:
    """Sort jobs by time; a priority moves a job only among the jobs of its user.

    Each user keeps the positions that the user's jobs have by time, and fills them in order of priority, then time.
    """
    jobs_by_time, by_user = sorted(waiting, key=_get_time_key), defaultdict[int, list[QueueEntry]](list)
    for job in jobs_by_time:
        by_user[job.uid].append(job)
    ordered = {uid: iter(sorted(jobs, key=lambda job: -job.priority)) for uid, jobs in by_user.items()}
    return [next(ordered[job.uid]) for job in jobs_by_time]


def _get_time_key(job: QueueEntry) -> tuple[int, str]:
    return job.queued_at, job.key


class _Usage:
    """The used amount of each resource, and the jobs that use it. Each GPU is a resource of its own."""

    def __init__(self) -> None:
        self.amounts: Counter[str] = Counter()
        self._jobs: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, key: str, gpus: Iterable[str], amounts: Mapping[str, float]) -> None:
        for name, amount in (*((gpu, 1) for gpu in gpus), *amounts.items()):
            if amount:
                self.amounts[name] += amount  # type: ignore[assignment]  # a Counter also adds floats
                self._jobs[name].append(key)

    def find_jobs(self, names: Iterable[str], request: ResourceRequest) -> list[str]:
        """Return the jobs that use any of the requested resources ``names``, in order, without duplicates."""
        resources = [resource for name in names for resource in (request.candidates if name == "gpus" else (name,))]
        return list(dict.fromkeys(key for resource in resources for key in self._jobs.get(resource, ())))


def schedule(
    jobs: Iterable[QueueEntry], limits: Mapping[str, float], late_users: Collection[int] = ()
) -> list[QueuePosition]:
    """Return the ``QueuePosition`` of each waiting job, in order.

    A job can start when everything it needs is free and not reserved for a job ahead of it. Resources are reserved for
    each waiting job, so a later job overtakes it only if it needs none of them. ``limits`` are the machine's amounts
    by name; other amounts are unlimited. Nothing is reserved for jobs that could start of ``late_users``, who have not
    started such a job for some time.
    """
    jobs, positions = list(jobs), list[QueuePosition]()
    running, reserved = _Usage(), _Usage()
    for job in jobs:
        if job.has_resources:
            running.add(job.key, job.gpus, job.request.amounts)
    waiting = order_jobs(job for job in jobs if not job.has_resources)
    for index, job in enumerate(waiting, 1):
        request, amounts = job.request, job.request.amounts
        needed = {**({"gpus": float(request.gpus)} if request.gpus else {}), **amounts}
        unreserved = [gpu for gpu in request.candidates if gpu not in reserved.amounts]
        available = [gpu for gpu in unreserved if gpu not in running.amounts]
        free = {name: max(0.0, limits.get(name, math.inf) - running.amounts[name]) for name in amounts}
        if request.gpus:
            free["gpus"] = float(sum(gpu not in running.amounts for gpu in request.candidates))
        missing = tuple(name for name, amount in needed.items() if free[name] < amount)
        holders = running.find_jobs(missing, request)
        can_start = not (job.blocked or missing) and len(available) >= request.gpus
        can_start = can_start and all(free[name] - reserved.amounts[name] >= amount for name, amount in amounts.items())
        if not (can_start or missing or job.blocked):
            missing, holders = (ORDER,), reserved.find_jobs(needed, request)
        gpus, listed_holders = tuple(available[: request.gpus]) if can_start else (), tuple(holders[:_MAX_HOLDERS])
        other_count = len(holders) - len(listed_holders)
        positions.append(
            QueuePosition(job.key, index, len(waiting), can_start, gpus, missing, listed_holders, other_count, free)
        )
        is_possible = request.gpus <= len(request.candidates) and all(
            amount <= limits.get(name, math.inf) for name, amount in amounts.items()
        )
        if is_possible and not job.blocked and not (can_start and job.uid in late_users):
            busy_gpus = [gpu for gpu in unreserved if gpu in running.amounts]
            reserved.add(job.key, (available + busy_gpus)[: request.gpus], amounts)
    return positions


# all files ---------------------------------------------------------------------------------------


def find_queue_directory() -> Path:
    """Return the parent of all users' folders; a private folder if the machine has no suitable one."""
    if override := os.environ.get(FOLDER_VARIABLE):
        return Path(override)
    for name in _SYSTEM_FOLDERS if _ON_LINUX else ():
        with contextlib.suppress(OSError):
            status = Path(name).stat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and status.st_mode & 0o1002 == 0o1002:
                return Path(name)
    return ports.get_lock_folder("queue")


def read_entries() -> list[QueueEntry]:
    """Return the running and waiting jobs of all users, in order of time: at most ``_MAX_FILES`` of each other user."""
    jobs = list[QueueEntry | None]()
    for uid, paths in _find_folders().items():
        remaining = None if uid == os.geteuid() else _MAX_FILES
        for path in paths:
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, folder)
                if os.fstat(folder).st_uid == uid:
                    with os.scandir(folder) as items:
                        names = [item.name for item in itertools.islice(items, remaining)]
                    remaining = remaining and remaining - len(names)
                    jobs += [_read_file(folder, name, uid) for name in filter(_FILE_NAME.fullmatch, names)]
    return sorted(filter(None, jobs), key=_get_time_key)


def _find_folders() -> dict[int, list[str]]:
    """Return the folders of each user: usually one; a second one has a suffix."""
    directory, folders = find_queue_directory(), defaultdict[int, list[str]](list)
    with contextlib.suppress(OSError):
        device = directory.stat().st_dev
        with os.scandir(directory) as items:
            names = [item.name for item in itertools.islice(items, _MAX_LISTED)]
        if len(names) == _MAX_LISTED:  # other users may create very many
            users = processes.find_users()  # a user with a job in the queue has a process here
            possible = (f"{_PREFIX}{uid}{suffix}" for uid in users or () for suffix in _SUFFIXES)
            names = os.listdir(directory) if users is None else list(possible)  # noqa: PTH208 - thousands of names
        for match in filter(None, map(_FOLDER_NAME.fullmatch, sorted(names))):
            path, uid = f"{directory}/{match[0]}", int(match[1])
            with contextlib.suppress(OSError):
                status = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - as above
                # A file system mounted there by a user may never respond.
                if status.st_uid == uid and status.st_dev == device and status.st_mode & 0o170022 == stat.S_IFDIR:
                    folders[uid].append(path)
    return folders


def _read_file(folder: int, name: str, uid: int) -> QueueEntry | None:
    """Return the job of a file, or None if the job has ended. Delete files of ended jobs that belong to this user."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        stack.callback(os.close, fd)
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o022:
            if _is_locked(fd):
                return _parse(os.pread(fd, 2 * _RECORD_BYTES, 0), name, uid)
            if uid == os.geteuid():
                os.unlink(name, dir_fd=folder)  # this name is never used again
    return None


def _parse(data: bytes, name: str, uid: int) -> QueueEntry | None:
    """Return the bounded, printable content of any user's file, or None if it is invalid."""
    try:
        records = [(record[:8], record[9:].rstrip()) for record in (data[:_RECORD_BYTES], data[_RECORD_BYTES:])]
        # The content of a record begins with its number, so the larger of two is the newer one.
        newest = max(content for check, content in records if check == b"%08x" % zlib.crc32(content))
        if newest.count(b"[") + newest.count(b"{") > _MAX_BRACKETS:
            return None
        fields = json.loads(newest[17:])
        candidates, amounts = fields["among"], fields["amounts"]
        if fields["boot"] != _get_boot_id() or not isinstance(candidates, list) or len(candidates) > _MAX_DEVICES:
            return None
        devices = tuple(_sanitize(device, _MAX_DEVICE_CHARS) for device in candidates)
        valid_amounts = {key: _clamp(amounts[key], _MAX_AMOUNT) for key in ("cores", "memory") if key in amounts}
        return QueueEntry(
            key=f"{uid}/{name}",
            uid=uid,
            job=_sanitize(fields["job"], _MAX_JOB_CHARS),
            name=_sanitize(fields["name"], _MAX_NAME_CHARS),
            user=_get_user_name(uid),
            is_own=uid == os.geteuid(),
            state=fields["state"] if fields["state"] in (CLAIMING, HOLDING) else WAITING,
            queued_at=int(_clamp(fields["number"], _MAX_NUMBER)),
            request=ResourceRequest(int(_clamp(fields["count"], _MAX_DEVICES)), devices, valid_amounts),
            gpus=tuple({devices[int(_clamp(index, _MAX_DEVICES))]: None for index in fields["gpus"][:_MAX_DEVICES]}),
            priority=_clamp(fields["priority"], _MAX_PRIORITY, minimum=-_MAX_PRIORITY),
            blocked=fields["blocked"] is True,
        )
    except Exception:  # noqa: BLE001 - content from another user must not stop the queue
        return None


def _clamp(value: Any, maximum: float, *, minimum: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"Expected a finite number, not {type(value).__name__}.")
    return min(maximum, max(minimum, value))


def _sanitize(value: object, max_chars: int) -> str:
    text = str(value)[:max_chars]
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


@functools.lru_cache(maxsize=256)
def _get_user_name(uid: int) -> str:
    try:
        return _sanitize(pwd.getpwuid(uid).pw_name, _MAX_NAME_CHARS)
    except KeyError:
        return f"user {uid}"


def _get_boot_id() -> str:
    return processes.identify_boot().partition("/")[2]


# locks --------------------------------------------------------------------------------------------

_ON_LINUX: bool = os.uname().sysname == "Linux"
#: F_OFD_GETLK and F_OFD_SETLK of fcntl(2): locks that belong to an open file, not to a process. Python has these names
#: only if the C library does.
_GET_LOCK, _SET_LOCK = 36, 37
_LOCK_FORMAT = "hhqqi4x"


def _lock(fd: int, lock_type: int) -> None:
    """Acquire (F_WRLCK) or release (F_UNLCK) the write lock of a file. Raises OSError if it is held elsewhere."""
    if _ON_LINUX:
        fcntl.fcntl(fd, _SET_LOCK, struct.pack(_LOCK_FORMAT, lock_type, os.SEEK_SET, 0, 0, 0))
    else:
        fcntl.flock(fd, fcntl.LOCK_UN if lock_type == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_locked(fd: int) -> bool:
    """Return whether the write lock of a file is held. Linux can query it without acquiring a lock."""
    if _ON_LINUX:
        result = fcntl.fcntl(fd, _GET_LOCK, struct.pack(_LOCK_FORMAT, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        return bool(struct.unpack(_LOCK_FORMAT, result)[0] == fcntl.F_WRLCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


# one job -----------------------------------------------------------------------------------------


class QueueSlot:
    """One job's file in the queue, from waiting until its resources are released.

    ``queued_at`` is its earlier time in the queue, if it waited before. ``gpus`` are the devices that the job holds.
    """

    def __init__(self, job: str, name: str, queued_at: int | None = None) -> None:
        now = int(time.monotonic() * 1e6)
        self._fields: dict[str, Any] = {
            "boot": _get_boot_id(),
            "job": job[:_MAX_JOB_CHARS],
            "name": name[:_MAX_NAME_CHARS],
            # A time from before a reboot is meaningless.
            "number": now if queued_at is None else max(0, min(queued_at, now)),
        }
        self.gpus: tuple[str, ...] = ()
        self._file = f"{job[:_MAX_JOB_CHARS]}.{secrets.token_hex(4)}"
        self._key = f"{os.geteuid()}/{self._file}"
        self._path: Path | None = None
        self._fd = -1
        self._sequence = 0
        self._position: QueuePosition | None = None
        #: By user: the time since which at least one job could start, and the keys of these jobs.
        self._ready: dict[int, tuple[float, set[str]]] = {}
        self._read_at = self._checked_at = -math.inf

    @property
    def has_resources(self) -> bool:
        """Whether the job holds the resources that it needs."""
        return self._fields.get("state") == HOLDING

    def acquire(self, request: ResourceRequest, *, priority: float = 0, blocked: bool = False) -> QueuePosition | None:
        """Acquire the resources and return None, or return the job's position while it waits. Call it repeatedly.

        A call too soon after the last one returns the same position. A ``blocked`` job only keeps its position.
        """
        if self.has_resources:
            return None
        fields: dict[str, Any] = {"count": request.gpus, "among": list(request.candidates), "priority": priority}
        fields |= {"amounts": dict(request.amounts), "blocked": blocked, "state": WAITING, "gpus": []}
        has_changed = any(self._fields.get(name) != value for name, value in fields.items())
        if self._position is not None and not has_changed:
            # Jobs near the front read the queue more often.
            pause = min(_MAX_READ_SECONDS, _READ_SECONDS * max(1, self._position.position - _FRONT))
            if time.monotonic() - self._read_at <= pause:
                return self._position
        problem = ""
        try:
            if self._fd < 0 and sum(entry.is_own for entry in read_entries()) >= _MAX_JOBS:
                problem = f"You already have {_MAX_JOBS} jobs in the queue. Wait until one ends, or stop one."
            else:
                if has_changed or not self._has_file():
                    self._write(fields)
                self._position = self._acquire_if_free(request)
        except OSError as error:
            # Keep the position when the disk is full or the folder was just deleted.
            problem = f"Cannot write to the queue in {find_queue_directory()}: {error.strerror or error}."
        if problem:
            self._position = QueuePosition(self._key, 1, 1, queued_at=self._fields["number"], problem=problem)
        self._read_at = time.monotonic()
        return self._position

    def _acquire_if_free(self, request: ResourceRequest) -> QueuePosition | None:
        """Read the queue; acquire the resources if the job can start, else return its position. Raises OSError."""
        now, saved, uid = time.monotonic(), self._fields, os.geteuid()
        jobs = [entry for entry in read_entries() if entry.key != self._key]
        holders = [entry for entry in jobs if entry.has_resources]
        # This job's entry is from memory, because its file may just have been deleted.
        entry = QueueEntry(
            self._key, uid, saved["number"], request, priority=saved["priority"], blocked=saved["blocked"], is_own=True
        )
        late_users = {user for user, (since, _) in self._ready.items() if now - since > _RESERVATION_SECONDS}
        positions = schedule([*jobs, entry], measure_limits(), late_users)
        users, ready = {job.key: job.uid for job in (*jobs, entry)}, defaultdict[int, set[str]](set)
        for position in positions:
            if position.can_start:
                ready[users[position.key]].add(position.key)
        # The time starts over when a job of the user starts.
        started = {entry.key for entry in holders}
        since_by_user = {user: since for user, (since, keys) in self._ready.items() if keys.isdisjoint(started)}
        self._ready = {user: (since_by_user.get(user, now), keys) for user, keys in ready.items()}
        position = next(position for position in positions if position.key == self._key)
        listed_keys = {*(entry.key for entry in holders[:_MAX_RUNNING]), *position.holders}
        listed_entries = tuple(entry for entry in jobs if entry.key in listed_keys)
        position = position._replace(queued_at=saved["number"], entries=listed_entries, problem=_find_blocking_reason())
        if not position.can_start or position.problem:
            return position
        self._write({"state": CLAIMING, "gpus": [request.candidates.index(gpu) for gpu in position.gpus]})
        holders = [entry for entry in read_entries() if entry.key != self._key and entry.has_resources]
        limits = measure_limits()
        used_gpus = {gpu for entry in holders for gpu in entry.gpus}
        if used_gpus.isdisjoint(position.gpus) and all(
            sum(entry.request.amounts.get(name, 0) for entry in holders) + amount <= limits.get(name, math.inf)
            for name, amount in request.amounts.items()
        ):
            self._write({"state": HOLDING})
            self.gpus = position.gpus
            return None
        # A competing job withdraws too. Then each sees that the other waits, and only the first of them claims again.
        self._write({"state": WAITING, "gpus": []})
        return position._replace(can_start=False, gpus=())

    def ensure_file(self) -> None:
        """Rewrite the file if it was deleted. Call it regularly while the job runs."""
        now = time.monotonic()
        if self._fd >= 0 and now - self._checked_at >= _FILE_CHECK_SECONDS:
            self._checked_at = now
            with contextlib.suppress(OSError):
                if not self._has_file():
                    self._write({})

    def release(self) -> None:
        """Release the job's resources or position, even if a forked process has inherited the lock."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            if self._path is not None and self._has_file():
                self._path.unlink()
        with contextlib.suppress(OSError):
            _lock(self._fd, fcntl.F_UNLCK)
        os.close(self._fd)
        self._fd, self._path, self._position, self.gpus = -1, None, None, ()
        self._fields |= {"state": WAITING, "gpus": []}

    # the file --------------------------------------------------------------------------------

    def _has_file(self) -> bool:
        try:
            return self._path is not None and os.path.samestat(self._path.lstat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _write(self, changes: Mapping[str, Any]) -> None:
        """Write the file with ``changes``. After an OSError, nothing has changed.

        A record consists of a checksum, a sequence number and JSON. Its length is fixed, for rewriting on a full disk.
        """
        fields, sequence = {**self._fields, **changes}, self._sequence + 1
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
        content = b"%016x %s" % (sequence, text)
        record = (b"%08x %s" % (zlib.crc32(content), content)).ljust(_RECORD_BYTES)
        if len(record) > _RECORD_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if self._has_file():
            _write_all(self._fd, record, _RECORD_BYTES * (sequence % 2))
        else:
            self._create(record * 2)
        self._fields, self._sequence = fields, sequence

    def _create(self, content: bytes) -> None:
        """Create the file, locked and written before any other process can open it."""
        folder = _make_user_folder()
        temporary = folder / f".{secrets.token_hex(8)}"
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock(fd, fcntl.F_WRLCK)
            _write_all(fd, content, 0)
            os.fchmod(fd, 0o644)
            temporary.rename(folder / self._file)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._path = fd, folder / self._file


def _write_all(fd: int, content: bytes, offset: int) -> None:
    if os.pwrite(fd, content, offset) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _make_user_folder() -> Path:
    """Return this user's folder; create it if necessary. Raises OSError."""
    directory, uid = find_queue_directory(), os.geteuid()
    if os.environ.get(FOLDER_VARIABLE) and not directory.exists():
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o1777)
    # Another user may own the name, or another process of this user may create the folder first.
    for suffix in _SUFFIXES:
        if existing := _find_folders().get(uid):
            return Path(existing[0])
        temporary = directory / f".{_PREFIX}{secrets.token_hex(8)}"
        temporary.mkdir(mode=0o755)
        temporary.chmod(0o755)
        # Block starts until running jobs have rewritten their files, if other jobs of this user are running.
        if any(processes.MARK.encode() in processes.read_environment(pid) for pid in processes.read_table()):
            (temporary / _BLOCKED_FILE).write_text(str(time.monotonic() + _BLOCKED_SECONDS), encoding="ascii")
        try:
            return temporary.rename(directory / f"{_PREFIX}{uid}{suffix}")
        except OSError:
            (temporary / _BLOCKED_FILE).unlink(missing_ok=True)
            temporary.rmdir()
    owner = _get_user_name((directory / f"{_PREFIX}{uid}").lstat().st_uid)
    reason = f"{owner} owns the folders named after your user id. Ask an administrator to remove {_PREFIX}{uid}*"
    raise FileExistsError(errno.EEXIST, reason, str(directory))


def _find_blocking_reason() -> str:
    """Return why jobs cannot start after a deletion of files, or "" if they can."""
    for path in (Path(folder, _BLOCKED_FILE) for folder in _find_folders().get(os.geteuid(), ())):
        with contextlib.suppress(OSError, ValueError):
            if 0 < float(path.read_text(encoding="ascii")) - time.monotonic() <= _BLOCKED_SECONDS:
                return "The queue's folder was deleted. Waiting for running jobs to rewrite their files."
            path.unlink(missing_ok=True)
    return ""
