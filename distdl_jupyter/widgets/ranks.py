"""The display of a cell that runs on persistent ranks: its live output and the returned values.

Creating a widget would take longer than most of these cells. Instead, ``text/html`` and ``text/plain`` are sent at most
20 times a second, and less often if drawing is slow; a very short cell sends them once. The saved notebook contains the
last output. A terminal prints each line immediately. Values are shown in the MIME forms that the ranks created, so that
no value is unpickled in this process before the user accesses it.
"""

from __future__ import annotations

import contextvars
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from distdl_jupyter.core import humanize
from distdl_jupyter.jobs.output import publish
from distdl_jupyter.ranks import view
from distdl_jupyter.ranks.answer import Answer, Error, find_failures
from distdl_jupyter.ranks.view import OutputFold, render_text

#: Minimum number of seconds between two updates.
_MIN_PAUSE_SECONDS = 0.05
#: Minimum pause between two updates, as a multiple of the duration of an update.
_PAUSE_FACTOR = 8
#: Maximum number of rows drawn while the cell runs; at the end all rows are drawn.
_MAX_LIVE_ROWS = 200
#: Seconds after which a cell without output shows that it is running.
_SILENT_SECONDS = 1.0

#: The forms of a value by MIME type; text/plain is always present.
Forms = Mapping[str, str]


class CellDisplay:
    """The display of one cell. ``job`` is the short id of the ranks' job; ``quiet`` shows only failures."""

    def __init__(
        self, ranks: Sequence[int], job: str, *, quiet: bool = False, publish: Callable[..., None] = publish
    ) -> None:
        self._fold = OutputFold(ranks)
        self._job = job
        self._quiet = quiet
        self._publish = publish
        self._display_id = uuid.uuid4().hex
        self._start_time = time.monotonic()
        self._errors: dict[int, Error | None] = {}
        self._sentence = ""
        self._has_changed = self._is_closed = self._is_displayed = False
        self._pause = _MIN_PAUSE_SECONDS
        self._condition = threading.Condition()
        # Copy the context to the thread, because IPython finds the cell of an output by a context variable.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._draw_loop,), name="distdl-cell", daemon=True).start()

    def add(self, rank: int, stream: str, text: str) -> None:
        """Add a piece of a rank's output."""
        if not self._quiet:
            with self._condition:
                self._fold.add(rank, stream, text)
                self._mark_changed()

    def mark_done(self, rank: int, error: Error | None) -> None:
        """Record that a rank has finished the cell. A failure is shown while the other ranks continue."""
        with self._condition:
            self._errors[rank] = error
            if error is not None:
                self._mark_changed()

    def show_sentence(self, sentence: str) -> None:
        """Show a sentence about the cell until the next sentence or the end of the cell."""
        with self._condition:
            self._sentence = sentence
            self._mark_changed()

    def finish(self) -> bool:
        """Show the final state; return True, because the display shows failures in full."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
            self._fold.close()
            is_silent = not self._fold.total and not any(self._errors.values())
            if not is_silent:
                self._draw("", None)
            elif self._is_displayed:
                elapsed = humanize.seconds_taken(time.monotonic() - self._start_time)
                self._draw(f"Ran for {elapsed} on {humanize.name_ranks(self._fold.ranks)}.", None)
        return True

    def _mark_changed(self) -> None:
        self._has_changed = True
        self._condition.notify()

    def _draw_loop(self) -> None:
        """Draw changes until the end of the cell, and its elapsed time once a second."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._has_changed or self._is_closed, _SILENT_SECONDS)
            time.sleep(self._pause if not self._is_closed else 0)
            with self._condition:
                if self._is_closed:
                    return
                self._has_changed = False
                elapsed, status = time.monotonic() - self._start_time, self._sentence
                if not status and (elapsed >= _SILENT_SECONDS or any(self._errors.values())):
                    status = view.describe_running(self._fold.ranks, sorted(self._errors), elapsed)
                self._draw(status, _MAX_LIVE_ROWS)

    def _draw(self, status: str, newest: int | None) -> None:
        start = time.perf_counter()
        errors = {rank: error for rank, error in self._errors.items() if error is not None}
        failure = find_failures(errors, self._fold.ranks)
        html = view.render_cell(self._fold, failure, job=self._job, status=status, newest=newest)
        plain = render_text(self._fold, failure, job=self._job, newest=newest)
        bundle = {"text/html": html, "text/plain": "\n".join(part for part in (plain, status) if part)}
        self._publish(bundle, self._display_id, self._is_displayed)
        self._is_displayed = True
        self._pause = max(_MIN_PAUSE_SECONDS, _PAUSE_FACTOR * (time.perf_counter() - start))


class TerminalDisplay:
    """The output in a terminal: each line with its rank."""

    def __init__(self, ranks: Sequence[int], *, quiet: bool = False) -> None:
        self._has_several_ranks = len(ranks) > 1
        self._quiet = quiet
        self._incomplete: dict[tuple[int, str], str] = {}

    def add(self, rank: int, stream: str, text: str) -> None:
        """Print complete lines."""
        if self._quiet:
            return
        *complete_lines, self._incomplete[rank, stream] = (self._incomplete.get((rank, stream), "") + text).split("\n")
        for line in complete_lines:
            self._print(rank, line)

    def mark_done(self, rank: int, error: Error | None) -> None:
        """Print an incomplete last line."""
        for stream in ("out", "err"):
            if incomplete_line := self._incomplete.pop((rank, stream), ""):
                self._print(rank, incomplete_line)

    def show_sentence(self, sentence: str) -> None:
        """Print a sentence about the cell."""
        print(sentence, flush=True)  # noqa: T201 - the terminal is the output

    def finish(self) -> bool:
        """Print incomplete last lines; return False, because the exception shows the failures."""
        for rank, _stream in sorted(self._incomplete):
            self.mark_done(rank, None)
        return False

    def _print(self, rank: int, line: str) -> None:
        print(f"[{rank}] {line}" if self._has_several_ranks else line, flush=True)  # noqa: T201


class _ValueDisplay:
    """Displays the forms of values by rank; the values of an answer are unpickled only when one of them is accessed."""

    def __init__(self, answer: Answer, forms: Mapping[int, Forms]) -> None:
        self._answer = answer
        self._forms = forms

    def __len__(self) -> int:
        return len(self._forms)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 - IPython's protocol
        # In a tuple or a list, the values share a line with other objects.
        is_top_level = not printer.output_width and not printer.buffer_width
        printer.text(format_groups(group_forms(self._forms)) if is_top_level else repr(self))

    def _repr_html_(self) -> str:
        return view.render_values(group_forms(self._forms))

    # IPython uses the first of __repr__ and _repr_pretty_ in the order of the classes, so this class defines both.
    def __repr__(self) -> str:
        texts = {rank: forms.get("text/plain", "None") for rank, forms in self._forms.items()}
        if isinstance(self, Sequence):
            return f"[{', '.join(texts.values())}]"
        return f"{{{', '.join(f'{rank}: {text}' for rank, text in texts.items())}}}"


class RankValues(_ValueDisplay, Sequence[Any]):
    """The value of every rank, in order of rank."""

    def __getitem__(self, index: Any) -> Any:
        rank, values = range(len(self))[index], self._answer.values
        return values[rank] if isinstance(rank, int) else [values[number] for number in rank]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list


class ValuesByRank(_ValueDisplay, Mapping[int, Any]):
    """The values of some ranks, by rank."""

    def __getitem__(self, rank: int) -> Any:
        return self._answer.values[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._forms)


def group_forms(forms: Mapping[int, Forms]) -> list[tuple[tuple[int, ...], Forms]]:
    """Return (ranks, forms) for each distinct text, in the order of their first ranks."""
    groups: dict[str, list[int]] = {}
    for rank in sorted(forms):
        groups.setdefault(forms[rank].get("text/plain", "None"), []).append(rank)
    return [(tuple(ranks), forms[ranks[0]]) for ranks in groups.values()]


def format_groups(groups: Sequence[tuple[Sequence[int], Forms]]) -> str:
    """Return lines such as ``[0-3] 0.25``; further lines of a value are aligned with its first line."""
    prefixes = [f"[{humanize.format_spans(ranks)}]" for ranks, _ in groups]
    width = max(map(len, prefixes), default=0)
    lines = []
    for prefix, (_, forms) in zip(prefixes, groups, strict=True):
        first, *continuation = forms.get("text/plain", "None").split("\n")
        lines += [f"{prefix:<{width}} {first}", *(f"{'':<{width}} {line}" for line in continuation)]
    return "\n".join(lines)
