"""Explains the exit of a rank from its log: where it crashed, and its last error lines.

A process that crashes reports nothing, but ``faulthandler`` writes its stacks to stderr; a process that calls
``sys.exit(2)`` has usually printed the reason. Both become the rank's error, which is shown like an exception. The
error of a failed assertion in a GPU kernel does not name the assertion, but the kernel has printed it.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import stacks
from distdl_jupyter.core.failure import CRASHES, RankView
from distdl_jupyter.core.logfile import last_lines
from distdl_jupyter.core.stacks import Names, parse, sources
from distdl_jupyter.core.store import JobFolder

if TYPE_CHECKING:
    from distdl_jupyter.core.stacks import Frame, Thread

#: Maximum number of lines of a rank, and of bytes at the end of the log, to search: a dump has 100 lines per thread.
_MOST, _END = 10_000, 16 * 1024 * 1024
#: Maximum number of last error lines to show.
_SHOWN = 10
_FATAL = "Fatal Python error: "
#: Messages of C++ and glibc before they abort.
_ABORT_MESSAGE = re.compile(
    r"\s*what\(\):\s*(?P<what>.+)"
    r"|(?P<whole>(free|malloc|realloc|munmap_chunk|double free|corrupted)\b.+|.*Assertion .+ failed.*)"
)
#: Messages of a failed assertion in a GPU kernel (CUDA's assert, torch's kernels, Triton's device_assert).
_KERNEL_ASSERT = re.compile(
    r"(?P<file>\S+):(?P<line>\d+): .*block: \[[\d,]+\], thread: \[[\d,]+\] Assertion `(?P<what>.*)` failed"
)
_DEVICE_ASSERT = "device-side assert"
#: Gloo's message before it aborts because another rank has sent more than this one expects.
_MISMATCH = "Received data size doesn't match"
_MISMATCH_REMEDY = (
    "The ranks passed tensors of different shapes to one collective call. Check for uneven data (drop_last=True) and "
    "for sizes that depend on the rank."
)
_ASSERT_REMEDY = (
    "A check inside a GPU kernel failed, often because an index is out of range. To see the line that started the "
    "kernel, rerun the job with --env CUDA_LAUNCH_BLOCKING=1"
)
#: Code and remedy for messages of aborted processes.
_CRASHES = {
    _MISMATCH: ("collective-mismatch", _MISMATCH_REMEDY),
    _DEVICE_ASSERT: ("device-side-assert", _ASSERT_REMEDY),
}
_STDLIB = re.compile(r".*/lib/python3\.\d+(?=/)")
_WORKER = re.compile(r".*/distdl_jupyter/worker(?=/)")


def is_in_log(rank: RankView) -> bool:
    """Return whether the log may explain the exit of a rank."""
    if _has_crashed(rank):
        return True
    error = rank.error or {}
    return rank.ok is False and bool(error) and (_exit_code(error) or _is_device_assert(error))


def _has_crashed(rank: RankView) -> bool:
    return rank.signal in CRASHES and rank.ok is None


def error_of(folder: JobFolder, rank: RankView) -> dict[str, Any] | None:
    """Return the error of an exited rank if its log says more than the rank has reported, else None."""
    if _has_crashed(rank):
        return _crash(folder, rank)
    if rank.error and _is_device_assert(rank.error):
        return _with_kernel_assert(rank.error, folder, rank)
    if rank.error and is_in_log(rank):
        return _with_last_lines(rank.error, _error_lines(folder, rank))
    return None


def _error_lines(folder: JobFolder, rank: RankView) -> list[str]:
    lines, _ = last_lines(folder.log, _MOST, rank.rank, within=_END)
    return [line.text for line in lines if line.stream == "err"]


# checks inside GPU kernels ---------------------------------------------------------------------


def _is_device_assert(error: Mapping[str, Any]) -> bool:
    return error.get("code") == "device-side-assert"


def _with_kernel_assert(error: Mapping[str, Any], folder: JobFolder, rank: RankView) -> dict[str, Any] | None:
    """Return the error with the rank's first failed GPU kernel assertion."""
    lines, _ = last_lines(folder.log, _MOST, rank.rank, within=_END)
    line = next((match for line in lines if (match := _KERNEL_ASSERT.search(line.text)) is not None), None)
    if line is None:
        return None
    trace = str(error.get("traceback", "")).rstrip()
    return {
        **error,
        "hint": f"{_kernel_says(line)} {error.get('hint', '')}".strip(),
        "traceback": "\n".join([trace, "The GPU kernel printed:", line[0][:1000]]),
    }


def _kernel_says(line: re.Match[str]) -> str:
    file = line["file"].rpartition("/")[2]
    return f"The GPU kernel reported: `{line['what'][:300]}` failed in {file}, line {line['line']}."


# exits ----------------------------------------------------------------------------------------


def _exit_code(error: Mapping[str, Any]) -> bool:
    return error.get("type") == "SystemExit" and str(error.get("message", "")).isdecimal()


def _with_last_lines(error: Mapping[str, Any], lines: Sequence[str]) -> dict[str, Any] | None:
    shown = [line for line in lines if line.strip()][-_SHOWN:]
    if not shown:
        return None
    cause = next((line for line in reversed(shown) if "error" in line.lower()), shown[-1]).strip()
    trace = str(error.get("traceback", "")).rstrip()
    return {
        **error,
        "hint": f"Its output was: {cause}{'' if cause.endswith(('.', '!', '?')) else '.'}",
        "traceback": "\n".join([trace, "The last error lines:", *shown]),
    }


# crashes --------------------------------------------------------------------------------------


def _crash(folder: JobFolder, rank: RankView) -> dict[str, Any] | None:
    lines = _error_lines(folder, rank)
    begin = max((number for number, line in enumerate(lines) if line.startswith(_FATAL)), default=None)
    if begin is None:
        return None
    what = lines[begin].removeprefix(_FATAL).strip()
    thread = _crashed_thread(folder, "\n".join(lines[begin:]))
    frames = [frame for frame in reversed(thread.frames) if frame.kind != "worker"] if thread else []
    at = thread and (thread.user_frame or next(iter(thread.frames), None))
    message = _abort_message(lines[max(0, begin - 5) : begin])
    crash = f"{what}{f' in {_frame_location(at)}' if at else ''}{f' ({message})' if message else ''}"
    cells = stacks.payload(folder).get("sources") or {}
    code, remedy = next((about for text, about in _CRASHES.items() if text in message), ("", ""))
    error = {
        "type": what, "message": message, "crash": crash, "time": rank.ended, "values": [], "values_at": None,
        "code": code, "hint": remedy, "causes": [],
        "frames": [_data(frame, cells) for frame in frames],
        "traceback": _traceback(f"{what}{f': {message}' if message else ''}", frames),
    }  # fmt: skip
    if code == "device-side-assert":
        return _with_kernel_assert(error, folder, rank) or error
    return error


def _crashed_thread(folder: JobFolder, dump: str) -> Thread | None:
    """Return the crashed thread with its named frames, None if the dump has none."""
    payload = stacks.payload(folder)
    about = {"worker": _first(_WORKER, dump), "code": str(folder.code),
             "stdlib": _first(_STDLIB, dump) or sysconfig.get_paths()["stdlib"]}  # fmt: skip
    thread = next((candidate for candidate in parse(dump) if candidate.current), None)
    if thread is None:
        return None
    return Names(payload, about, sources(folder, payload, [(dump, about)])).thread(thread, main=True)


def _first(pattern: re.Pattern[str], dump: str) -> str:
    files = (frame.file for thread in parse(dump) for frame in thread.frames if "-packages/" not in frame.file)
    return next((match[0] for file in files if (match := pattern.match(file))), "")


def _abort_message(lines: Sequence[str]) -> str:
    message = next((match for line in reversed(lines) if (match := _ABORT_MESSAGE.match(line))), None)
    return (message["what"] or message["whole"]).strip()[:300] if message else ""


def _frame_location(frame: Frame) -> str:
    return frame.location + ("" if frame.function.startswith("<") else f", in {frame.function}")


def _data(frame: Frame, cells: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "file": frame.file, "line": frame.line, "function": frame.function, "kind": frame.kind, "label": frame.label,
        "cell": (cells.get(frame.file) or {}).get("cell"),
        "source": [[frame.line, frame.source]] if frame.source else [],
    }  # fmt: skip


def _traceback(what: str, frames: Sequence[Frame]) -> str:
    lines = ["Traceback (most recent call last):"] if frames else []
    for frame in frames:
        lines.append(f'  File "{frame.label or frame.file}", line {frame.line}, in {frame.function}')
        lines += [f"    {frame.source}"] if frame.source else []
    return "\n".join([*lines, what])
