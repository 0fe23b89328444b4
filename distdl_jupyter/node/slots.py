"""The job queue of a machine, made of files and locks without a daemon: resources of running jobs, and waiting jobs.

* Every user has a folder ``distdl-queue-UID`` in a sticky, world-writable system folder (``/run/lock``, else ``/tmp``),
  with one file for each job that waits or holds something. The job's supervisor, or its agent on another host, holds a
  write lock on the file. A write lock requires write permission, so other users cannot fake it. A file without a write
  lock belongs to a job that has exited.
* The files of all users are read, but only the user's own are written. A folder is accepted only if it belongs to the
  user in its name and no other user may write to it; a file, if it belongs to that user. Links are not followed, and
  anything else is ignored. For every other user, a bounded number of files of a fixed size is read, and their content
  is validated and truncated (``_parse``).
* A job is identified by its user and its file. The job id in a file is for display only.
* A job that can start writes a claim for what it needs, and then reads all files. It holds the resources if enough is
  left besides what other jobs hold or claim. Otherwise it withdraws its claim, or waits for a later job to withdraw.
  Every job writes before it reads, so of two competing jobs at least one sees the other.
* Running jobs rewrite files that were deleted. After a folder was lost, no job starts until they have done so.

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
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.node import headroom, ports, processes

#: Variable for another folder, which containers that share GPUs can share.
FOLDER = "DISTDL_QUEUE"
_BASES = ("/run/lock", "/tmp")  # noqa: S108 - only where the system has made it safe for many users
_PREFIX = "distdl-queue-"
#: Suffixes of a user's folder, in case another user has taken a name.
_ENDINGS = ("", *(f".{number}" for number in range(1, 10)))
_FOLDER_NAME = re.compile(r"distdl-queue-(0|[1-9][0-9]{0,9})(?:\.[1-9])?")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
#: Bytes of a record. A file has two, and the older one is overwritten, so a reader always gets a complete one.
_RECORD = 4_096
#: Limits: jobs of one user in the queue, files opened of another user, and names listed.
_MOST_JOBS, _MOST_FILES, _MOST_NAMES = 256, 300, 600
#: Number of names in the system folder above which users' folders are found by user id, not by listing.
_MOST_LISTED = 4_000
#: Limits of the content of another user's file.
_MOST_DEVICES, _LONGEST_DEVICE, _LONGEST_JOB, _LONGEST_NAME = 128, 80, 100, 60
_LARGEST_NUMBER, _LARGEST_AMOUNT, _LARGEST_PRIORITY = 1 << 53, 1e18, 1e6
_AMOUNTS = ("cores", "memory")
#: Maximum number of brackets in a record, because deeply nested JSON is slow to reject.
_MOST_BRACKETS = 256
#: States of a job in the queue.
WAITS, CLAIMS, HOLDS = "waits", "claims", "holds"
#: Seconds that a claiming job waits for a later claim to be withdrawn, and between two reads.
_CLAIM_SECONDS, _CLAIM_PAUSE = 1.0, 0.005
#: Seconds for which other jobs wait for a job that could start.
_TURN_SECONDS = 20.0
#: Seconds between two checks that a running job's file exists, and seconds without starts after a folder was lost.
_BEAT, _AFTER_LOSS = 1.0, 2.5
#: Seconds between two reads of the queue, multiplied by the position behind _FRONT, up to _READ_AT_MOST seconds.
_READ, _FRONT, _READ_AT_MOST = 0.25, 4, 10.0
#: Maximum number of running jobs in a ``Turn``, and of holders in a ``QueuePosition``.
_MOST_SHOWN, _MOST_NAMED = 16, 4
#: The only entry of ``QueuePosition.lacks`` if everything is free but reserved for jobs in front.
ORDER = "order"
#: The file with the time until which no job starts after a folder was recreated.
_UNTIL = ".until"


class Need(NamedTuple):
    """The resources of a job: the number of ``gpus``, chosen from ``among`` (preferred first), and ``amounts`` by name.

    GPUs are devices with names; everything else (cores, bytes of memory) is an amount.
    """

    gpus: int = 0
    among: tuple[str, ...] = ()
    amounts: Mapping[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self.gpus or self.amounts)


class QueueEntry(NamedTuple):
    """A job in the queue. ``key`` identifies its user and file; ``job`` is the id that this user wrote.

    ``number`` is its position by time. Nothing is reserved for a waiting job that is ``blocked``.
    """

    key: str
    uid: int
    number: int
    need: Need
    state: str = WAITS
    gpus: tuple[str, ...] = ()
    priority: float = 0.0
    blocked: bool = False
    job: str = ""
    name: str = ""
    user: str = ""
    is_own: bool = False

    @property
    def holds(self) -> bool:
        """Whether the job holds or claims what it needs."""
        return self.state != WAITS

    @property
    def order(self) -> tuple[int, str]:
        """The position by time."""
        return self.number, self.key


class QueuePosition(NamedTuple):
    """A job's position in the queue, from 1, and whether it can start ``now``, with its ``gpus``.

    ``lacks`` names the resources that are not free ("gpus" or an amount), or contains only ``ORDER``. ``holders`` are
    the keys of the first jobs that hold or reserve these resources, ``others`` is the number of further jobs. ``free``
    is the free amount of each resource that the job needs.
    """

    key: str
    place: int
    now: bool
    gpus: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    others: int = 0
    free: Mapping[str, float] = {}


class Turn(NamedTuple):
    """A job's position among ``of`` waiting jobs. ``entries`` are running jobs and the holders in ``place``.

    ``number`` is the job's position by time. ``problem`` says why nothing can be acquired now.
    """

    place: QueuePosition
    of: int
    number: int
    entries: tuple[QueueEntry, ...] = ()
    problem: str = ""


def limits() -> dict[str, float]:
    """Return the number of ``cores`` and bytes of ``memory`` of this machine."""
    memory = headroom.memory_limit()
    return {"cores": headroom.cores(), **({"memory": memory} if memory is not None else {})}


# the order of starts: first come, first served; pure functions --------------------------------------


def order_jobs(waiting: Iterable[QueueEntry]) -> list[QueueEntry]:
    """Sort jobs by time; a priority moves a job only among the jobs of its user.

    Each user keeps the positions that the user's jobs have by time, and fills them in order of priority, then time.
    """
    by_time = sorted(waiting, key=lambda job: job.order)
    by_user: dict[int, list[QueueEntry]] = {}
    for job in by_time:
        by_user.setdefault(job.uid, []).append(job)
    for jobs in by_user.values():
        jobs.sort(key=lambda job: -job.priority)
        jobs.reverse()
    return [by_user[job.uid].pop() for job in by_time]


def schedule(
    jobs: Iterable[QueueEntry], limits: Mapping[str, float], late: Collection[int] = ()
) -> list[QueuePosition]:
    """Return the ``QueuePosition`` of each waiting job, in order.

    A job can start when everything it needs is free and not reserved for a job before it. Resources are reserved for
    each waiting job, so a later job overtakes it only if it needs none of them. ``limits`` are the machine's amounts
    by name; other amounts are unlimited. Nothing is reserved for a job of a ``late`` user that could start.
    """
    jobs = list(jobs)
    running, reserved = _Usage(), _Usage()
    for job in jobs:
        if job.holds:
            running.add(job.key, job.gpus, job.need.amounts)
    positions = []
    for index, job in enumerate(order_jobs(job for job in jobs if not job.holds), 1):
        need = job.need
        available = [gpu for gpu in need.among if gpu not in running.owners and gpu not in reserved.owners]
        ready = not job.blocked and len(available) >= need.gpus
        ready = ready and all(
            running.amounts[name] + reserved.amounts[name] + amount <= limits.get(name, math.inf)
            for name, amount in need.amounts.items()
        )
        positions.append(
            _position_of(job, index, running, reserved, limits, tuple(available[: need.gpus]) if ready else None)
        )
        possible = need.gpus <= len(need.among) and all(
            amount <= limits.get(name, math.inf) for name, amount in need.amounts.items()
        )
        if not job.blocked and possible and not (ready and job.uid in late):
            busy = [gpu for gpu in need.among if gpu in running.owners and gpu not in reserved.owners]
            reserved.add(job.key, (available + busy)[: need.gpus], need.amounts)
    return positions


class _Usage:
    """The job that has each device, and the used amount and the jobs of each other resource."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.amounts: Counter[str] = Counter()
        self._users: dict[str, list[str]] = {}

    def add(self, key: str, gpus: Iterable[str], amounts: Mapping[str, float]) -> None:
        for gpu in gpus:
            self.owners.setdefault(gpu, key)
        for name, amount in amounts.items():
            self.amounts[name] += amount  # type: ignore[assignment]  # a Counter adds floats as well
            if amount:
                self._users.setdefault(name, []).append(key)

    def users_of(self, names: Iterable[str], need: Need) -> list[str]:
        """Return the keys of jobs that use any of the needed resources ``names``, without duplicates, in order."""
        keys: dict[str, None] = {}
        for name in names:
            if name == "gpus":
                keys |= dict.fromkeys(self.owners[gpu] for gpu in need.among if gpu in self.owners)
            else:
                keys |= dict.fromkeys(self._users.get(name, ()))
        return list(keys)


def _position_of(
    job: QueueEntry,
    index: int,
    running: _Usage,
    reserved: _Usage,
    limits: Mapping[str, float],
    gpus: tuple[str, ...] | None,
) -> QueuePosition:
    need = job.need
    needed = {**({"gpus": float(need.gpus)} if need.gpus else {}), **need.amounts}
    free = {name: max(0.0, limits.get(name, math.inf) - running.amounts[name]) for name in need.amounts}
    if need.gpus:
        free["gpus"] = float(sum(gpu not in running.owners for gpu in need.among))
    if gpus is not None:
        return QueuePosition(job.key, index, now=True, gpus=gpus, free=free)
    lacks = tuple(name for name in needed if free[name] < needed[name])
    holders = running.users_of(lacks, need)
    if not lacks and not job.blocked:
        lacks, holders = (ORDER,), reserved.users_of(needed, need)
    named, others = tuple(holders[:_MOST_NAMED]), max(0, len(holders) - _MOST_NAMED)
    return QueuePosition(job.key, index, now=False, lacks=lacks, holders=named, others=others, free=free)


# all files ---------------------------------------------------------------------------------------


def base() -> Path:
    """Return the parent of all users' folders; a private folder if the machine has no suitable one."""
    if named := os.environ.get(FOLDER):
        return Path(named)
    for name in _BASES if _ON_LINUX else ():
        with contextlib.suppress(OSError):
            status = Path(name).stat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and status.st_mode & 0o1002 == 0o1002:
                return Path(name)
    return ports.locks("queue")


def entries() -> list[QueueEntry]:
    """Return the running and waiting jobs of all users, in order of time."""
    jobs = [entry for uid, folders in _folders().items() for entry in _read_user(uid, folders)]
    return sorted(jobs, key=lambda entry: entry.order)


def _folders() -> dict[int, list[Path]]:
    """Return the folders of each user: more than one if another user has taken a name."""
    directory, folders = base(), dict[int, list[Path]]()
    try:
        listing = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        device = os.fstat(listing).st_dev
        for match in filter(None, map(_FOLDER_NAME.fullmatch, _names(listing))):
            if _belongs_to(listing, match[0], uid := int(match[1]), device):
                folders.setdefault(uid, []).append(directory / match[0])
    except OSError:
        return {}
    finally:
        os.close(listing)
    return folders


def _names(listing: int) -> list[str]:
    """Return the candidate names of users' folders, bounded because other users may create very many."""
    with os.scandir(listing) as items:
        names = [item.name for item in itertools.islice(items, _MOST_LISTED)]
    if len(names) == _MOST_LISTED and (users := processes.users()) is not None:
        # A user with a job in the queue has a process here.
        return [f"{_PREFIX}{uid}{ending}" for uid in sorted(users) for ending in _ENDINGS]
    return sorted(names if len(names) < _MOST_LISTED else os.listdir(listing))


def _belongs_to(listing: int, name: str, uid: int, device: int) -> bool:
    try:
        status = os.stat(name, dir_fd=listing, follow_symlinks=False)
    except OSError:
        return False
    # A file system mounted there by a user may never respond.
    safe = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022 and status.st_dev == device
    return safe and status.st_uid == uid


def _read_user(uid: int, folders: Iterable[Path]) -> Iterator[QueueEntry]:
    """Yield one user's jobs; for another user, at most the allowed number."""
    is_own = uid == os.geteuid()
    listed = opened = 0
    for path in folders:
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if os.fstat(folder).st_uid != uid:
                continue
            with os.scandir(folder) as names:
                for item in names:
                    listed += 1
                    if not is_own and (listed > _MOST_NAMES or opened >= _MOST_FILES):
                        return
                    if _FILE_NAME.fullmatch(item.name):
                        opened += 1
                        if (entry := _read_file(folder, item.name, uid, is_own=is_own)) is not None:
                            yield entry
        except OSError:
            continue
        finally:
            os.close(folder)


def _read_file(folder: int, name: str, uid: int, *, is_own: bool) -> QueueEntry | None:
    """Return the job of a file, None if the job has ended. Delete files of ended jobs that belong to this user."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid or status.st_mode & 0o022:
            return None
        if not _is_locked(fd):
            if is_own:
                os.unlink(name, dir_fd=folder)  # this name is never used again
            return None
        data = os.pread(fd, 2 * _RECORD, 0)
    except OSError:
        return None
    finally:
        os.close(fd)
    return _parse(data, name, uid, is_own=is_own)


def _parse(data: bytes, name: str, uid: int, *, is_own: bool) -> QueueEntry | None:
    """Return the bounded, printable content of any user's file; None if it is invalid."""
    try:
        fields = json.loads(max(filter(None, map(_unpack, (data[:_RECORD], data[_RECORD:]))))[1])
        if fields["boot"] != _boot():
            return None
        among = fields["among"]
        if not isinstance(among, list) or len(among) > _MOST_DEVICES:
            return None
        devices = tuple(_printable(device, _LONGEST_DEVICE) for device in among)
        amounts = {
            key: _number(fields["amounts"][key], _LARGEST_AMOUNT) for key in _AMOUNTS if key in fields["amounts"]
        }
        count = int(_number(fields["count"], _MOST_DEVICES))
        return QueueEntry(
            key=f"{uid}/{name}",
            uid=uid,
            job=_printable(fields["job"], _LONGEST_JOB),
            name=_printable(fields["name"], _LONGEST_NAME),
            user=_user_name(uid),
            is_own=is_own,
            state=fields["state"] if fields["state"] in (CLAIMS, HOLDS) else WAITS,
            number=int(_number(fields["number"], _LARGEST_NUMBER)),
            need=Need(count, devices, amounts),
            gpus=tuple({devices[int(_number(index, _MOST_DEVICES))]: None for index in fields["gpus"][:_MOST_DEVICES]}),
            priority=_number(fields["priority"], _LARGEST_PRIORITY, least=-_LARGEST_PRIORITY),
            blocked=fields["blocked"] is True,
        )
    except Exception:  # noqa: BLE001 - content from another user must not stop the queue
        return None


def _unpack(record: bytes) -> tuple[bytes, bytes] | None:
    check, content = record[:8], record[9:].rstrip()
    if content.count(b"[") + content.count(b"{") > _MOST_BRACKETS:
        return None
    return (content[:16], content[17:]) if check == b"%08x" % zlib.crc32(content) else None


def _pack(fields: Mapping[str, Any], sequence: int) -> bytes:
    """Return a record: checksum, number and JSON. The fixed length allows rewriting it on a full disk."""
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    content = b"%016x %s" % (sequence, text)
    record = b"%08x %s" % (zlib.crc32(content), content)
    if len(record) > _RECORD:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return record.ljust(_RECORD)


def _number(value: Any, most: float, *, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(str(type(value)))
    return min(most, max(least, value))


def _printable(text: Any, most: int) -> str:
    if not isinstance(text, str):
        raise ValueError(str(type(text)))  # noqa: TRY004 - like all errors in a file
    text = text[:most]
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


@functools.lru_cache(maxsize=256)
def _user_name(uid: int) -> str:
    try:
        return _printable(pwd.getpwuid(uid).pw_name, _LONGEST_NAME)
    except KeyError:
        return f"user {uid}"


def _boot() -> str:
    return processes.boot().partition("/")[2]


# locks --------------------------------------------------------------------------------------------

_ON_LINUX: bool = os.uname().sysname == "Linux"
#: F_OFD_GETLK and F_OFD_SETLK of fcntl(2): locks that belong to an open file, not to a process. Python has these names
#: only if the C library does.
_GET_LOCK, _SET_LOCK = 36, 37
_FLOCK = "hhqqi4x"


def _lock(fd: int, kind: int) -> None:
    """Acquire (F_WRLCK) or release (F_UNLCK) the write lock of a file. Raises OSError if it is held elsewhere."""
    if _ON_LINUX:
        fcntl.fcntl(fd, _SET_LOCK, struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0))
    else:
        fcntl.flock(fd, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_locked(fd: int) -> bool:
    """Return whether the write lock of a file is held. Linux can query it without acquiring a lock."""
    if _ON_LINUX:
        answer = fcntl.fcntl(fd, _GET_LOCK, struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        return bool(struct.unpack(_FLOCK, answer)[0] == fcntl.F_WRLCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


# one job -----------------------------------------------------------------------------------------


class QueueSlot:
    """One job's file in the queue, from waiting until its resources are released.

    ``number`` is its earlier position by time, if it waited before.
    """

    def __init__(self, job: str, name: str, *, number: int | None = None) -> None:
        now = int(time.monotonic() * 1e6)
        self._fields: dict[str, Any] = {
            "boot": _boot(),
            "job": job[:_LONGEST_JOB],
            "name": name[:_LONGEST_NAME],
            # A number from before a reboot is meaningless.
            "number": now if number is None else max(0, min(number, now)),
        }
        self._sequence = 0
        self._file = f"{job[:_LONGEST_JOB]}.{secrets.token_hex(4)}"
        self._path: Path | None = None
        self._fd = -1
        self._gpus: tuple[str, ...] = ()
        self._turn: Turn | None = None
        self._patience = _Patience()
        self._looked_at = self._beaten_at = -math.inf

    @property
    def holds(self) -> bool:
        """Whether the job holds what it needs."""
        return self._fd >= 0 and self._fields.get("state") == HOLDS

    @property
    def gpus(self) -> tuple[str, ...]:
        """The devices that the job holds."""
        return self._gpus if self.holds else ()

    def ask(self, need: Need, *, priority: float = 0.0, blocked: bool = False) -> Turn | None:
        """Acquire what the job needs and return None, or return its turn while it has to wait. Call it repeatedly.

        A call too soon after the last one returns the same turn. A ``blocked`` job only keeps its position.
        """
        if self.holds:
            return None
        wish = {
            "count": need.gpus,
            "among": list(need.among),
            "amounts": dict(need.amounts),
            "priority": priority,
            "blocked": blocked,
            "state": WAITS,
            "gpus": [],
        }
        changed = any(self._fields.get(name) != value for name, value in wish.items())
        if not changed and self._turn is not None and not self._is_due():
            return self._turn
        try:
            self._turn = self._look(need, wish, changed=changed)
        except OSError as error:
            # Keep the position when the disk is full or the folder was just deleted.
            self._turn = self._stuck(f"Cannot write to the queue in {base()}: {error.strerror or error}.")
        self._looked_at = time.monotonic()
        return self._turn

    def beat(self) -> None:
        """Rewrite the file if it was deleted. Call it regularly while the job runs."""
        now = time.monotonic()
        if self._fd < 0 or now - self._beaten_at < _BEAT:
            return
        self._beaten_at = now
        with contextlib.suppress(OSError):
            if not self._is_there():
                self._write({})

    def release(self) -> None:
        """Release the job's resources or position, even if a forked process has inherited the lock."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            if self._path is not None and self._is_there():
                self._path.unlink()
        with contextlib.suppress(OSError):
            _lock(self._fd, fcntl.F_UNLCK)
        os.close(self._fd)
        self._fd, self._path, self._turn = -1, None, None
        self._fields |= {"state": WAITS, "gpus": []}

    def _look(self, need: Need, wish: Mapping[str, Any], *, changed: bool) -> Turn | None:
        if self._fd < 0 and sum(entry.is_own for entry in entries()) >= _MOST_JOBS:
            return self._stuck(f"You already have {_MOST_JOBS} jobs in the queue of this machine.")
        if changed or not self._is_there():
            self._write(wish)
        jobs = [entry for entry in entries() if entry.key != self._key]
        turn = self._turn_among([*jobs, self._entry(need)])
        return self._claim(need, turn) if turn.place.now and not turn.problem else turn

    def _turn_among(self, jobs: Sequence[QueueEntry]) -> Turn:
        now = time.monotonic()
        positions = schedule(jobs, limits(), self._patience.late(now))
        users = {entry.key: entry.uid for entry in jobs}
        self._patience.note(
            {(users[candidate.key], candidate.key) for candidate in positions if candidate.now},
            {job.key for job in jobs if job.holds},
            now,
        )
        position = next(candidate for candidate in positions if candidate.key == self._key)
        shown = [entry for entry in jobs if entry.holds][:_MOST_SHOWN]
        named = {entry.key: entry for entry in jobs if entry.key in position.holders}
        more = {entry.key: entry for entry in shown} | named
        return Turn(position, len(positions), self._fields["number"], tuple(more.values()), _loss())

    def _claim(self, need: Need, turn: Turn) -> Turn | None:
        """Acquire what the job needs, unless another job acquired it first. Raises OSError."""
        gpus = turn.place.gpus
        self._write({"state": CLAIMS, "gpus": [need.among.index(gpu) for gpu in gpus]})
        until = time.monotonic() + _CLAIM_SECONDS
        while True:
            others = [entry for entry in entries() if entry.key != self._key and entry.holds]
            order = (self._fields["number"], self._key)
            first = [entry for entry in others if entry.state == HOLDS or entry.order < order]
            if not _is_enough(need, gpus, first) or time.monotonic() > until:
                break
            if _is_enough(need, gpus, others):
                self._write({"state": HOLDS})
                self._gpus = gpus
                return None
            time.sleep(_CLAIM_PAUSE)
        self._write({"state": WAITS, "gpus": []})
        return turn._replace(place=turn.place._replace(now=False))

    def _entry(self, need: Need) -> QueueEntry:
        """Return this job's entry from memory, because its own file is not trusted."""
        record = _pack(self._fields, 0)
        entry = _parse(record, self._file, os.geteuid(), is_own=True)
        assert entry is not None, "its own content is valid"
        return entry._replace(state=WAITS, gpus=(), need=need)

    @property
    def _key(self) -> str:
        return f"{os.geteuid()}/{self._file}"

    def _stuck(self, problem: str) -> Turn:
        return Turn(QueuePosition(self._key, 1, now=False), 1, self._fields["number"], (), problem)

    def _is_due(self) -> bool:
        """Return whether to read the queue again; jobs in front read it more often."""
        assert self._turn is not None
        pause = min(_READ_AT_MOST, _READ * max(1, self._turn.place.place - _FRONT))
        return time.monotonic() - self._looked_at > pause

    # the file --------------------------------------------------------------------------------

    def _is_there(self) -> bool:
        if self._path is None:
            return False
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _write(self, changes: Mapping[str, Any]) -> None:
        """Write the file with ``changes``. After an OSError, nothing has changed."""
        fields, sequence = {**self._fields, **changes}, self._sequence + 1
        record = _pack(fields, sequence)
        if self._is_there():
            _write_all(self._fd, record, _RECORD * (sequence % 2))
        else:
            self._make(record)
        self._fields, self._sequence = fields, sequence

    def _make(self, record: bytes) -> None:
        """Create the file, locked and written before any other process can open it."""
        folder = _own_folder()
        new = folder / f".{secrets.token_hex(8)}"
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock(fd, fcntl.F_WRLCK)
            _write_all(fd, record * 2, 0)
            os.fchmod(fd, 0o644)
            new.rename(folder / self._file)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._path = fd, folder / self._file


class _Patience:
    """Finds users whose jobs could start but do not, so that other jobs stop waiting for them."""

    def __init__(self) -> None:
        self._ready: dict[int, tuple[float, set[str]]] = {}

    def late(self, now: float) -> set[int]:
        """Return the users whose jobs could have started for too long."""
        return {uid for uid, (since, _) in self._ready.items() if now - since > _TURN_SECONDS}

    def note(self, ready: Iterable[tuple[int, str]], holding: Collection[str], now: float) -> None:
        """Record the jobs that could start now, by user and key; a start resets the user's time."""
        by_user: dict[int, set[str]] = {}
        for uid, key in ready:
            by_user.setdefault(uid, set()).add(key)
        started = {uid for uid, (_, keys) in self._ready.items() if not keys.isdisjoint(holding)}
        self._ready = {
            uid: (self._ready[uid][0] if uid in self._ready and uid not in started else now, keys)
            for uid, keys in by_user.items()
        }


def _is_enough(need: Need, gpus: Sequence[str], others: Iterable[QueueEntry]) -> bool:
    """Return whether ``gpus`` and the job's amounts are available besides what other jobs hold."""
    others, totals = list(others), limits()
    if any(gpu in entry.gpus for entry in others for gpu in gpus):
        return False
    return all(
        sum(entry.need.amounts.get(name, 0) for entry in others) + amount <= totals.get(name, math.inf)
        for name, amount in need.amounts.items()
    )


def _write_all(fd: int, content: bytes, offset: int) -> None:
    if os.pwrite(fd, content, offset) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _own_folder() -> Path:
    """Return this user's folder; create it if necessary. Raises OSError."""
    directory, uid = base(), os.geteuid()
    if os.environ.get(FOLDER) and not directory.exists():
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o1777)
    # Another user may have taken a name; another process of this user may be faster.
    for path in (directory / f"{_PREFIX}{uid}{ending}" for ending in _ENDINGS):
        if existing := _folders().get(uid):
            return existing[0]
        new = directory / f".{_PREFIX}{secrets.token_hex(8)}"
        new.mkdir(mode=0o755)
        new.chmod(0o755)
        _note_loss(new)
        try:
            new.rename(path)
        except OSError:
            (new / _UNTIL).unlink(missing_ok=True)
            new.rmdir()
        else:
            return path
    taker = _user_name((directory / f"{_PREFIX}{uid}").lstat().st_uid)
    taken = f"{taker} has taken the names of your folder. Ask an administrator to remove {_PREFIX}{uid}*"
    raise FileExistsError(errno.EEXIST, taken, str(directory))


def _note_loss(folder: Path) -> None:
    """Block starts until running jobs have rewritten their files, if other jobs of this user run."""
    if any(processes.MARK.encode() in processes.variables(pid) for pid in processes.table()):
        (folder / _UNTIL).write_text(str(time.monotonic() + _AFTER_LOSS), encoding="ascii")


def _loss() -> str:
    """Return why jobs cannot start after a loss of files, "" if they can."""
    for folder in _folders().get(os.geteuid(), ()):
        with contextlib.suppress(OSError, ValueError):
            until = float((folder / _UNTIL).read_text(encoding="ascii"))
            if 0 < until - time.monotonic() <= _AFTER_LOSS:
                return "The queue's folder was deleted. Waiting for running jobs to write their files again."
            (folder / _UNTIL).unlink(missing_ok=True)
    return ""
