"""Tables and sentences of a notebook: what is code, what is escaped."""

import pytest

from distdl_jupyter.core import humanize


@pytest.mark.parametrize(
    ("sentence", "html"),
    [
        ("Run `distdl doctor`.", "Run <code>distdl doctor</code>."),
        ("`<b>` and `x & y`", "<code>&lt;b&gt;</code> and <code>x &amp; y</code>"),
        ("a ` alone", "a ` alone"),
        ("<b>no code</b>", "&lt;b&gt;no code&lt;/b&gt;"),
    ],
)
def test_names_between_backticks_are_code(sentence: str, html: str) -> None:
    assert humanize.format_sentence(sentence) == html
    assert html in humanize.format_html([["What"], [sentence]])
