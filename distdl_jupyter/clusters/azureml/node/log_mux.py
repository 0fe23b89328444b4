r"""Two streams of a rank in one: what it prints and what it complains about, where a platform keeps one log for both.

The log stays text that a person can read: only a change from one stream to the other, who speaks, and how the rank
ended are written between, as ``\x1e<nonce>>WORD\x1f`` with the job's nonce. Pure: bytes in, bytes out.
"""

from __future__ import annotations

from typing import NamedTuple

#: Longest word, in bytes: a mark that never ends is text.
_LONGEST = 8192
_END = b"\x1f"


def mark(nonce: str, word: str) -> bytes:
    """Return a word that stands between what a rank says."""
    return _begin(nonce) + word.encode() + _END


def _begin(nonce: str) -> bytes:
    return b"\x1e" + nonce.encode() + b">"


class LogMux:
    """Writes one log. It begins with who speaks, and the stream "out"."""

    def __init__(self, nonce: str, rank: int) -> None:
        self._nonce = nonce
        self._stream = "out"
        self.head = mark(nonce, f"rank {rank}")

    def said(self, stream: str, content: bytes) -> bytes:
        """Return what is to be written when a stream said something."""
        change = b"" if stream == self._stream else mark(self._nonce, stream)
        self._stream = stream
        return change + content

    def end(self, outcome: str) -> bytes:
        """Return the last word: ``outcome`` is JSON."""
        return mark(self._nonce, f"end {outcome}")


class Piece(NamedTuple):
    """Text of a stream ("" before anybody spoke and behind the end), or a word alone."""

    stream: str
    content: bytes
    word: str = ""


class Splitter:
    """Reads one log back, whatever the pieces in which it comes."""

    def __init__(self, nonce: str) -> None:
        self._begin = _begin(nonce)
        self._rest = b""
        self._stream = ""

    def feed(self, content: bytes) -> list[Piece]:
        """Return what is new."""
        pieces: list[Piece] = []
        content = self._rest + content
        while (at := content.find(self._begin)) >= 0:
            end = content.find(_END, at)
            if end < 0 and len(content) - at < _LONGEST:
                break
            self._text(pieces, content[:at])
            if end < 0:
                self._text(pieces, content[at : at + 1])
                content = content[at + 1 :]
                continue
            self._word(pieces, content[at + len(self._begin) : end].decode(errors="replace"))
            content = content[end + 1 :]
        kept = len(content) - at if at >= 0 else _overlap(content, self._begin)
        self._text(pieces, content[: len(content) - kept])
        self._rest = content[len(content) - kept :]
        return pieces

    def _text(self, pieces: list[Piece], content: bytes) -> None:
        if content:
            pieces.append(Piece(self._stream, content))

    def _word(self, pieces: list[Piece], word: str) -> None:
        if word in ("out", "err"):
            self._stream = word
            return
        self._stream = "out" if word.startswith("rank ") else ""
        pieces.append(Piece("", b"", word))


def _overlap(content: bytes, begin: bytes) -> int:
    """Return how many bytes at the end of ``content`` may be the start of a mark."""
    return next((size for size in range(min(len(begin) - 1, len(content)), 0, -1) if content.endswith(begin[:size])), 0)
