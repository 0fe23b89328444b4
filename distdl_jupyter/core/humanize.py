"""Formats times, sizes, counts, numbers, states, lines of output and tables in the same way for all front ends.

Callers must escape a user's text for HTML. ``printable`` and ``styled`` make a line of a program's output safe to
display: escape sequences are removed, control characters become visible symbols, and characters after a backspace or
carriage return overwrite earlier ones, as in a terminal.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby, pairwise
from typing import Any

from distdl_jupyter.core.events import PHASES, State

#: The display state of a job that makes no progress.
STALLED = "stalled"
#: The shape of each display state, so that states can be distinguished without colour, and its character in terminals.
_SHAPES = {
    "queued": ("dashed-ring", "◌"),
    "preparing": ("arc", "◔"),
    "starting": ("arc", "◔"),
    "running": ("disc", "●"),
    "canceling": ("slashed-ring", "⊘"),
    "completed": ("tick", "✓"),
    "failed": ("cross", "✗"),
    "canceled": ("slashed-ring", "⊘"),
    "lost": ("question", "?"),
    STALLED: ("exclamation", "!"),
}
STATE_SHAPES = {state: shape for state, (shape, _) in _SHAPES.items()}
STATE_SIGNS = {state: sign for state, (_, sign) in _SHAPES.items()}
#: The label of each display state.
STATE_LABELS = {state: state.capitalize() for state in _SHAPES}
#: The label of each phase of the startup.
PHASE_LABELS: dict[str, str] = {**{phase: phase.capitalize() for phase in PHASES}, "clean": "Clean up"}
TIMES = "\N{MULTIPLICATION SIGN}"
#: Units of time with their lengths in seconds, the longest first.
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def display_state(state: State | str, *, stalled: bool) -> str:
    """Return the display state: ``STALLED`` for a started job that makes no progress, else the state."""
    return STALLED if stalled and state in (State.STARTING, State.RUNNING) else str(state)


def duration(seconds: float) -> str:
    """Return a time span in whole seconds, two units at most: ``52 s``, ``1 min 21 s``, ``2 h 5 min``."""
    total = round(max(0.0, seconds))
    for (length, unit), (part, part_unit) in pairwise(_UNITS):
        if total >= length:
            remainder = total % length // part
            return f"{total // length} {unit} {remainder} {part_unit}" if remainder else f"{total // length} {unit}"
    return f"{total} s"


def ran_and_waited(ran: float, waited: float) -> str:
    """Return how long a job ran and waited in a queue: ``3 s``, ``ran 3 s, waited 47 s``."""
    return f"ran {duration(ran)}, waited {duration(waited)}" if waited else duration(ran)


def seconds_taken(seconds: float) -> str:
    """Return a short span with tenths, as shown for phases: ``0.4 s``, ``3.5 s``; at or above 10 s as ``duration``."""
    return f"{max(0.0, seconds):.1f} s" if seconds < 9.95 else duration(seconds)


def ago(seconds: float) -> str:
    """Return the time since something happened, in one unit: ``3 s ago``, ``41 min ago``, ``2 d ago``."""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now"


def size(byte_count: float) -> str:
    """Return a size in decimal units: ``312 B``, ``2.1 kB``, ``927 kB``, ``1.2 MB``."""
    value, unit = float(byte_count), 0
    while round(value) >= 1000 and unit < len(_SIZE_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_SIZE_UNITS[unit]}" if unit == 0 or value >= 9.95 else f"{value:.1f} {_SIZE_UNITS[unit]}"


def count(value: float) -> str:
    """Return a count or a step with thousands separators: ``1,200``; ``0.5`` if it is not a whole number."""
    if not math.isfinite(value):
        return number(value)
    return f"{value:,.0f}" if value == int(value) else f"{value:,.6g}"


def number(value: float) -> str:
    """Return a value in about three digits: ``0.114``, ``0.040``, ``2.30``, ``47.2``, ``2,065``, ``3.1e-5``, ``nan``.

    Whole numbers stay whole (``62``). From 0.01 to 1 there are three decimals, so that columns keep their width.
    """
    if not math.isfinite(value):
        return repr(float(value))
    magnitude = abs(value)
    if magnitude >= 1e9 or 0 < magnitude < 0.001:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if value == int(value) or magnitude >= 999.5:
        return f"{value + 0.0:,.0f}"
    if magnitude < 0.00995:
        return f"{value:.3g}"
    decimals = 3 if magnitude < 0.9995 else 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
    return f"{value:.{decimals}f}"


def money(amount: float, currency: str) -> str:
    """Return an amount of money with two decimals: ``7.35 USD``, ``1,204.50 EUR``; at least a cent if it is not 0."""
    return f"{max(amount, 0.01) if amount > 0 else 0.0:,.2f} {currency}"


def percent(done: float, total: float) -> str:
    """Return a share in whole percent, 100 only when all is done: ``62 %``."""
    share = max(0.0, done / total) if total else 0.0
    return f"{100 if share >= 1 else min(99, round(100 * share))} %"


def clock(moment: float) -> str:
    """Return the local time of day of an epoch time: ``02:49:17``."""
    return time.strftime("%H:%M:%S", time.localtime(moment))


def date_and_clock(moment: float) -> str:
    """Return local date and time of an epoch time: ``2026-11-21 02:50:33``."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def plural(amount: float, noun: str, many: str | None = None) -> str:
    """Return a count with its noun: ``1 rank``, ``1,204 lines``, ``2 processes``."""
    if amount == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{count(amount)} {many or noun + ending}"


def listing(entries: Sequence[object]) -> str:
    """Return entries as a list in a sentence: ``image``, ``image and target``, ``0, 1 and 3``."""
    texts = [str(item) for item in entries]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def ranks(numbers: Sequence[int]) -> str:
    """Return ranks by name: ``rank 3``, ``ranks 0 and 1``; for more than six only their number: ``12 ranks``."""
    if len(numbers) > 6:
        return plural(len(numbers), "rank")
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {listing(numbers)}"


def format_spans(ranks: Iterable[int]) -> str:
    """Format ranks as for ``%%ranks``: ``0-3``, ``0,2``, ``0-2,5``."""
    pairs = groupby(enumerate(sorted(set(ranks))), key=lambda pair: pair[1] - pair[0])
    runs = [[rank for _, rank in run] for _, run in pairs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def name_ranks(ranks: Collection[int]) -> str:
    """Format ranks for a sentence: ``rank 2``, ``ranks 0-3``."""
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {format_spans(ranks)}"


def processes(node_count: int, process_count_per_node: int) -> str:
    """Return the size of a job as nodes times processes per node: ``2 x 2 = 4 processes``, ``1 process``."""
    total = plural(node_count * process_count_per_node, "process")
    return total if total == "1 process" else f"{node_count} {TIMES} {process_count_per_node} = {total}"


def short_id(id_: str) -> str:
    """Return the last part of a job's id, as lists show it: ``k3f9``."""
    return id_.rsplit("-", 1)[-1]


def findings(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each warning and error of the checks before a start."""
    return [f"{entry['level'].capitalize()}: {finding(entry)}" for entry in entries if entry["level"] != "info"]


def finding(entry: Mapping[str, Any]) -> str:
    """Return the text of a finding with its remedy."""
    return f"{entry.get('text', '')} {entry.get('remedy', '')}".strip()


#: Maximum number of displayed characters of a line; the log contains all of them.
MAX_LINE_LENGTH = 10_000
#: ECMA-48: control sequences, operating system commands and other strings, two-character escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-Z\\-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b"
)
#: Characters that would break lines, hide or reverse text: C0 and C1 controls except tab, line separators, direction
#: marks, zero-width characters except joiners (letters and emoji need them), lone surrogates, non-characters.
_UNSAFE = re.compile(
    "[\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u061c\\u180e\\ufeff\\ufff9-\\uffff\\ud800-\\udfff]"
)
#: ECMA-48 SGR sequences of the codes that style text without hiding it; 256-colour and 24-bit codes are not included.
_STYLE = r"(?:[0-79]|2[1-9]|3[0-79]|4[0-79]|9[0-7]|10[0-7]|0[0-79])"
STYLES = re.compile(rf"(\x1b\[(?:{_STYLE}(?:;{_STYLE})*)?m)")
#: The styles (fonts by their code, the colour of the text as 30, that of its background as 40) that codes turn off.
_RESET_STYLES = {22: (1, 2), 23: (3,), 24: (4,), 27: (7,), 29: (9,), 39: (30,), 49: (40,)}
#: Bold, faint, italic, underlined, reversed, struck; blinking is not shown.
_FONTS = (1, 2, 3, 4, 7, 9)
#: Begin and end (UTF-16 code units, as JavaScript counts) of a part of a line, and its SGR codes separated by spaces.
Styles = tuple[tuple[int, int, str], ...]


def printable(line: str, limit: int = MAX_LINE_LENGTH) -> str:
    """Return the line as it is shown; a line of more than ``limit`` characters is cut, and its full length is added."""
    if line.isprintable() and len(line) <= limit:
        return line
    # Escape sequences are not shown, so examine more characters than the limit.
    text = _ESCAPES.sub("", line[: 4 * limit])
    if "\b" in text or "\r" in text:
        cells: list[str] = []
        column = 0
        for character in text:
            if character in "\b\r":
                column = max(0, column - 1) if character == "\b" else 0
            else:
                cells[column : column + 1] = [character]
                column += 1
        text = "".join(cells)
    text = _UNSAFE.sub(lambda match: _get_symbol(ord(match[0])), text)
    if len(text) > limit or len(line) > 4 * limit:
        return f"{text[:limit]} … ({count(len(line))} characters)"
    return text


def _get_symbol(code: int) -> str:
    if code < 0x20 or code == 0x7F:
        return chr(0x2400 + code) if code < 0x20 else "␡"
    return "\N{REPLACEMENT CHARACTER}" if 0xD800 <= code <= 0xDFFF or code >= 0xFFF9 else f"<U+{code:04X}>"


def styled(line: str, limit: int = MAX_LINE_LENGTH) -> tuple[str, Styles]:
    """Return the line as it is shown, and the styles of its parts; a line that is cut or overwritten has none."""
    if "\x1b[" not in line or "\r" in line or "\b" in line or len(line) > limit:
        return printable(line, limit), ()
    text, begin, spans = "", 0, []
    active: dict[int, int] = {}  # the code of each active style
    for index, part in enumerate(STYLES.split(line)):
        if index % 2:
            for code in (int(digits or 0) for digits in part[2:-1].split(";")):
                if code == 0:
                    active.clear()
                elif code in _RESET_STYLES:
                    for style in _RESET_STYLES[code]:
                        active.pop(style, None)
                elif code >= 30 or code in _FONTS:
                    active[code if code < 30 else 40 if code // 10 in (4, 10) else 30] = code
            continue
        visible = printable(part, limit)
        end = begin + len(visible) + sum(character > "\uffff" for character in visible)
        if visible and active:
            spans.append((begin, end, " ".join(str(code) for _, code in sorted(active.items()))))
        text, begin = text + visible, end
    return text, tuple(spans)


Rows = Sequence[Sequence[str]]


class Display:
    """A value displayed as sentences and tables: text in a terminal, HTML in a notebook."""

    __slots__ = ()

    def _parts(self) -> Iterable[str | Rows]:
        """Return the sentences and tables in display order; "" is an empty line of the text."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(part if isinstance(part, str) else format_text(part) for part in self._parts())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        def render(part: str | Rows) -> str:
            if isinstance(part, CodeBlock):
                return f"<pre>{escape(part)}</pre>"
            return f"<p>{format_sentence(part)}</p>" if isinstance(part, str) else format_html(part)

        return "".join(render(part) for part in self._parts() if part)


class CodeBlock(str):
    """A part of a display with preformatted lines."""

    __slots__ = ()


class WholeRows(list[Sequence[str]]):
    """The rows of a table that keeps its empty columns."""


def format_sentence(sentence: str) -> str:
    """Return an escaped sentence with `names` between backticks as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(sentence))


def format_text(rows: Rows) -> str:
    """Return aligned lines; a column without values is left out."""
    columns = []
    for column in _visible_columns(rows):
        width = max(map(len, column))
        columns.append([cell.ljust(width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def format_html(rows: Rows) -> str:
    """Return an HTML table; a column without values is left out."""
    head, *body = zip(*_visible_columns(rows), strict=True)
    header_html = "".join(f'<th style="text-align:left">{escape(cell)}</th>' for cell in head)
    cell_html = '<td style="text-align:left;vertical-align:top">{}</td>'.format
    body_html = "".join(f"<tr>{''.join(cell_html(format_sentence(cell)) for cell in row)}</tr>" for row in body)
    return f"<table><thead><tr>{header_html}</tr></thead><tbody>{body_html}</tbody></table>"


def _visible_columns(rows: Rows) -> list[tuple[str, ...]]:
    columns = list(zip(*rows, strict=True))
    return columns if isinstance(rows, WholeRows) else [column for column in columns if any(column[1:])] or columns
