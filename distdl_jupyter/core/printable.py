r"""A line of a program's output as it may be shown: no escape sequences, no control characters, not endlessly long.

What a terminal would have drawn is kept: a backspace or carriage return moves back and the next characters overwrite.
Colours are lost, text never is. Pure; escaping for HTML is the affair of whoever writes HTML.
"""

from __future__ import annotations

import re

from distdl_jupyter.core.humanize import count

#: Characters of a line that are shown; the event log keeps all of them.
MAX_SHOWN = 10_000

#: ECMA-48: control sequences, operating system commands and other strings, two-character escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-Z\\-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b"
)
#: What would break a line, hide or turn text around: C0 and C1 controls but tab, line separators, direction marks,
#: zero-width characters but the joiners (letters and emoji need them), lone surrogates, non-characters.
_UNSAFE = re.compile(
    "[\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u061c\\u180e\\ufeff\\ufff9-\\uffff\\ud800-\\udfff]"
)


def printable(line: str, limit: int = MAX_SHOWN) -> str:
    """Return the line as it is shown; beyond ``limit`` characters it is cut with a note of its full length."""
    if line.isprintable() and len(line) <= limit:
        return line
    # Escape sequences take room that is not shown: look at somewhat more than what can be left of it.
    shown = _ESCAPES.sub("", line[: 4 * limit])
    if "\b" in shown or "\r" in shown:
        shown = _drawn(shown)
    shown = _UNSAFE.sub(_named, shown)
    if len(shown) > limit or len(line) > 4 * limit:
        return f"{shown[:limit]} … ({count(len(line))} characters)"
    return shown


def _drawn(text: str) -> str:
    """Return what stands on the line after its backspaces and carriage returns."""
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
