"""What a cell shows that runs on persistent ranks: its output while it runs, and the values that its ranks return.

A widget would cost more than most of these cells take. Instead ``text/html`` and ``text/plain`` are sent, at most 20
times a second and less often where drawing takes long; a cell that ends at once sends them once. What is sent last
stays in the saved notebook. In a terminal the lines are printed as they come. Values are shown in the forms that each
rank made of its own value, so that nothing is compared, formatted or imported here before a value is used.
"""

from __future__ import annotations

import contextvars
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

from distdl_jupyter.core import humanize
from distdl_jupyter.jobs.output import publish
from distdl_jupyter.ranks import html as saved
from distdl_jupyter.ranks.answer import Error, Failures, failures, named, spans
from distdl_jupyter.ranks.view import Fold, text

#: Seconds between two drawings, at least; and how many times as long as one drawing takes.
_PAUSE = 0.05
_REST = 8
#: Rows that are drawn while more may come; at the end all that are kept.
_NEWEST_LIVE = 200
#: Seconds after which a cell that prints nothing shows that it runs.
_SILENT = 1.0

Publish = Callable[[dict[str, Any], str, bool], None]
#: Forms of a value by MIME type, always with text/plain.
Forms = Mapping[str, str]


class CellOutput:
    """The display of one cell. ``job`` is the short id of the ranks' job; ``quiet`` shows failures only."""

    def __init__(self, ranks: Sequence[int], job: str, *, quiet: bool = False, publish: Publish = publish) -> None:
        self._fold = Fold(ranks)
        self._job = job
        self._quiet = quiet
        self._publish = publish
        self._display_id = uuid.uuid4().hex
        self._begun = time.monotonic()
        self._ended: dict[int, Error | None] = {}
        self._sentence = ""
        self._changed = self._closed = self._displayed = False
        self._pause = _PAUSE
        self._condition = threading.Condition()
        # The drawing thread belongs to the cell: IPython finds the cell by a context variable.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._draw_on,), name="distdl-cell", daemon=True).start()

    def add(self, rank: int, stream: str, text: str) -> None:
        """Take in a piece of what a rank printed."""
        if not self._quiet:
            with self._condition:
                self._fold.add(rank, stream, text)
                self._touch()

    def done(self, rank: int, error: Error | None) -> None:
        """Take in that a rank has come to the cell's end, or failed, which is shown while the others go on."""
        with self._condition:
            self._ended[rank] = error
            if error is not None:
                self._touch()

    def say(self, sentence: str) -> None:
        """Show a sentence about the cell until the next one or the end."""
        with self._condition:
            self._sentence = sentence
            self._touch()

    def finish(self) -> bool:
        """Show the end; returns True: failures are told in full."""
        with self._condition:
            self._closed = True
            self._condition.notify()
            self._fold.close()
            failed = self._failed()
            if not self._fold.empty or failed is not None or self._displayed:
                self._draw(self._bundle(failed, self._last_words(failed), None))
        return True

    def _failed(self) -> Failures | None:
        errors = {rank: error for rank, error in self._ended.items() if error is not None}
        return failures(errors, self._fold.ranks)

    def _touch(self) -> None:
        if not self._changed:
            self._changed = True
            self._condition.notify()

    def _last_words(self, failed: Failures | None) -> str:
        """Return what is left to say of a cell that showed that it runs and then printed nothing."""
        if not self._fold.empty or failed is not None:
            return ""
        return f"Ran for {humanize.seconds_taken(time.monotonic() - self._begun)} on {named(self._fold.ranks)}."

    def _draw_on(self) -> None:
        """Draw what changed, and once a second how long it takes already, until the end."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._changed or self._closed, _SILENT)
            time.sleep(self._pause if not self._closed else 0)
            with self._condition:
                if self._closed:
                    return
                self._changed = False
                self._draw(self._bundle(self._failed(), self._status(), _NEWEST_LIVE))

    def _status(self) -> str:
        spent = time.monotonic() - self._begun
        if self._sentence:
            return self._sentence
        if spent < _SILENT and not any(self._ended.values()):
            return ""
        return saved.running(self._fold.ranks, sorted(self._ended), spent)

    def _bundle(self, failed: Failures | None, status: str, newest: int | None) -> dict[str, Any]:
        html = saved.cell(self._fold, failed, job=self._job, status=status, newest=newest)
        plain = text(self._fold, failed, job=self._job, newest=newest)
        return {"text/html": html, "text/plain": "\n".join(part for part in (plain, status) if part)}

    def _draw(self, bundle: dict[str, Any]) -> None:
        begun = time.perf_counter()
        self._publish(bundle, self._display_id, self._displayed)
        self._displayed = True
        self._pause = max(_PAUSE, _REST * (time.perf_counter() - begun))


class PrintedOutput:
    """The same for a terminal: each line with its rank, as it comes."""

    def __init__(self, ranks: Sequence[int], *, quiet: bool = False) -> None:
        self._many = len(ranks) > 1
        self._quiet = quiet
        self._open: dict[tuple[int, str], str] = {}

    def add(self, rank: int, stream: str, text: str) -> None:
        """Print the lines that are whole."""
        if self._quiet:
            return
        *whole, self._open[rank, stream] = (self._open.get((rank, stream), "") + text).split("\n")
        for line in whole:
            self._print(rank, line)

    def done(self, rank: int, error: Error | None) -> None:
        """Print a line that has not ended."""
        for stream in ("out", "err"):
            if rest := self._open.pop((rank, stream), ""):
                self._print(rank, rest)

    def say(self, sentence: str) -> None:
        """Print a sentence about the cell."""
        print(sentence, flush=True)  # noqa: T201 - the terminal is the output

    def finish(self) -> bool:
        """Leave failures to the exception."""
        for rank, _stream in sorted(self._open):
            self.done(rank, None)
        return False

    def _print(self, rank: int, line: str) -> None:
        print(f"[{rank}] {line}" if self._many else line, flush=True)  # noqa: T201


#: Shows the ranks of a cell: on a page, or in a terminal.
Output = CellOutput | PrintedOutput


class _ValueDisplay:
    """Shows forms by rank; a value itself is opened only when it is used."""

    _values: Mapping[int, Any]
    _forms: Mapping[int, Forms]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 - IPython's protocol
        # Inside a tuple or list it is on a line with others.
        alone = not printer.output_width and not printer.buffer_width
        printer.text(as_text(folded(self._forms)) if alone else repr(self))

    def _repr_html_(self) -> str:
        return saved.values(folded(self._forms))

    def __repr__(self) -> str:
        texts = {rank: _plain(self._forms.get(rank, {})) for rank in self._values}
        inside = ", ".join(text if isinstance(self, Sequence) else f"{rank}: {text}" for rank, text in texts.items())
        return f"[{inside}]" if isinstance(self, Sequence) else f"{{{inside}}}"


class Values(_ValueDisplay, Sequence[Any]):
    """The value of every rank, in order of rank."""

    def __init__(self, values: Mapping[int, Any], forms: Mapping[int, Forms]) -> None:
        self._values = values
        self._forms = forms

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...

    def __getitem__(self, at: int | slice) -> Any:
        rank = range(len(self))[at]
        return [self._values[one] for one in rank] if isinstance(rank, range) else self._values[rank]

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list


class ValuesOf(_ValueDisplay, Mapping[int, Any]):
    """The values of some ranks, by rank."""

    def __init__(self, values: Mapping[int, Any], forms: Mapping[int, Forms]) -> None:
        self._values = values
        self._forms = forms

    def __getitem__(self, rank: int) -> Any:
        return self._values[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def folded(forms: Mapping[int, Forms]) -> list[tuple[tuple[int, ...], Forms]]:
    """Return (ranks, forms) with those folded whose text is equal, in order of their first rank."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(forms):
        groups.setdefault(_plain(forms[rank]), []).append(rank)
    return [(tuple(ranks), forms[ranks[0]]) for ranks in groups.values()]


def as_text(groups: Sequence[tuple[Sequence[int], Forms]]) -> str:
    """Return lines such as ``[0-3] 0.25``; further lines of a value are below its first."""
    heads = [f"[{spans(ranks)}]" for ranks, _ in groups]
    width = max(map(len, heads), default=0)
    lines = []
    for head, (_, forms) in zip(heads, groups, strict=True):
        first, *more = _plain(forms).split("\n")
        lines += [f"{head:<{width}} {first}", *(f"{'':<{width}} {line}" for line in more)]
    return "\n".join(lines)


def _plain(forms: Forms) -> str:
    return forms.get("text/plain", "None")
