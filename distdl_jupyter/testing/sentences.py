"""What a sentence for people looks like: one line, no more, with its end."""

from __future__ import annotations


def is_sentence(text: str) -> bool:
    """Say whether ``text`` can stand in a form, a table or an error as it is."""
    return bool(text.strip()) and text == text.strip() and "\n" not in text and text.endswith(".")
