"""One number from whatever a training loop holds: Python and numpy numbers, tensors of one element.

It imports no framework: it asks an object only what every array library answers (``shape``, ``item``, ``numpy``).
"""

from __future__ import annotations

import math
import numbers
from typing import Any

#: Larger whole numbers are sent as floats: JSON readers in browsers hold no more.
_EXACT = 2**53

TIMES = "\N{MULTIPLICATION SIGN}"

Number = float | str


def to_json(name: str, value: Any) -> Number:
    """Return ``value`` as a JSON number, or as "nan", "inf" or "-inf".

    Raises TypeError that names the metric when ``value`` is not one real number. Waits for the GPU where the value is
    on one.
    """
    kind = type(value)
    if kind is not float and kind is not int:
        value = _plain(name, value)
    if isinstance(value, int) and -_EXACT <= value <= _EXACT:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        return "inf" if value > 0 else "-inf"
    return number if math.isfinite(number) else repr(number)


def _plain(name: str, value: Any) -> float:
    """Return the Python number inside an object. Raises TypeError."""
    if not isinstance(value, numbers.Real):
        value = _element(name, value)
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    raise TypeError(f"The metric {name!r} is {_article(value)}, but a metric must be one number.")


def _element(name: str, value: Any) -> Any:
    if isinstance(value, type) or getattr(value, "shape", None) is None:
        return value
    sizes = _sizes(value.shape)
    if any(size != 1 for size in sizes):
        shape = f" {TIMES} ".join(map(str, sizes))
        raise TypeError(
            f"The metric {name!r} has the shape {shape}, but a metric must be one number. Log its mean, or log each "
            "element under its own name."
        )
    for method in ("item", "numpy"):
        if callable(getattr(value, method, None)):
            return _taken(name, value, method)
    return value


def _taken(name: str, value: Any, method: str) -> Any:
    try:
        inner = getattr(value, method)()
    except Exception as error:
        raise TypeError(f"The metric {name!r} is {_article(value)} that has no value yet: {error}") from error
    return inner.item() if method == "numpy" else inner


def _sizes(shape: Any) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in shape)
    except (TypeError, ValueError):
        return ()


def _article(value: Any) -> str:
    name = "None" if value is None else type(value).__name__
    return name if name == "None" else f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
