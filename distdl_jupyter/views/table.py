"""Rows of text as a table, for a terminal and for a notebook. The first row is the head. HTML is escaped here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

Rows = Sequence[Sequence[str]]


def sentence_html(sentence: str) -> str:
    """Return an escaped sentence in which `names` between backticks are code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(sentence))


def text(rows: Rows) -> str:
    """Return aligned lines; a column that holds nothing below its head is left out."""
    return whole_text(_filled_columns(rows))


def html(rows: Rows) -> str:
    """Return the same as an HTML table."""
    return whole_html(_filled_columns(rows))


def whole_text(rows: Rows) -> str:
    """Return aligned lines with every column."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def whole_html(rows: Rows) -> str:
    """Return the same as an HTML table."""
    head, *body = rows
    top = "".join(f'<th style="text-align:left">{escape(cell)}</th>' for cell in head)
    rest = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in body)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{rest}</tbody></table>"


def _cell(content: str) -> str:
    return f'<td style="text-align:left;vertical-align:top">{sentence_html(content)}</td>'


def _filled_columns(rows: Rows) -> list[list[str]]:
    columns = range(len(rows[0]))
    filled = [at for at in columns if any(row[at] for row in rows[1:])] or columns
    return [[row[at] for at in filled] for row in rows]
