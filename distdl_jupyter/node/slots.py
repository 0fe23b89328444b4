"""The queue of a machine: what each running job holds of it, and which jobs wait. It is files and locks, no process.

* Every user has a folder ``distdl-queue-UID`` in a place of the system where all may write and nobody may take away
  what is another's (``/run/lock``, else ``/tmp``), with one file for each job that waits or holds something. The job's
  supervisor, or its agent on another host, keeps the file locked: a file that is not locked is of a job that is gone.
* All users' files are read, and nobody's but one's own are written. A folder counts only when it belongs to the user in
  its name and no other may write there; a file, when it belongs to that user. Links are not followed. What cannot be
  read is left out, so that whoever hides what he holds harms himself alone.
* Who starts is decided under one lock of the machine, by what the files say (``node.schedule``). A lock that another
  user keeps for too long is passed over: then a claim stands for a moment before it counts, and of those for which
  there is not enough together the one that comes later in the order steps back.
* Files that somebody has taken away are written anew by those who live. After a folder was lost no job starts for as
  long as that takes.

Times in the files are those of the clock that counts since the machine was started: nobody sets it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import pwd
import secrets
import stat
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.node import headroom, ports, processes, schedule
from distdl_jupyter.node.schedule import Held, Need, Place, Waiting

#: The variable that names another folder: containers that share GPUs share it.
FOLDER = "DISTDL_QUEUE"
_BASES = ("/run/lock", "/tmp")  # noqa: S108 - only where the system has made it safe for many users
_PREFIX = "distdl-queue-"
_LOCK = "distdl-queue.lock"
#: Bytes of which a file's length is a multiple, of the largest one that is read, and how many of one user are read.
_BLOCK, _LARGEST, _MOST = 4_096, 65_536, 2_000
#: What is counted of the machine itself, and the largest number of a job.
_OF_MACHINE, _LAST = ("cores", "memory"), 1 << 52
#: How often a file is read that is being written.
_TRIES = 20
#: Seconds for which the machine's lock is waited for, and for which a claim without it stands before it counts.
_PATIENCE, _SETTLE = 3.0, 0.3
#: Seconds between two looks of a living job whether its file is there, and those without a start after a loss.
_BEAT, _AFTER_LOSS = 1.0, 2.5
#: Seconds between two looks at the queue: of the first jobs in it, more for each place, and at most.
_LOOK, _LOOK_PER_PLACE, _LOOK_AT_MOST = 0.5, 0.25, 15.0
#: Jobs that look at once when something has changed.
_FRONT = 4
#: Seconds for which a job whose file was seen to be locked is taken to live.
_LIVES = 0.5
#: The time of a file whose job is to look at once, in nanoseconds since the epoch.
_WOKEN = 1_000_000_000
#: The file that says until when no job starts after a folder was made anew, on ``clock``.
_UNTIL = ".until"


class Entry(NamedTuple):
    """One job in the queue: it ``holds`` what it ``needs``, or waits for it. ``since`` is epoch seconds.

    ``unlocked`` says that it has claimed what it holds without the machine's lock.
    """

    job: str
    name: str
    user: str
    own: bool
    holds: bool
    number: int
    need: Need
    gpus: tuple[str, ...] = ()
    priority: float = 0.0
    lasts: float | None = None
    blocked: bool = False
    limits: Mapping[str, float] = {}
    ends: float | None = None
    since: float = 0.0
    unlocked: bool = False

    def as_held(self) -> Held:
        """Return what it holds, for the schedule."""
        return Held(self.job, self.gpus, self.need.amounts, self.ends)

    def as_waiting(self) -> Waiting:
        """Return it as a job that waits, for the schedule."""
        return Waiting(
            self.job, self.user, self.number, self.need, self.priority, self.lasts, self.blocked, self.limits
        )


class Turn(NamedTuple):
    """Where a job stands in the queue. ``entries`` are all jobs there; ``problem`` says why nothing can be taken."""

    place: Place
    of: int
    entries: tuple[Entry, ...]
    problem: str = ""

    @property
    def holding(self) -> list[Entry]:
        """The jobs that hold something."""
        return [one for one in self.entries if one.holds]


def clock() -> float:
    """Return seconds of the clock in which the queue's files speak."""
    return time.monotonic()


def limits() -> dict[str, float]:
    """Return how much there is here of what is counted: ``cores``, ``memory`` in bytes."""
    memory = headroom.memory_limit()
    return {"cores": headroom.cores(), **({"memory": memory} if memory is not None else {})}


# all files ---------------------------------------------------------------------------------------


def base() -> Path:
    """Return the folder that holds those of all users; this user's own where the machine has none for all."""
    if named := os.environ.get(FOLDER):
        return Path(named)
    for name in _BASES:
        with contextlib.suppress(OSError):
            seen = Path(name).stat()
            if stat.S_ISDIR(seen.st_mode) and seen.st_uid == 0 and seen.st_mode & 0o1002 == 0o1002:
                return Path(name)
    return ports.locks("queue")


def entries(*, fresh: bool = False) -> list[Entry]:
    """Return the jobs of all users that hold something here, or wait, in the order of their numbers.

    What was read within half a second counts still unless it is to be ``fresh``: it is enough to wait by, not to start.
    """
    found: list[Entry] = []
    for folder, user in _folders():
        found += _entries_in(folder, user, fresh=fresh)
    return sorted(found, key=lambda one: (one.number, one.job))


def places(found: Sequence[Entry], until: str = "") -> list[Place]:
    """Return the places of the jobs that wait among ``found``, in their order; with ``until`` up to that job."""
    held = [one.as_held() for one in found if one.holds]
    waiting = [one.as_waiting() for one in found if not one.holds]
    return schedule.schedule(held, waiting, limits(), clock(), until)


def _folders() -> Iterator[tuple[Path, int]]:
    """Yield each user's folder with the user's number."""
    with contextlib.suppress(OSError), os.scandir(base()) as found:
        for one in found:
            number = one.name.removeprefix(_PREFIX).partition(".")[0]
            if one.name.startswith(_PREFIX) and number.isdigit() and _belongs(Path(one.path), int(number)):
                yield Path(one.path), int(number)


def _belongs(folder: Path, user: int) -> bool:
    with contextlib.suppress(OSError):
        seen = folder.lstat()
        return stat.S_ISDIR(seen.st_mode) and seen.st_uid == user and not seen.st_mode & 0o022
    return False


def _entries_in(folder: Path, user: int, *, fresh: bool) -> Iterator[Entry]:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if os.fstat(fd).st_uid != user:
            return
        for name in sorted(os.listdir(fd))[:_MOST]:  # noqa: PTH208 - of the folder that was looked at, wherever it is now
            if not name.startswith(".") and (entry := _entry(fd, name, user, fresh=fresh)) is not None:
                yield entry
    except OSError:
        return
    finally:
        os.close(fd)


#: What files have said that have not changed since, until when their jobs are taken to live.
_known: dict[tuple[int, int], tuple[Entry | None, object, float]] = {}


def _entry(folder: int, name: str, user: int, *, fresh: bool) -> Entry | None:
    """Return what a file says, None when no living job has written it; one's own of a job that is gone is deleted."""
    try:
        seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
        key = (seen.st_dev, seen.st_ino)
        known, mark, until = (None, None, 0.0) if fresh else _known.get(key, (None, None, 0.0))
        if mark == (name, seen.st_mtime_ns, seen.st_ctime_ns) and clock() < until:
            return known
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != user or seen.st_size > _LARGEST:
            return None
        if _is_free(fd):
            if user == os.geteuid():
                os.unlink(name, dir_fd=folder)  # no other file ever has this name
            return None
        # A file that changes while it is read has another time then.
        found = known if mark == (name, seen.st_mtime_ns, seen.st_ctime_ns) else _read(fd, user)
        if len(_known) > _MOST:
            _known.clear()
        _known[key] = (found, (name, seen.st_mtime_ns, seen.st_ctime_ns), clock() + _LIVES)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    else:
        return found
    finally:
        os.close(fd)


def _is_free(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _packed(said: Mapping[str, Any]) -> bytes:
    """Return a file's content: a checksum and JSON, of always the same length, so that a full disk takes it too."""
    text = json.dumps(said, separators=(",", ":")).encode()
    line = b"%08x %s\n" % (zlib.crc32(text), text)
    return line.ljust(_BLOCK * math.ceil(len(line) / _BLOCK))


def _said(fd: int) -> Any:
    """Return the JSON of a file, which may be written right now. Raises ValueError."""
    for _ in range(_TRIES):
        check, _, text = os.pread(fd, _LARGEST, 0).rstrip().partition(b" ")
        if check == b"%08x" % zlib.crc32(text):
            return json.loads(text)
        time.sleep(0.001)
    raise ValueError("checksum")


def _read(fd: int, user: int) -> Entry | None:
    said = _said(fd)
    if said["boot"] != _boot():
        return None
    own = user == os.geteuid()
    since, priority = float(said["since"]), float(said["priority"])
    if not (math.isfinite(since) and math.isfinite(priority)):
        return None
    return Entry(
        job=_printable(said["job"], 100),
        name=_printable(said["name"], 120),
        user=_user_name(user),
        own=own,
        holds=bool(said["holds"]),
        number=max(0, min(_LAST, int(said["number"]))),
        need=Need(max(0, int(said["count"])), tuple(map(str, said["among"])), _amounts(said["amounts"], user)),
        gpus=tuple(map(str, said["gpus"])),
        priority=priority,
        lasts=None if (lasts := _time(said["lasts"])) is None else max(1.0, lasts),
        blocked=bool(said["blocked"]),
        limits=_amounts(said["limits"], user),
        ends=_time(said["ends"]),
        since=since,
        unlocked=bool(said.get("unlocked")),
    )


def _amounts(said: Mapping[str, Any], user: int) -> dict[str, float]:
    """Return amounts by name; what is not the machine's is the user's own, whatever others call theirs."""
    found = {}
    for name, value in said.items():
        if not 0 <= (amount := float(value)) < math.inf:
            raise ValueError(name)
        found[name if name in _OF_MACHINE else f"{user}:{name}"] = amount
    return found


def _printable(said: Any, most: int) -> str:
    return "".join(one if one.isprintable() else "?" for one in str(said)[:most])


def _time(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _boot() -> str:
    return processes.boot().partition("/")[2]


@contextlib.contextmanager
def _alone() -> Iterator[bool]:
    """Keep other processes of this machine from deciding meanwhile; False where another user does not let us."""
    fd = _lock_file()
    try:
        yield fd is not None and _lock(fd)
    finally:
        if fd is not None:
            os.close(fd)


def _lock_file() -> int | None:
    """Open the machine's lock. Whoever has made it, it is only locked, never written."""
    path, flags = base() / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for more in (0, os.O_CREAT | os.O_EXCL, 0):
        try:
            fd = os.open(path, flags | more, 0o644)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EEXIST):
                continue
            return None
        if stat.S_ISREG(os.fstat(fd).st_mode):
            if more:
                with contextlib.suppress(OSError):
                    os.fchmod(fd, 0o644)
            return fd
        os.close(fd)
        return None
    return None


def _lock(fd: int) -> bool:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until:
                return False
            time.sleep(0.005 + 0.02 * secrets.randbelow(100) / 100)
            continue
        with contextlib.suppress(OSError):
            # A file that was taken away keeps nobody out.
            return os.path.samestat((base() / _LOCK).lstat(), os.fstat(fd))
        return False


# one job -----------------------------------------------------------------------------------------


class Slot:
    """One job's file in the queue, from when it begins to wait until what it holds is given back.

    ``number`` is its place by time, where it waited before.
    """

    def __init__(self, job: str, name: str, *, number: int | None = None) -> None:
        self._job, self._number = job, number
        self._said: dict[str, Any] = {
            "job": job, "name": name, "boot": _boot(), "since": time.time(), "holds": False, "number": 0, "count": 0,
            "among": (), "gpus": (), "amounts": {}, "priority": 0.0, "lasts": None, "blocked": False, "limits": {},
            "ends": None, "unlocked": False,
        }  # fmt: skip
        self._file = f"{job}.{secrets.token_hex(4)}"
        self._path: Path | None = None
        self._fd = -1
        self._turn: Turn | None = None
        self._looked_at = self._beaten_at = -math.inf
        self._seen: object = None

    @property
    def holds(self) -> bool:
        """Whether what the job needs is its own."""
        return self._fd >= 0 and bool(self._said["holds"])

    @property
    def gpus(self) -> tuple[str, ...]:
        """The devices that it holds."""
        return tuple(self._said["gpus"]) if self.holds else ()

    def ask(
        self,
        need: Need,
        *,
        priority: float = 0.0,
        lasts: float | None = None,
        blocked: bool = False,
        limits: Mapping[str, float] | None = None,
    ) -> Turn | None:
        """Take what the job needs, and return None; or its place while it has to wait. To be called again and again.

        A call that comes too soon after the last one returns what that found. ``lasts`` is how many seconds it may run
        at most, None when that is unknown. One that is ``blocked`` only keeps its place.
        """
        if self.holds:
            return None
        wish = {
            "count": need.gpus, "among": need.among, "amounts": dict(need.amounts), "priority": priority,
            "lasts": lasts, "blocked": blocked, "limits": dict(limits or {}),
        }  # fmt: skip
        changed = any(self._said[name] != value for name, value in wish.items())
        if not changed and self._turn is not None and not self._is_due():
            return self._turn
        self._said |= wish
        try:
            return self._look(changed=changed)
        except OSError as error:
            # A full disk is no reason to give up a place, nor is a folder that somebody has just deleted.
            self._looked_at = clock()
            self._turn = self._without_file(f"The queue cannot be written: {error.strerror or error} ({base()}).")
            return self._turn

    def beat(self, ends: float | None = None) -> None:
        """Write the file anew where somebody has taken it away, and say when the job ends, as it is expected now.

        To be called now and then while the job runs. ``ends`` is on ``clock``.
        """
        now = clock()
        if self._fd < 0 or now - self._beaten_at < _BEAT:
            return
        self._beaten_at, before = now, self._said["ends"]
        moved = ends is not None and (before is None or abs(ends - before) > max(2.0, 0.05 * (ends - now)))
        with contextlib.suppress(OSError):
            if moved or not self._is_there():
                self._said["ends"] = ends if moved else before
                self._write()

    def release(self) -> None:
        """Give back what the job holds, or its place; also where a forked process has inherited the lock."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            if self._path is not None and self._is_there():
                self._path.unlink()
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
        self._fd, self._path, self._turn = -1, None, None
        self._said |= {"holds": False, "gpus": ()}

    def _look(self, *, changed: bool) -> Turn | None:
        if self._fd < 0:
            with _alone():
                last = max((one.number for one in entries(fresh=True)), default=0)
                self._said["number"] = min(_LAST, last + 1) if self._number is None else self._number
                self._write()
        elif changed or not self._is_there():
            self._write()
        self._seen = _marks()
        turn = self._turn = self._found()
        self._looked_at = clock()
        if turn.place.now:
            return self._take()
        self._wake(turn)
        return turn

    def _take(self) -> Turn | None:
        with _alone() as alone:
            turn = self._turn = self._found(fresh=True)
            if not turn.place.now:
                return turn
            lasts = self._said["lasts"]
            self._said["unlocked"] = not alone
            self._hold(turn.place.gpus, None if lasts is None else clock() + lasts)
            if alone or not self._collides({one.job for one in turn.holding}):
                return None
            self._hold(None, None)
            return self._turn

    def _hold(self, gpus: Sequence[str] | None, ends: float | None) -> None:
        """Hold devices and amounts, or nothing any more. Raises OSError, and nothing has changed then."""
        before = dict(self._said)
        self._said |= {"holds": gpus is not None, "gpus": gpus or (), "ends": ends}
        try:
            self._write()
        except OSError:
            self._said = before
            raise

    def _collides(self, known: Collection[str]) -> bool:
        """Say whether a claim that was made without the machine's lock has to step back.

        That is where there is not enough for it beside the jobs whose claims were ``known`` to it, those that were made
        with the lock, and those that come before it. It waits longer than others take from their look to their claim,
        so that all see each other (Fischer's mutual exclusion: Lamport, "A fast mutual exclusion algorithm", 1987).
        """
        time.sleep(_SETTLE)
        found = entries(fresh=True)
        own = next((one for one in found if one.job == self._job), None)
        if own is None:
            return True
        before = [one.as_held() for one in found if one.holds and one.job != self._job and
                  (one.job in known or not one.unlocked or (one.number, one.job) < (own.number, own.job))]  # fmt: skip
        (place,) = schedule.schedule(before, [own.as_waiting()], limits(), clock())
        return not place.now or any(set(one.gpus) & set(own.gpus) for one in before)

    def _found(self, *, fresh: bool = False) -> Turn:
        found = entries(fresh=fresh)
        place = next((one for one in places(found, self._job) if one.job == self._job), None)
        if place is None:
            return self._without_file("The queue is being written anew.")
        problem = _loss()
        of = sum(not one.holds for one in found)
        return Turn(place._replace(now=place.now and not problem), of, tuple(found), problem)

    def _without_file(self, problem: str) -> Turn:
        return Turn(Place(self._job, 1, None, now=False), 1, (), problem)

    def _is_due(self) -> bool:
        """Say whether it is time for a look: jobs in front look more often, and at once when something has changed."""
        assert self._turn is not None
        place, since = self._turn.place.place, clock() - self._looked_at
        if since > min(_LOOK_AT_MOST, max(_LOOK, _LOOK_PER_PLACE * place)):
            return True
        with contextlib.suppress(OSError):
            if self._fd >= 0 and os.fstat(self._fd).st_mtime_ns == _WOKEN:
                os.utime(self._fd)
                return True
        return place <= _FRONT and _marks() != self._seen

    def _wake(self, turn: Turn) -> None:
        """Let this user's jobs further behind, which can start now, look at once."""
        if turn.place.place > 1 or turn.of <= _FRONT or self._path is None:
            return
        ready = {one.job for one in places(turn.entries) if one.now and one.place > _FRONT}
        for path in self._path.parent.iterdir() if ready else ():
            if path.name.partition(".")[0] in ready:
                with contextlib.suppress(OSError):
                    os.utime(path, ns=(_WOKEN, _WOKEN), follow_symlinks=False)

    # the file --------------------------------------------------------------------------------

    def _is_there(self) -> bool:
        if self._path is None:
            return False
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _write(self) -> None:
        """Write what is said now; the file is locked before others can see it. Raises OSError."""
        content = _packed(self._said)
        if self._is_there():
            _write_all(self._fd, content)
        else:
            self._make(content)
        assert self._path is not None
        os.utime(self._path.parent)  # others see that something has changed

    def _make(self, content: bytes) -> None:
        folder = _own_folder()
        new = folder / f".{secrets.token_hex(8)}"
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            os.fchmod(fd, 0o644)  # others read it, whatever the umask says
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_all(fd, content)
            new.rename(folder / self._file)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._path = fd, folder / self._file


def _write_all(fd: int, content: bytes) -> None:
    if os.pwrite(fd, content, 0) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _marks() -> object:
    """Return what is different when a file in one of the folders has come, changed or gone."""
    found = []
    for folder, _ in _folders():
        with contextlib.suppress(OSError):
            found.append((str(folder), folder.stat().st_mtime_ns))
    return sorted(found)


def _own_folder() -> Path:
    """Return this user's folder, made where it is missing. Raises OSError."""
    place, user = base(), os.geteuid()
    if os.environ.get(FOLDER) and not place.exists():
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o1777)
    # Another user may have taken the name; another process of this user may be faster.
    for name in (f"{_PREFIX}{user}", f"{_PREFIX}{user}.{secrets.token_hex(4)}"):
        own = next((folder for folder, owner in _folders() if owner == user), None)
        if own is not None:
            return own
        new = place / f".{_PREFIX}{secrets.token_hex(8)}"
        new.mkdir(mode=0o755)
        new.chmod(0o755)
        _note_loss(new)
        try:
            new.rename(place / name)
        except OSError:
            (new / _UNTIL).unlink(missing_ok=True)
            new.rmdir()
        else:
            return place / name
    raise FileExistsError(errno.EEXIST, "No folder of your own can be made", str(place))


def _note_loss(folder: Path) -> None:
    """Let no job start before those that live have written their files anew, where other jobs of this user live."""
    if any(_job_of(pid) for pid in processes.table()):
        (folder / _UNTIL).write_text(str(clock() + _AFTER_LOSS), encoding="ascii")


def _job_of(pid: int) -> bytes:
    mark = f"{processes.MARK}=".encode()
    return next((one for one in processes.read(pid, "environ").split(b"\0") if one.startswith(mark)), b"")


def _loss() -> str:
    """Return why no job starts now, because files were lost; "" when they may."""
    for folder, user in _folders():
        if user == os.geteuid():
            with contextlib.suppress(OSError, ValueError):
                until = float((folder / _UNTIL).read_text(encoding="ascii"))
                if 0 < until - clock() <= _AFTER_LOSS:
                    return "The queue's folder was deleted: running jobs write their files anew."
                (folder / _UNTIL).unlink(missing_ok=True)
    return ""
