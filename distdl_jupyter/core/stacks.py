"""Stack dumps of a job's ranks: parsed, labeled like tracebacks, and compared between ranks.

A job's folder has a snapshot as ``stacks/<number>.json``::

    {"t", "why", "ranks": {"0": {"text", "host", "pid", "state", "step", "silent", "about"}}, "missing": {"3": "why"},
     "sources": {file: {line: text}}, "collectives": {"0": {...}}, "ended": {"3": "finished"}}

``text`` is the output of ``faulthandler``, ``silent`` the seconds since the rank was active, ``about`` the rank's
description of itself (``worker.streams``), ``sources`` the lines of the user's files at that time, ``collectives`` the
last collective operations of each rank and ``ended`` the state of ranks that had ended (``core.collectives``).
"""

from __future__ import annotations

import itertools
import json
import linecache
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distdl_jupyter.core import collectives, redact
from distdl_jupyter.core.collectives import Collective, CollectiveFinding
from distdl_jupyter.core.humanize import ranks as format_ranks
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.worker.hooks.frameworks import COLLECTIVES

_THREAD = re.compile(r"(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?+) in (.*)')
#: faulthandler writes non-ASCII characters as \xe9, \u4e2d.
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
#: Functions of a library that only wrap its other functions.
_WRAPPERS = frozenset(("wrapper", "inner", "wrapped", "decorate_context"))
#: The file name of a cell compiled by a persistent rank: <in [7], 12>.
_REQUEST_CELL = re.compile(r"<(?!frozen |string>|stdin>)(.)(.*), \d+>")
#: The path of an installed package before its name.
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
#: Maximum number of characters of a source line.
_MAX_LINE_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Frame:
    """One call. ``line`` is 0 if it is unknown; in cells it is the notebook's line number.

    ``kind`` is cell, user, library or worker, or "" before ``FrameLabeler`` has set it. ``label`` is "In [7]" or a
    short path, ``source`` the line's text in the user's code, ``cell`` the cell's execution count, if available.
    """

    file: str
    line: int
    function: str
    kind: str = ""
    label: str = ""
    source: str = ""
    cell: int | None = None

    @property
    def is_user_code(self) -> bool:
        """Whether it is in the user's code."""
        return self.kind in ("cell", "user")

    @property
    def location(self) -> str:
        """The location for display: "In [7], line 12"."""
        return f"{self.label or self.file}{f', line {self.line}' if self.line else ''}"


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread, newest call first. The ``current`` thread received the signal, the ``main`` one runs the user's code.

    ``collective`` is the unfinished operation that the thread waits for, if its frames do not show the operation.
    """

    ident: str
    frames: tuple[Frame, ...] = ()
    name: str = ""
    current: bool = False
    main: bool = False
    collective: str = ""

    @property
    def user_frame(self) -> Frame | None:
        """The newest frame in the user's code, or None if there is none."""
        return next((frame for frame in self.frames if frame.is_user_code), None)

    @property
    def library_frames(self) -> tuple[Frame, ...]:
        """The library calls made by the user's newest call, newest first; all calls if there is none."""
        return tuple(itertools.takewhile(lambda frame: not frame.is_user_code, self.frames))

    @property
    def awaited_call(self) -> str:
        """The collective operation in which the thread waits for other ranks ("hvd.allreduce"), or ""."""
        if any(frame.file.startswith("<frozen importlib") for frame in self.library_frames):
            return ""  # the module is being imported, so nothing waits
        for frame in reversed(self.library_frames):
            module = next((module for folder, module in COLLECTIVES if f"/{folder}" in frame.file), "")
            if module and not frame.function.startswith(("_", "<")) and frame.function not in _WRAPPERS:
                return f"{module}.{frame.function}"
        return self.collective


def parse(text: str) -> tuple[Thread, ...]:
    """Return the threads in the output of ``faulthandler`` in order; if a thread is repeated, only the last one."""
    threads: dict[str, tuple[Thread, list[Frame]]] = {}
    frames: list[Frame] = []
    for line in text.splitlines():
        if (header := _THREAD.fullmatch(line)) is not None:
            frames = []
            threads.pop(header[2], None)
            threads[header[2]] = Thread(header[2], name=header[3] or "", current=header[1] != "Thread"), frames
        elif (call := _FRAME.fullmatch(line)) is not None:
            file, name = (_ESCAPE.sub(lambda match: chr(int(match[1][1:], 16)), call[part]) for part in (1, 3))
            frames.append(Frame(file, int(call[2]) if call[2].isdigit() else 0, name))
    return tuple(replace(thread, frames=tuple(calls)) for thread, calls in threads.values())


class FrameLabeler:
    """Classifies frames as cell, user's file, library or worker, and labels them as tracebacks do.

    ``payload`` is the job's payload.json, ``rank_info`` the rank's description, ``sources`` lines by file and number.
    """

    def __init__(self, payload: Mapping[str, Any], rank_info: Mapping[str, Any], sources: Mapping[str, Any]) -> None:
        self._cells: Mapping[str, Mapping[str, Any]] = payload.get("sources") or {}
        #: A cell that the rank compiles itself keeps the notebook's line numbers.
        self._compiled_file = payload.get("filename") if payload.get("kind") == "cell" else None
        folders = *(rank_info.get(name) for name in ("worker", "code", "stdlib")), payload.get("working_directory")
        # No path begins with \0.
        self._worker, self.code, self._stdlib, self._directory = (f"{path}/" if path else "\0" for path in folders)
        self._package, self._sources = self._worker.removesuffix("worker/"), sources

    def label_thread(self, thread: Thread, *, main: bool) -> Thread:
        """Return the thread with labeled frames, without frames of this package that the user's code calls.

        The omitted frames are hooks around calls of torch and Horovod; ``RankStacks.text`` contains all frames.
        """
        frames: list[Frame] = []
        for frame in reversed(thread.frames):
            kind, is_package = self.classify(frame.file), frame.file.startswith(self._package)
            if is_package and kind in ("worker", "library") and any(outer.is_user_code for outer in frames):
                continue
            is_startup = is_package or frame.file.startswith(("<frozen ", f"{self._stdlib}runpy.py"))
            if main and is_startup and all(outer.kind == "worker" for outer in frames):
                kind = "worker"  # callers of the user's code: this package and Python's startup
            frames.append(self._label(frame, kind))
        return replace(thread, frames=tuple(reversed(frames)), main=main)

    def classify(self, file: str) -> str:
        """Return whose code a file contains: cell, worker, user or library."""
        if file in self._cells or _REQUEST_CELL.fullmatch(file):
            return "cell"
        if file.startswith(self._worker):
            return "worker"
        is_library = _PACKAGES.match(file) or file.startswith((self._package, self._stdlib, "<"))
        return "library" if is_library and not file.startswith(self.code) else "user"

    def _label(self, frame: Frame, kind: str) -> Frame:
        if kind != "cell":
            source = self._sources.get(frame.file, {}).get(str(frame.line), "") if kind == "user" else ""
            label = _PACKAGES.sub("", frame.file)
            for root in (self.code, self._stdlib, self._directory):
                label = label.removeprefix(root)
            label = label if label != frame.file else frame.file.rpartition("/")[2]
            return replace(frame, kind=kind, label=label, source=source)
        cell, request = self._cells.get(frame.file, {}), _REQUEST_CELL.fullmatch(frame.file)
        shift = int(cell.get("first_line") or 1) - 1
        line = frame.line + shift if frame.line and frame.file != self._compiled_file else frame.line
        lines = str(cell.get("text", "")).split("\n")
        has_source = line and 0 <= line - 1 - shift < len(lines)
        source = redact.mask_text(lines[line - 1 - shift].strip()[:_MAX_LINE_LENGTH]) if has_source else ""
        label = str(cell.get("label") or (f"{request[1].upper()}{request[2]}" if request else frame.file))
        return replace(frame, kind=kind, label=label, line=line, source=source, cell=cell.get("cell"))


def read_sources(
    folder: JobFolder, payload: Mapping[str, Any], texts: Sequence[tuple[str, Mapping[str, Any]]]
) -> dict[str, dict[str, str]]:
    """Return the lines of the user's files that the dumps in ``texts`` refer to, each with its rank's description."""
    excerpts: dict[str, dict[str, str]] = {}
    linecache.checkcache()
    for text, rank_info in texts:
        labeler = FrameLabeler(payload, rank_info, {})
        for frame in (frame for thread in parse(text) for frame in thread.frames):
            # Modules that were sent with the job are in its folder.
            path = frame.file.replace(labeler.code, f"{folder.code}/")
            is_source = path.endswith(".py") and labeler.classify(frame.file) == "user"
            # Path.is_file may raise PermissionError.
            if is_source and os.path.isfile(path) and (line := linecache.getline(path, frame.line).strip()):  # noqa: PTH113
                excerpts.setdefault(frame.file, {})[str(frame.line)] = line[:_MAX_LINE_LENGTH]
    return excerpts


@dataclass(frozen=True, slots=True)
class RankStacks:
    """The threads of one rank. ``step`` is its last reported step, ``silent`` the seconds since it was active."""

    rank: int
    threads: tuple[Thread, ...]
    host: str = ""
    pid: int | None = None
    state: str = ""
    step: float | None = None
    silent: float | None = None
    text: str = ""

    @property
    def main(self) -> Thread:
        """The thread that runs the user's code."""
        return next((thread for thread in self.threads if thread.main), Thread("", main=True))

    @property
    def others(self) -> tuple[Thread, ...]:
        """The other threads that run code of the user or of libraries, without the worker's own."""
        others = [thread for thread in self.threads if thread.frames and not thread.main]
        return tuple(other for other in others if other.frames[0].kind != "worker" or other.user_frame is not None)


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks whose main threads are at the same position; ``thread`` is the main thread of the first rank."""

    ranks: tuple[int, ...]
    thread: Thread

    @property
    def position(self) -> str:
        """The position for display: "In [7], line 12", "hvd.allreduce (In [7], line 20)"."""
        frames, operation = self.thread.frames, self.thread.awaited_call
        if frames and all(frame.kind == "worker" for frame in frames):
            return "code outside the job"
        frame = self.thread.user_frame or next(iter(frames), None)
        location = "native code" if frame is None else frame.location
        return f"{operation} ({location})" if operation else location


@dataclass(frozen=True)
class StackSnapshot:
    """The stacks of all ranks at ``t`` (epoch seconds). ``why`` is request, stall, hang, time or failure.

    ``missing`` maps each rank that sent no stacks to the reason. ``finding`` is the conclusion from ``collectives``.
    """

    number: int
    t: float
    why: str
    ranks: dict[int, RankStacks] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    finding: CollectiveFinding | None = None

    @property
    def explanation(self) -> str:
        """Why the ranks wait and the remedy, as sentences, or "" if the operations do not explain it."""
        return f"{self.finding.text} {self.finding.remedy}" if self.finding is not None else ""

    def groups(self) -> tuple[RankGroup, ...]:
        """Return groups of ranks at the same position, smallest first; waiting groups last among equally large ones."""
        by_position: dict[object, list[int]] = {}
        for rank, stacks in sorted(self.ranks.items()):
            call, library = stacks.main.user_frame, stacks.main.library_frames[:1]
            operation = stacks.main.awaited_call or tuple((frame.file, frame.function) for frame in library)
            by_position.setdefault((call and (call.file, call.line), operation), []).append(rank)
        groups = [RankGroup(tuple(ranks), self.ranks[ranks[0]].main) for ranks in by_position.values()]
        # Of two otherwise equal groups, the one with the lower ranks comes last, because the last one is the reference.
        return tuple(sorted(groups, key=lambda g: (len(g.ranks), bool(g.thread.awaited_call), -g.ranks[0])))

    @property
    def outliers(self) -> tuple[int, ...]:
        """The ranks that are outside the last (largest) group, or sent no stacks."""
        return tuple(sorted({rank for group in self.groups()[:-1] for rank in group.ranks} | self.missing.keys()))

    @property
    def sentence(self) -> str:
        """Where the ranks are and which ranks they wait for, as a clause without a period, or "" without stacks."""
        groups, outliers = self.groups(), len(self.outliers)
        clauses = [f"{format_ranks(sorted(self.missing))} sent no stacks"] if self.missing else []
        for group in groups:
            call, is_single = group.thread.awaited_call, len(group.ranks) == 1
            verb = ("waits" if is_single else "wait") if call else ("is" if is_single else "are")
            # If other ranks wait in different operations, the last group waits for none of them in particular.
            if outliers and group is groups[-1] and call and not any(g.thread.awaited_call for g in groups[:-1]):
                verb += " for it" if outliers == 1 else " for them"
            clauses.append(f"{format_ranks(group.ranks)} {verb} in {group.position}")
        others = ", ".join([*clauses[:-1][:3], *(["..."] if len(clauses) > 4 else [])])
        return f"{others}, while {clauses[-1]}" if others else "".join(clauses)


def get_path(folder: JobFolder, number: int) -> Path:
    """Return the path of a snapshot."""
    return folder.path / "stacks" / f"{number}.json"


def list_numbers(folder: JobFolder) -> list[int]:
    """Return the numbers of all snapshots, the oldest first."""
    names = (file.stem for file in get_path(folder, 0).parent.glob("*.json"))
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())


def read(folder: JobFolder, number: int | None = None) -> StackSnapshot | None:
    """Return a snapshot of a job, the newest by default, or None if there is none or it cannot be read."""
    number = max(list_numbers(folder), default=0) if number is None else number
    try:
        data = json.loads(get_path(folder, number).read_text(encoding="utf-8"))
        return parse_snapshot(number, data, read_payload(folder))
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        return None


def parse_snapshot(number: int, data: Mapping[str, Any], code: Mapping[str, Any]) -> StackSnapshot:
    """Parse a snapshot; ``code`` is the job's payload. Raises LookupError, TypeError, ValueError, AttributeError."""
    sources, operations, lines = data.get("sources") or {}, {}, {}
    for key, report in (data.get("collectives") or {}).items():
        operations[int(key)], rank_info = collectives.parse_report(report)
        calls = [Frame(*call) for operation in operations[int(key)][:1] for call in operation.frames]
        thread = FrameLabeler(code, rank_info, sources).label_thread(Thread("", tuple(calls)), main=True)
        lines[int(key)] = thread.user_frame.location if thread.user_frame is not None else ""
    ended = {int(rank): str(state) for rank, state in (data.get("ended") or {}).items()}
    missing = {int(rank): str(reason) for rank, reason in (data.get("missing") or {}).items()}
    states = {int(rank): "" for rank in data["ranks"]} | dict.fromkeys((*missing, *operations), "") | ended
    last_calls = collectives.group_ranks(operations, states, lines)
    waiting = {rank: call.title for call in last_calls if call.state == "waiting" for rank in call.ranks}
    ranks, positions = {}, {}
    for rank, item in sorted((int(key), item) for key, item in data["ranks"].items()):
        labeler, threads = FrameLabeler(code, item.get("about") or {}, sources), parse(str(item["text"]))
        # CPython lists the newest thread first, so the main thread comes last.
        ident = (item.get("about") or {}).get("main")
        main = next((thread for thread in threads if thread.ident == ident), threads[-1] if threads else None)
        labeled = [labeler.label_thread(thread, main=thread is main) for thread in threads]
        labeled.sort(key=lambda thread: not thread.main)
        if labeled and any("/torch/" in frame.file for frame in labeled[0].library_frames):
            labeled[0] = replace(labeled[0], collective=waiting.get(rank, ""))
        details = {name: item.get(name) for name in ("pid", "step", "silent")}
        details |= {name: str(item.get(name) or "") for name in ("host", "state", "text")}
        ranks[rank] = RankStacks(rank, tuple(labeled), **details)
        frame = ranks[rank].main.user_frame
        if frame is not None and not ranks[rank].main.awaited_call:
            positions[rank] = f"{frame.location} ({frame.source})" if frame.source else frame.location
    finding = None if "raised" in ended.values() else collectives.explain(last_calls, operations, positions)
    return StackSnapshot(number, float(data["t"]), str(data.get("why", "request")), ranks, missing, last_calls, finding)


def read_payload(folder: JobFolder) -> dict[str, Any]:
    """Return the description of the code in the job's payload.json, or {} if it cannot be read."""
    try:
        data = json.loads((folder.path / "payload.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
