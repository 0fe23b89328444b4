"""Which reports of a rank are proper: every field there, of its type, finite and of a bearable size.

A program finds the job's nonce in its environment and may write whatever it likes behind it. What is no proper report
is text like any other: it is shown, it changes nothing, and no reader of the job meets a value that it does not expect.
Types that are not known here are the affair of whoever knows them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from distdl_jupyter.worker.pictures import LARGEST

if TYPE_CHECKING:
    from collections.abc import Callable

Report = dict[str, Any]
_WORDS = ("nan", "inf", "-inf")
_LARGEST = 1e300
#: Most characters of a name or a short text, of a sentence, and of a text with many lines.
_NAME, _SENTENCE, _TEXT = 500, 20_000, 200_000
#: Most parts of a list, and errors that caused each other.
_MOST, _DEEPEST = 200, 6
#: Characters of a picture in base64.
_LARGEST_PICTURE = 4 * LARGEST // 3 + 5


def is_proper(report: Report) -> bool:
    """Say whether the report has the shape that its type promises."""
    check = _CHECKS.get(report["type"])
    return check is None or check(report)


def _number(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and -_LARGEST < value < _LARGEST


def _text(value: Any, most: int) -> bool:
    return type(value) is str and len(value) <= most


def _metric(report: Report) -> bool:
    values = report.get("values")
    if not _number(report.get("step")) or type(values) is not dict or not values:
        return False
    # The common case first: this is asked for each value of each training step.
    return all(
        (math.isfinite(value) if type(value) is float else value in _WORDS if type(value) is str else _number(value))
        and _text(name, _NAME)
        for name, value in values.items()
    )


def _progress(report: Report) -> bool:
    total = report.get("total")
    return (
        _number(report.get("done")) and (total is None or _number(total)) and _text(report.get("unit", ""), _NAME)
    )  # fmt: skip


def _note(report: Report) -> bool:
    return (
        report.get("level", "info") in ("info", "warning", "error")
        and _text(report.get("text"), _SENTENCE)
        and _text(report.get("code", ""), _NAME)
    )


def _mark(report: Report) -> bool:
    return (
        report.get("stream") in ("out", "err")
        and type(report.get("cell")) is int
        and _number(report["cell"])
        and _text(report.get("label"), _NAME)
        and type(report.get("ended")) is bool
    )


def _hello(report: Report) -> bool:
    pid, host = report.get("pid"), report.get("host")
    return (pid is None or _whole(pid)) and (host is None or _text(host, _NAME))


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _whole_below(value: Any, limit: int) -> bool:
    return _whole(value) and value < limit


def _picture(report: Report) -> bool:
    return (
        all(_whole_below(report.get(name), _LARGEST_PICTURE) for name in ("begin", "of"))
        and type(data := report.get("data")) is str
        and data.isascii()
        and 0 < len(data) <= report["of"] - report["begin"]
    )


def _result(report: Report) -> bool:
    error, shown, size = report.get("error"), report.get("repr"), report.get("bytes")
    return (
        type(report.get("ok")) is bool
        and (shown is None or _text(shown, _TEXT))
        and (size is None or _whole(size))
        and (error is None or _error(error, _DEEPEST))
        and _text(report.get("problem", ""), _SENTENCE)
    )


def _error(error: Any, depth: int) -> bool:
    if type(error) is not dict or depth == 0:
        return False
    names = ("type", "module", "name", "message", "traceback", "hint", "problem")
    texts = all(_text(error.get(name, ""), _TEXT) for name in names)
    return (
        texts
        and _number(error.get("time", 0))
        and _listed(error.get("values", []), _pair)
        and _listed(error.get("frames", []), _frame)
        and _listed(error.get("args", []), _plain)
        and (error.get("values_at") is None or _whole_below(error["values_at"], len(error.get("frames", []))))
        and _listed(error.get("causes", []), lambda cause: _error(cause, depth - 1))
    )


def _listed(value: Any, check: Callable[[Any], bool]) -> bool:
    return type(value) is list and len(value) <= _MOST and all(map(check, value))


def _plain(value: Any) -> bool:
    return value is None or type(value) is bool or _number(value) or _text(value, _SENTENCE)


def _pair(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and all(_text(part, _SENTENCE) for part in value)


def _frame(frame: Any) -> bool:
    return (
        type(frame) is dict
        and all(_text(frame.get(name), _SENTENCE) for name in ("file", "function", "kind", "label"))
        and _whole(frame.get("line"))
        and (frame.get("cell") is None or _whole(frame["cell"]))
        and _listed(frame.get("source", []), _source_line)
    )


def _source_line(line: Any) -> bool:
    return type(line) is list and len(line) == 2 and _whole(line[0]) and _text(line[1], _SENTENCE)


_CHECKS: dict[str, Callable[[Report], bool]] = {
    "metric": _metric,
    "progress": _progress,
    "note": _note,
    "mark": _mark,
    "hello": _hello,
    "result": _result,
    "picture": _picture,
}
