r"""Make a line of a program's output safe to display: no escape sequences or control characters, limited length.

As in a terminal, a backspace or carriage return moves back and the next characters overwrite. ``styled`` also returns
colours and font styles; ``printable`` drops them. Text is never lost. Pure functions; the caller must escape HTML.
"""

from __future__ import annotations

import re

from distdl_jupyter.core.humanize import count

#: Maximum number of characters shown of a line; the log keeps all of them.
MAX_SHOWN = 10_000

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

_STYLE = r"(?:[0-79]|2[1-9]|3[0-79]|4[0-79]|9[0-7]|10[0-7]|[34]8;5;\d{1,3}|[34]8;2;\d{1,3};\d{1,3};\d{1,3}|0[0-79])"
#: ECMA-48 SGR codes that style text without hiding it.
STYLES = re.compile(rf"(\x1b\[(?:{_STYLE}(?:;{_STYLE})*)?m)")
#: The styles (bold, faint, italic, underlined, reversed, struck) that a code ends.
_ENDS = {22: (1, 2), 23: (3,), 24: (4,), 27: (7,), 29: (9,)}

#: Begin and end (UTF-16 code units, as JavaScript counts) of a part of a line, and its styles: SGR codes with spaces
#: between them; a colour that is not one of the sixteen is ``38#rrggbb``, as background ``48#rrggbb``.
Styles = tuple[tuple[int, int, str], ...]


def printable(line: str, limit: int = MAX_SHOWN) -> str:
    """Return the line as it is shown; beyond ``limit`` characters it is cut with a note of its full length."""
    if line.isprintable() and len(line) <= limit:
        return line
    # Escape sequences are not shown, so examine somewhat more than the limit.
    shown = _ESCAPES.sub("", line[: 4 * limit])
    if "\b" in shown or "\r" in shown:
        shown = _drawn(shown)
    shown = _UNSAFE.sub(_named, shown)
    if len(shown) > limit or len(line) > 4 * limit:
        return f"{shown[:limit]} … ({count(len(line))} characters)"
    return shown


def styled(line: str, limit: int = MAX_SHOWN) -> tuple[str, Styles]:
    """Return the line as it is shown, and the styles of its parts; a line that is cut or drawn over has none."""
    if "\x1b[" not in line or "\r" in line or "\b" in line or len(line) > limit:
        return printable(line, limit), ()
    text, at, spans, style = "", 0, [], _Style()
    for number, part in enumerate(STYLES.split(line)):
        if number % 2:
            style.take([int(code or 0) for code in part[2:-1].split(";")])
            continue
        shown = printable(part, limit)
        end = at + len(shown) + sum(character > "\uffff" for character in shown)
        if shown and str(style):
            spans.append((at, end, str(style)))
        text, at = text + shown, end
    return text, tuple(spans)


class _Style:
    """The current style of a terminal."""

    def __init__(self) -> None:
        self._fonts: set[int] = set()
        #: Colour of text (30) and of what is behind it (40).
        self._colours: dict[int, str] = {}

    def take(self, codes: list[int]) -> None:
        """Apply one sequence."""
        while codes:
            code = codes.pop(0)
            if code == 0:
                self._fonts.clear()
                self._colours.clear()
            elif code in (38, 48):
                self._colours[code - 8] = _colour(code, codes)
            elif code in (39, 49):
                self._colours.pop(code - 9, None)
            elif code >= 30:
                self._colours[40 if code // 10 in (4, 10) else 30] = str(code)
            elif code < 10:
                self._fonts |= {code} - {5, 6}
            else:
                self._fonts -= set(_ENDS.get(code, ()))

    def __str__(self) -> str:
        return " ".join([*map(str, sorted(self._fonts)), *self._colours.values()])


def _colour(code: int, more: list[int]) -> str:
    """Consume and return a colour of 256 or 16 million; the first sixteen are those of the theme."""
    if more.pop(0) == 2:
        red, green, blue = (min(255, more.pop(0)) for _ in range(3))
        return f"{code}#{red:02x}{green:02x}{blue:02x}"
    number = min(255, more.pop(0))
    if number < 16:
        return str(number % 8 + (30 if number < 8 else 90) + code - 38)
    if number >= 232:
        return f"{code}#{8 + 10 * (number - 232):02x}" + f"{8 + 10 * (number - 232):02x}" * 2
    steps = ((number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6)
    return f"{code}#" + "".join(f"{step * 40 + 55 if step else 0:02x}" for step in steps)


def _drawn(text: str) -> str:
    """Return the line after its backspaces and carriage returns are applied."""
    cells: list[str] = []
    at = 0
    for character in text:
        if character == "\b":
            at = max(0, at - 1)
        elif character == "\r":
            at = 0
        else:
            cells[at : at + 1] = [character]
            at += 1
    return "".join(cells)


def _named(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return "\N{REPLACEMENT CHARACTER}" if 0xD800 <= code <= 0xDFFF or code >= 0xFFF9 else f"<U+{code:04X}>"
