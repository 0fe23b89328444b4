"""One thread's stack as ``faulthandler`` writes it: read, and asked where the user's code stands in it.

Pure: text in, threads out. Whose code a call is says ``core.stacknames``.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from distdl_jupyter.worker.hooks.frameworks import COLLECTIVES

_THREAD = re.compile(r"(Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?+) in (.*)')
_ESCAPED = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
#: Calls inside a library by which its own functions are only wrapped.
_WRAPPERS = frozenset(("wrapper", "inner", "wrapped", "decorate_context"))


@dataclass(frozen=True, slots=True)
class Frame:
    """One call. ``line`` is 0 where it is not known, and counts as the notebook does in cells.

    ``kind`` is cell, user, library or worker ("" before ``core.stacknames`` said it); ``label`` is "In [7]" or a short
    path, ``source`` the line's text for the user's own code, where it could be read.
    """

    file: str
    line: int
    function: str
    kind: str = ""
    label: str = ""
    source: str = ""
    #: The execution count of its cell, None where that is not known.
    cell: int | None = None

    @property
    def own(self) -> bool:
        """Whether it is the user's code."""
        return self.kind in ("cell", "user")

    @property
    def place(self) -> str:
        """Where it is, as people say it: "In [7], line 12"."""
        return f"{self.label or self.file}, line {self.line}" if self.line else self.label or self.file


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread, its newest call first. ``current`` is the one that took the signal, ``main`` runs the user's code.

    ``collective`` is the unfinished operation that it waits for where its frames do not show it.
    """

    ident: str
    frames: tuple[Frame, ...] = ()
    name: str = ""
    current: bool = False
    main: bool = False
    collective: str = ""

    @property
    def own(self) -> Frame | None:
        """The newest call of the user's own code, None without any."""
        return next((frame for frame in self.frames if frame.own), None)

    @property
    def inside(self) -> tuple[Frame, ...]:
        """The calls of libraries that the user's newest call has led to, newest first; all without one."""
        found = []
        for frame in self.frames:
            if frame.own:
                break
            found.append(frame)
        return tuple(found)

    @property
    def is_workers(self) -> bool:
        """Whether the worker itself has started it, or nothing of Python runs in it."""
        return not self.frames or self.frames[0].kind == "worker"

    @property
    def waits_in(self) -> str:
        """The collective operation in which it waits for other ranks ("hvd.allreduce"), "" for none."""
        if any(frame.file.startswith("<frozen importlib") for frame in self.inside):
            return ""  # such a module is being imported, which waits for nobody
        for frame in reversed(self.inside):
            for folder, module in COLLECTIVES:
                if f"/{folder}" in frame.file and not frame.function.startswith(("_", "<")) and (
                    frame.function not in _WRAPPERS
                ):  # fmt: skip
                    return f"{module}.{frame.function}"
        return self.collective

    @property
    def key(self) -> tuple[object, ...]:
        """What threads that stand at the same place have in common."""
        own, newest = self.own, next(iter(self.frames), None)
        library = () if newest is None or newest.own else (newest.file, newest.function)
        return (None if own is None else (own.file, own.line), self.waits_in or library)


def parse(text: str) -> tuple[Thread, ...]:
    """Return the threads of a text of ``faulthandler``, in its order; of a thread that stands there twice the last.

    Lines that are neither a thread's nor a frame's are left out. The frames have no kind and no label yet.
    """
    found: dict[str, Thread] = {}
    frames: list[Frame] = []
    for line in text.splitlines():
        if (head := _THREAD.fullmatch(line)) is not None:
            frames = []
            found.pop(head[2], None)
            found[head[2]] = Thread(head[2], name=head[3] or "", current=head[1] != "Thread")
        elif found and (call := _FRAME.fullmatch(line)) is not None:
            frames.append(Frame(_plain(call[1]), int(call[2]) if call[2].isdigit() else 0, _plain(call[3])))
            ident = next(reversed(found))
            found[ident] = dataclasses.replace(found[ident], frames=tuple(frames))
    return tuple(found.values())


def _plain(text: str) -> str:
    r"""Return a name with its characters: ``faulthandler`` writes those beyond ASCII as \xe9, \u4e2d."""
    return _ESCAPED.sub(lambda found: chr(int(found[1][1:], 16)), text)
