"""The link of a node to the others, as a forecast reckons with it and a rehearsal makes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from distdl_jupyter.core.errors import InvalidSpec

_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_RATE = re.compile(r"([0-9.]+)\s*([kmgt]?bit)(?:/s|ps)?", re.IGNORECASE)
_DELAY = re.compile(r"([0-9.]+)\s*(us|ms|s)", re.IGNORECASE)
EXAMPLE = "Examples: 1gbit, 500mbit,0.2ms, NC64as_T4_v3, NC64as_T4_v3,0.2ms."


@dataclass(frozen=True, slots=True)
class Link:
    """What each node reaches the others by: ``bits_per_second`` in each direction, and the way there in seconds.

    ``source`` says who states them: a page, "set by you". A latency that nobody stated is 0.
    """

    bits_per_second: float
    latency_seconds: float = 0.0
    source: str = ""
    #: The VM size whose link it is, "" for none.
    size: str = ""

    @property
    def text(self) -> str:
        """Return it in words: ``1 Gb/s, 0.2 ms``."""
        return ", ".join(
            [rate(self.bits_per_second), *([_delay(self.latency_seconds)] if self.latency_seconds else [])]
        )

    def __str__(self) -> str:
        """Return it with the size whose link it is: ``NC64as_T4_v3: 32 Gb/s``."""
        return f"{self.size}: {self.text}" if self.size else self.text


def rate(bits_per_second: float) -> str:
    """Return ``"1 Gb/s"``, ``"500 Mb/s"``."""
    for unit, name in ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s")):
        if bits_per_second >= unit:
            return f"{bits_per_second / unit:.3g} {name}"
    return f"{bits_per_second:.3g} b/s"


def _delay(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.3g} µs"


def shown(text: str) -> str:
    """Return a link as it was asked for in words: ``1 Gb/s, 0.2 ms``, ``NC64as_T4_v3``."""
    name, bits, latency = words(text)
    delay = f", {_delay(latency)}" if latency else ""
    return (name if bits is None else rate(bits)) + delay


def words(text: str) -> tuple[str, float | None, float | None]:
    """Return the name, the rate in bits a second and the latency in seconds of ``1gbit,0.2ms``.

    The name is that of a VM size, as in ``NC64as_T4_v3,0.2ms``, "" where a rate stands in its place; what is not said
    is None. Raises InvalidSpec.
    """
    parts = [part.strip() for part in text.split(",")]
    first, rest = parts[0], parts[1:]
    if (found := _RATE.fullmatch(first)) is not None:
        name, bits = "", _number(found.group(1), text) * _UNITS[found.group(2).lower()]
    else:
        name, bits = first, None
    if not first or len(rest) > 1 or (first[0].isdigit() and bits is None):
        raise _unreadable(text)
    if not rest:
        return name, bits, None
    delay = _DELAY.fullmatch(rest[0])
    if delay is None:
        raise _unreadable(text)
    return name, bits, _number(delay.group(1), text, zero=True) * _SECONDS[delay.group(2).lower()]


def _number(text: str, whole: str, *, zero: bool = False) -> float:
    try:
        found = float(text)
    except ValueError:
        raise _unreadable(whole) from None
    if found < 0 or (not found and not zero):
        raise _unreadable(whole)
    return found


def _unreadable(text: str) -> InvalidSpec:
    return InvalidSpec(
        f"{text!r} is not a valid link. Give a rate or a VM size, then optionally a comma and a latency.",
        code="link-invalid",
        field="rehearse",
        hint=EXAMPLE,
    )
