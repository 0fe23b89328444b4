"""Find, signal and inspect the processes of a job on this host, identified by their environment, never by name.

All processes of a job inherit two variables: ``DISTDL_JOB_ID`` names the job, ``DISTDL_PIPES`` the agent's private
folder. Together they distinguish the processes of this agent from those of another agent on the same machine.
Descendants of known processes are included in case one of them cleared its environment. A daemonized process without
marks is adopted by the supervisor or the agent, or by the watchdog if that was killed (Linux). It escapes only if that
process and the watchdog were killed at the same time. This module does not know ranks, streams or the supervisor.

Processes are read from ``/proc`` on Linux, and with psutil elsewhere.

The stacks of a rank's threads are read from its file ``rank-N.stacks`` (see ``worker.streams``): the first line
identifies the process and the request signal, and the responses follow. A signal without a handler would kill a
process, so it is sent only if the process is provably still that rank and catches the signal.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

#: The variable that names the job, and both variables that every process of a job has.
MARK = "DISTDL_JOB_ID"
MARKS = (MARK, "DISTDL_PIPES")
_PROC = Path("/proc")
#: The inode of the initial process namespace (PROC_PID_INIT_INO in the kernel's source).
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
_WORKER = ("-m", "distdl_jupyter.worker")
#: Seconds between polls of killed processes; the kernel removes them after a moment.
_POLL_SECONDS = 0.02
_is_subreaper = False


class ProcessEntry(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    session: int


def read_table() -> dict[int, ProcessEntry]:
    """Return all running processes by pid, without zombies."""
    running = {}
    if _PROC.is_dir():
        for name in os.listdir(_PROC):  # noqa: PTH208  only names are needed, thousands of times
            if name.isdigit() and (fields := read_stat(int(name), 4)) and fields[0] not in (b"Z", b"X"):
                pid = int(name)
                running[pid] = ProcessEntry(pid, int(fields[1]), int(fields[3]))
        return running
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE:
                running[process.pid] = ProcessEntry(process.pid, process.ppid(), os.getsid(process.pid))
    return running


def find_users() -> set[int] | None:
    """Return the ids of users with a process on this machine, or None if this process cannot see all processes."""
    try:
        if (_PROC / "self/ns/pid").stat().st_ino != _FIRST_PID_NAMESPACE or not (_PROC / "1").exists():
            return None
        names = os.listdir(_PROC)  # noqa: PTH208
    except OSError:
        return None
    uids = set[int]()
    for name in filter(str.isdigit, names):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The entry in /proc of a process that is not dumpable belongs to root.
            uid = (_PROC / name).stat().st_uid
            uids.add(uid or int(read_file(int(name), "status").partition(b"\nUid:")[2].split()[1]))
    return uids


def find_marked(pids: Iterable[int], marks: Mapping[str, str]) -> list[int]:
    """Return the processes with all ``marks`` in their initial environment; unreadable ones belong to other users."""
    required = {f"{name}={value}".encode() for name, value in marks.items()}
    if _PROC.is_dir():
        return [pid for pid in pids if required <= set(read_file(pid, "environ").split(b"\0"))]
    return [pid for pid in pids if marks.items() <= dict(_call_psutil(pid, "environ", {})).items()]


def _call_psutil(pid: int, method: str, default: Any) -> Any:
    """Return what a method of psutil's process returns, ``default`` if the process has exited or is not readable."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return getattr(psutil.Process(pid), method)()
    return default


def find_descendants(roots: Iterable[int], running: Mapping[int, ProcessEntry]) -> set[int]:
    """Return the running processes among ``roots`` and all their running descendants."""
    children: dict[int, list[int]] = {}
    for process in running.values():
        children.setdefault(process.parent, []).append(process.pid)
    family, pending = set(), list(roots)
    while pending:
        pid = pending.pop()
        if pid not in family:
            family.add(pid)
            pending.extend(children.get(pid, ()))
    return family & running.keys()


def find_job_pids(
    marks: Mapping[str, str],
    running: Mapping[int, ProcessEntry] | None = None,
    excluded_pids: Iterable[int] = (),
    *,
    orphans: bool = False,
) -> set[int]:
    """Return all running processes of a job: marked processes with all descendants, except ``excluded_pids``.

    With ``orphans``, include the orphans that this process has adopted: its children in other sessions. (It runs only
    this job, and its other children are excluded or in its own session.)
    """
    running = read_table() if running is None else running
    this_pid, session = os.getpid(), os.getsid(0)
    root_pids = set(find_marked(running, marks))
    if orphans and _is_subreaper:
        root_pids |= {entry.pid for entry in running.values() if entry.parent == this_pid and entry.session != session}
    excluded_pids = {*excluded_pids, this_pid}
    return find_descendants(root_pids - excluded_pids, running) - excluded_pids


def find_workers(pids: Iterable[int]) -> list[int]:
    """Return the processes whose command line is that of a rank."""
    ranks = []
    for pid in pids:
        if _PROC.is_dir():
            argv = read_file(pid, "cmdline").decode(errors="replace").split("\0")
        else:
            argv = _call_psutil(pid, "cmdline", [])
        if any(tuple(argv[index : index + 2]) == _WORKER for index in range(1, 5)):
            ranks.append(pid)
    return ranks


def read_file(pid: int | str, name: str) -> bytes:
    """Return a file of a process (or of a thread: "PID/task/TID") in /proc, or b"" if it cannot be read."""
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""


def read_stat(pid: int | str, count: int = -1) -> list[bytes]:
    """Return the fields of proc_pid_stat(5) from the third (the state) onwards, or [] if the process has exited.

    Only the first ``count`` fields are split.
    """
    text = read_file(pid, "stat")
    return text[text.rfind(b")") + 2 :].split(None, count)  # the name may contain spaces and parentheses


def read_environment(pid: int) -> dict[bytes, bytes]:
    """Return the initial environment of a process, or {} if it cannot be read."""
    return dict(pair.split(b"=", 1) for pair in read_file(pid, "environ").split(b"\0") if b"=" in pair)


def has_handler(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal (SigCgt of proc_pid_status(5))."""
    caught = read_file(pid, "status").partition(b"\nSigCgt:")[2].split(b"\n", 1)[0]
    return bool(caught) and bool(int(caught, 16) >> (number - 1) & 1)


def find_stuck(pids: Iterable[int]) -> list[int]:
    """Return the processes with a thread in uninterruptible sleep (state D)."""
    tasks = {pid: (_PROC / str(pid) / "task").glob("*") for pid in pids}
    return [pid for pid in tasks if any(read_stat(f"{pid}/task/{task.name}", 1)[:1] == [b"D"] for task in tasks[pid])]


def adopt_orphans() -> None:
    """Become the parent of daemonized descendants, so that they can be found even without marks."""
    global _is_subreaper
    # A Python built without libffi has no ctypes; most orphans are still found by their marks.
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        pr_set_child_subreaper = 36  # include/uapi/linux/prctl.h
        _is_subreaper = ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0) == 0


# marks of processes in files -----------------------------------------------------------------------


@functools.cache
def identify_boot() -> str:
    """Return this machine's name and the id of its current boot, or "" if the id is unknown."""
    try:
        return f"{socket.gethostname()}/{(_PROC / 'sys/kernel/random/boot_id').read_text(encoding='ascii').strip()}"
    except OSError:
        return ""


def make_mark() -> str:
    """Return a permanent identifier of this process as JSON: host, boot id, pid and start time."""
    host, _, boot_id = identify_boot().partition("/")
    return json.dumps({"host": host, "boot": boot_id, "pid": os.getpid(), "started": _read_start_time(os.getpid())})


def _parse_mark(text: str) -> tuple[str, str, int, int]:
    """Return host and boot id of a mark, then its pid and start time, or zeros if it is from another boot or host."""
    try:
        mark = json.loads(text)
        host, boot_id, pid, started = str(mark["host"]), str(mark["boot"]), int(mark["pid"]), int(mark["started"])
    except (ValueError, TypeError, KeyError):
        return "", "", 0, 0
    is_same_boot = identify_boot() and f"{host}/{boot_id}" == identify_boot()
    return (host, boot_id, pid, started) if is_same_boot else (host, boot_id, 0, 0)


def find_other_host(text: str) -> str:
    """Return the host of the process that wrote a mark, or "" if it is this host or the mark is invalid."""
    host, boot_id, _pid, _started = _parse_mark(text)
    this_host, _, this_boot_id = identify_boot().partition("/")
    return "" if not this_host or host == this_host or boot_id == this_boot_id else host


def has_ended(text: str) -> bool:
    """Return whether the process that wrote a mark has provably exited (this host and boot only)."""
    _host, _boot_id, pid, started = _parse_mark(text)
    return bool(started) and (_read_start_time(pid) != started or read_stat(pid)[:1] == [b"Z"])


def signal_marked(text: str, number: int) -> bool:
    """Signal the process that wrote a mark, if it is provably still running here; return whether it was signaled."""
    _host, _boot_id, pid, started = _parse_mark(text)
    if not pid:
        return False
    with contextlib.suppress(OSError):
        # The descriptor refers to this process even if its pid is reused.
        process = os.pidfd_open(pid)
        try:
            if _read_start_time(pid) == started:
                signal.pidfd_send_signal(process, number)
                return True
        finally:
            os.close(process)
    return False


def _read_start_time(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, or 0 if it cannot be read."""
    fields = read_stat(pid)
    return int(fields[19]) if fields else 0  # field 22


# signals -------------------------------------------------------------------------------------------


def send_signal(pids: Iterable[int], number: int) -> None:
    """Signal each process; ignore processes that have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_all(
    find: Callable[[], Iterable[int]], timeout: float = 5.0, meanwhile: Callable[[], object] = int
) -> set[int]:
    """Kill the processes that ``find`` returns until none are left or ``timeout`` expires. Return those killed.

    ``meanwhile`` is called between polls.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + timeout
    while (remaining := set(find())) and time.monotonic() < deadline:
        killed |= remaining
        send_signal(remaining, signal.SIGKILL)
        meanwhile()
        time.sleep(_POLL_SECONDS)
    return killed


def kill_job(job: str, timeout: float = 5.0, *, orphans: bool = False) -> set[int]:
    """Kill all processes of a job here (see ``find_job_pids``) within ``timeout`` seconds. Return those killed."""
    return kill_all(lambda: find_job_pids({MARK: job}, orphans=orphans), timeout)


def get_signal_name(number: int) -> str:
    """Return ``"KILL"`` for 9, or the number itself if it has no name."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)


def get_signal_number(name: str) -> int:
    """Return 9 for ``"KILL"`` (the inverse of ``get_signal_name``), or 0 for an unknown signal."""
    number: int | None = getattr(signal, f"SIG{name}", None)
    return number or (int(name) if name.isdigit() else 0)


#: Timeout in seconds for a response.
TIMEOUT_SECONDS = 5.0
#: Seconds without new output after which a response is complete.
_QUIET_SECONDS = 0.15
#: Seconds to wait after the stacks for the line with the last collective operations.
_COLLECTIVES_TIMEOUT = 1.0
_COLLECTIVES_PREFIX = '{"collectives": '
#: Maximum bytes read of a response; a hundred threads with deep stacks need far less.
_MAX_BYTES = 2_000_000
_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "stopped by a debugger"}
_ENDED_MESSAGE = "Its process has ended."


@dataclass(frozen=True, slots=True)
class StackDump:
    """The stacks of a rank: ``text`` in the format of ``faulthandler``, or ``missing``, one sentence with the reason.

    ``state`` is the state of its process ("running", "sleeping"), "" if unknown. ``about`` is the first line of its
    file, ``collectives`` are its last collective operations (``worker.hooks.distributed``).
    """

    text: str = ""
    missing: str = ""
    state: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    collectives: list[dict[str, Any]] = field(default_factory=list)


class StackRequest:
    """A request to one rank, whose files are in ``folder``."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = Path(os.path.realpath(folder), f"rank-{rank}.stacks")
        self._started_at = self._grew_at = time.monotonic()
        self._size = self._offset = 0
        self._header = _read_header(self._path)
        self._state = ""
        self._problem = self._send_signal()

    def _send_signal(self) -> str:
        """Send the signal; return "", or why it was not sent."""
        if not self._header:
            return "Its process is still starting."
        pid, number = int(self._header["pid"]), int(self._header["signal"])
        if sys.platform == "linux":
            if self._has_ended(pid):
                return _ENDED_MESSAGE
            if self._state.startswith("stopped"):
                return f"Its process is {self._state}. To continue it, run on its machine: kill -CONT {pid}"
            if not has_handler(pid, number):
                name = read_file(pid, "comm").decode(errors="replace").strip()
                return f"Its process is now another program ({name or 'unknown'}), which has no stack traces."
            if Path(f"/proc/{pid}/fd/{self._header.get('fd')}").resolve() != self._path:
                return "It has closed the file for its stack traces."
        self._offset = _read_size(self._path)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return _ENDED_MESSAGE
        except PermissionError:
            return "Its process now belongs to another user."
        return ""

    def _has_ended(self, pid: int) -> bool:
        """Return whether the rank's process has exited; else update its state."""
        fields = read_stat(pid)
        letter, started = (fields[0].decode(), fields[19].decode()) if fields else ("", "")
        has_ended = letter in ("", "Z", "X") or started != self._header.get("start")
        self._state = "" if has_ended else _STATES.get(letter, "")
        return has_ended

    def poll(self) -> StackDump | None:
        """Return the complete response, or None while it is pending. After the timeout, it may be incomplete."""
        if self._problem:
            return self._build_dump(missing=self._problem)
        now, size = time.monotonic(), _read_size(self._path)
        if size != self._size:
            self._size, self._grew_at = size, now
        is_late = now - self._started_at > TIMEOUT_SECONDS
        if not is_late and (size <= self._offset or now - self._grew_at < _QUIET_SECONDS):
            return None
        text = ""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read(_MAX_BYTES).decode("utf-8", errors="replace")
        main = str(self._header.get("main") or "hread 0x")
        is_complete = text.endswith("\n") and (main in text or now - self._grew_at > 1.0)
        has_collectives = not self._header.get("collectives") or f"\n{_COLLECTIVES_PREFIX}" in text
        if text and (is_late or (is_complete and (has_collectives or now - self._grew_at > _COLLECTIVES_TIMEOUT))):
            return self._build_dump(text)
        if not is_late:
            return None
        if sys.platform == "linux" and self._has_ended(int(self._header["pid"])):
            return self._build_dump(missing=_ENDED_MESSAGE)
        state = f"; its process is {self._state}" if self._state else ""
        return self._build_dump(missing=f"No response within {TIMEOUT_SECONDS:.0f} s{state}.")

    def _build_dump(self, text: str = "", missing: str = "") -> StackDump:
        """Return the response with stacks and collective operations separated."""
        lines, collectives = text.splitlines(keepends=True), list[dict[str, Any]]()
        for line in lines:
            if line.startswith(_COLLECTIVES_PREFIX):
                with contextlib.suppress(ValueError, TypeError):
                    collectives = [row for row in json.loads(line)["collectives"] if isinstance(row, dict)]
        stacks = "".join(line for line in lines if not line.startswith(_COLLECTIVES_PREFIX))
        return StackDump(stacks, missing, self._state, self._header, collectives)


def _read_header(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        line = file.readline(10_000)
        header = json.loads(line) if line.endswith(b"\n") else None
        if isinstance(header, dict) and isinstance(header.get("pid"), int) and isinstance(header.get("signal"), int):
            return header
    return {}


def _read_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
