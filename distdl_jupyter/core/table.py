"""Rows of text as a table, for a terminal and for a notebook. The first row is the header. HTML is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

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
        return "".join(_render_part(part) for part in self._parts() if part)


class CodeBlock(str):
    """A part of a display with preformatted lines."""

    __slots__ = ()


class WholeRows(list[Sequence[str]]):
    """The rows of a table that keeps its empty columns."""


def _render_part(part: str | Rows) -> str:
    if isinstance(part, CodeBlock):
        return f"<pre>{escape(part)}</pre>"
    return f"<p>{format_sentence(part)}</p>" if isinstance(part, str) else format_html(part)


def format_sentence(sentence: str) -> str:
    """Return an escaped sentence with `names` between backticks as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(sentence))


def format_text(rows: Rows) -> str:
    """Return aligned lines; a column without values is left out."""
    columns = _visible_columns(rows)
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in zip(*columns, strict=True)
    )
    return "\n".join(line.rstrip() for line in lines)


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
