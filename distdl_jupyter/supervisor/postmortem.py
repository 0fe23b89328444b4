"""Explains the exit of a rank from its log: where it crashed, and its last error lines.

A process that crashes reports nothing, but ``faulthandler`` writes its stacks to stderr; a process that calls
``sys.exit(2)`` has usually printed the reason. Both become the rank's error, which is shown like an exception. The
error of a failed assertion in a GPU kernel does not name the assertion, but the kernel has printed it.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Mapping, Sequence
from typing import Any

from distdl_jupyter.core import stacks
from distdl_jupyter.core.failure import CRASHES, RankView
from distdl_jupyter.core.logfile import read_last_lines
from distdl_jupyter.core.stacks import FrameLabeler, Thread, parse, read_sources
from distdl_jupyter.core.store import JobFolder

#: Maximum number of lines of a rank, and of bytes at the end of the log, to search: a dump has 100 lines per thread.
_MAX_LINES, _MAX_BYTES = 10_000, 16 * 1024 * 1024
#: Maximum number of last error lines to show.
_MAX_LAST_LINES = 10
_FATAL_PREFIX = "Fatal Python error: "
#: Messages of C++ and glibc before they abort.
_ABORT_PATTERN = re.compile(
    r"\s*what\(\):\s*(?P<what>.+)"
    r"|(?P<whole>(free|malloc|realloc|munmap_chunk|double free|corrupted)\b.+|.*Assertion .+ failed.*)"
)
#: Messages of a failed assertion in a GPU kernel (CUDA's assert, torch's kernels, Triton's device_assert).
_KERNEL_ASSERT_PATTERN = re.compile(
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
    "An assertion in a GPU kernel failed, often because an index is out of range. To see the line that started the "
    "kernel, rerun the job with --env CUDA_LAUNCH_BLOCKING=1"
)
#: Code and remedy for messages of aborted processes.
_CRASHES = {
    _MISMATCH: ("collective-mismatch", _MISMATCH_REMEDY),
    _DEVICE_ASSERT: ("device-side-assert", _ASSERT_REMEDY),
}
#: The paths of the worker and of the standard library in the path of a file.
_FOLDERS = (re.compile(r".*/distdl_jupyter/worker(?=/)"), re.compile(r".*/lib/python3\.\d+(?=/)"))


def explain_exit(folder: JobFolder, rank: RankView) -> dict[str, Any] | None:
    """Return the error of an exited rank if its log says more than the rank has reported, else None."""
    error = (rank.error if rank.ok is False else None) or {}
    has_crashed = rank.signal in CRASHES and rank.ok is None
    has_exit_code = error.get("type") == "SystemExit" and str(error.get("message", "")).isdecimal()
    if not has_crashed and not has_exit_code and error.get("code") != "device-side-assert":
        return None
    lines = read_last_lines(folder.log, _MAX_LINES, rank.rank, within=_MAX_BYTES)[0]
    error_lines = [line.text for line in lines if line.stream == "err"]
    if has_exit_code:
        return _add_last_lines(error, error_lines)
    crash = _build_crash_error(folder, rank, error_lines) if has_crashed else None
    if (crash or error).get("code") == "device-side-assert":
        return _add_kernel_assert(crash or error, [line.text for line in lines]) or crash
    return crash


def _add_kernel_assert(error: Mapping[str, Any], lines: Sequence[str]) -> dict[str, Any] | None:
    """Return the error with the rank's first failed GPU kernel assertion."""
    line = next((match for line in lines if (match := _KERNEL_ASSERT_PATTERN.search(line)) is not None), None)
    if line is None:
        return None
    file = line["file"].rpartition("/")[2]
    cause = f"The GPU kernel reported: `{line['what'][:300]}` failed in {file}, line {line['line']}."
    trace = "\n".join([str(error.get("traceback", "")).rstrip(), "The GPU kernel printed:", line[0][:1000]])
    return {**error, "hint": f"{cause} {error.get('hint', '')}".strip(), "traceback": trace}


def _add_last_lines(error: Mapping[str, Any], lines: Sequence[str]) -> dict[str, Any] | None:
    """Return the error of a rank that exited with a code, with the last lines that it printed to stderr."""
    printed = [line for line in lines if line.strip()][-_MAX_LAST_LINES:]
    if not printed:
        return None
    cause = next((line for line in reversed(printed) if "error" in line.lower()), printed[-1]).strip()
    hint = f"Its output was: {cause}{'' if cause.endswith(('.', '!', '?')) else '.'}"
    trace = "\n".join([str(error.get("traceback", "")).rstrip(), "The last error lines:", *printed])
    return {**error, "hint": hint, "traceback": trace}


def _build_crash_error(folder: JobFolder, rank: RankView, lines: Sequence[str]) -> dict[str, Any] | None:
    """Return the error of a rank that a signal ended, from the stacks in its lines, or None if it has printed none."""
    begin = max((number for number, line in enumerate(lines) if line.startswith(_FATAL_PREFIX)), default=None)
    if begin is None:
        return None
    title, payload = lines[begin].removeprefix(_FATAL_PREFIX).strip(), stacks.read_payload(folder)
    thread = _find_crashed_thread(folder, payload, "\n".join(lines[begin:]))
    frames = [frame for frame in reversed(thread.frames) if frame.kind != "worker"] if thread else []
    top = thread and (thread.user_frame or next(iter(thread.frames), None))
    function = "" if not top or top.function.startswith("<") else f", in {top.function}"
    location = f" in {top.location}{function}" if top else ""
    preceding = reversed(lines[max(0, begin - 5) : begin])
    match = next((match for line in preceding if (match := _ABORT_PATTERN.match(line))), None)
    message = (match["what"] or match["whole"]).strip()[:300] if match else ""
    code, remedy = next((entry for text, entry in _CRASHES.items() if text in message), ("", ""))
    trace = ["Traceback (most recent call last):"] if frames else []
    frame_fields = []
    for frame in frames:
        trace.append(f'  File "{frame.label or frame.file}", line {frame.line}, in {frame.function}')
        trace += [f"    {frame.source}"] if frame.source else []
        cell = (payload.get("sources") or {}).get(frame.file) or {}
        fields = {"file": frame.file, "line": frame.line, "function": frame.function, "kind": frame.kind}
        fields |= {"label": frame.label, "cell": cell.get("cell")}
        frame_fields.append({**fields, "source": [[frame.line, frame.source]] if frame.source else []})
    trace.append(f"{title}{f': {message}' if message else ''}")
    crash = f"{title}{location}{f' ({message})' if message else ''}"
    error = {"type": title, "message": message, "crash": crash, "time": rank.ended, "traceback": "\n".join(trace)}
    error |= {"code": code, "hint": remedy, "frames": frame_fields, "values": [], "values_at": None, "causes": []}
    return error


def _find_crashed_thread(folder: JobFolder, payload: dict[str, Any], dump: str) -> Thread | None:
    """Return the crashed thread with its named frames, or None if the dump has none."""
    threads = parse(dump)
    thread = next((candidate for candidate in threads if candidate.current), None)
    if thread is None:
        return None
    files = [frame.file for other in threads for frame in other.frames if "-packages/" not in frame.file]
    worker, stdlib = (next((match[0] for file in files if (match := pattern.match(file))), "") for pattern in _FOLDERS)
    paths = {"worker": worker, "code": str(folder.code), "stdlib": stdlib or sysconfig.get_paths()["stdlib"]}
    return FrameLabeler(payload, paths, read_sources(folder, payload, [(dump, paths)])).label_thread(thread, main=True)
