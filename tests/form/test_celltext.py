"""A cell's text is taken apart and put together without a change below its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.form.magic import joined, split


@pytest.mark.parametrize(
    ("text", "magic", "line", "body", "first_line"),
    [
        ("%%distributed -p 2\nx", "%%distributed", "-p 2", "x", 2),
        ("\n\n%%distdl\nx\ny", "%%distdl", "", "x\ny", 4),
        ("%%distributed", "%%distributed", "", "", 2),
        ("%%time\nx", "%%time", "", "x", 2),
        ("x = 1\n%%distributed -p 2", "", "", "x = 1\n%%distributed -p 2", 1),
        ("\n\nx", "", "", "\n\nx", 1),
        ("%matplotlib inline\nx", "", "", "%matplotlib inline\nx", 1),
        ("", "", "", "", 1),
    ],
)
def test_the_parts_of_a_cell(text: str, magic: str, line: str, body: str, first_line: int) -> None:
    found = split(text)
    assert (found.magic, found.line, found.body, found.first_line) == (magic, line, body, first_line)
    assert (found.ours, found.foreign) == (magic.startswith("%%dist"), "%%time" if magic == "%%time" else "")


@given(st.text())
def test_the_code_below_a_new_line_is_the_same(body: str) -> None:
    text = joined("%%distributed -p 2", body)
    assert split(text).body == body
    assert split(text).line == "-p 2"
