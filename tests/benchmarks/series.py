"""What long curves cost: taking points in, keeping them, and having a figure ready, beside keeping every point.

``python -m tests.benchmarks.series``. The plain way appends points to lists and takes numpy for the mean, the lowest
and the highest of 980 buckets. Two ranks report 1,000,000 points each.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from distdl_jupyter.core.figure import figure
from distdl_jupyter.core.log import LogBook
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.saved.curve import svg
from tests.benchmarks import report
from tests.benchmarks.report import Report, interleaved

RANKS, STEPS, BUCKETS = 2, 1_000_000, 980
Kept = dict[int, list[tuple[int, float, float]]]


def measure(turns: int) -> Iterator[Report]:
    """Yield a table of taking in, of showing, of memory and of the log."""
    chance = random.Random(1)
    values = [[chance.random() for _ in range(STEPS)] for _ in range(RANKS)]
    kept: Kept = {rank: [] for rank in range(RANKS)}
    book = SeriesBook()
    yield _taking_in(values, kept, book)
    yield _showing(kept, book, turns)
    yield _memory([each[: STEPS // 10] for each in values])
    yield _log_lines(turns)


def _taking_in(values: list[list[float]], kept: Kept, book: SeriesBook) -> Report:
    times = interleaved({"ours": partial(fold, values, book), "lists": partial(plain, values, kept)}, 1, warm_up=False)
    table = Report("A reported point is taken in", "us", report.versions("distdl-jupyter"))
    each = {name: [one / (RANKS * STEPS) for one in taken] for name, taken in times.items()}
    table.compare(f"of {RANKS} x {STEPS:,}", each["ours"], "appended to lists", each["lists"])
    return table


def _showing(kept: Kept, book: SeriesBook, turns: int) -> Report:
    peer = "numpy, all points"
    ways: dict[str, Callable[[], object]] = {
        "a figure with its band": lambda: figure(book, "loss"),
        "a figure of each rank": lambda: figure(book, "loss", mode="ranks"),
        "a picture (SVG)": lambda: svg(book.band("loss"), "loss"),
        peer: lambda: extrema(kept),
    }
    times = interleaved({name: partial(_only, way) for name, way in ways.items()}, turns)
    title = f"{RANKS} x {STEPS:,} points are shown"
    table = Report(title, "ms", report.versions("distdl-jupyter", "numpy", "plotly"))
    for name in list(ways)[:-1]:
        table.value(name, times[name], at_most=100)
        table.compare(name, times[name], peer, times[peer])
    return table


def _memory(values: list[list[float]]) -> Report:
    table = Report(f"Memory of {RANKS} x {len(values[0]):,} points", "MB", report.versions("distdl-jupyter"))
    ours = memory(partial(filled, values))
    theirs = memory(partial(_all_kept, values))
    table.compare("kept for figures", [ours / 1e6], "every point in lists", [theirs / 1e6])
    return table


def _log_lines(turns: int) -> Report:
    lines = [f"step {number} loss 0.123" for number in range(25_000)]
    texts = [("\n".join(lines[at : at + 10]), rank) for at in range(0, len(lines), 10) for rank in range(RANKS)]
    told = [
        {"type": "log", "t": 1.8e9 + at / 500, "rank": rank, "stream": "out", "text": text}
        for at, (text, rank) in enumerate(texts)
    ]

    def folded() -> None:
        book = LogBook(RANKS)
        for event in told:
            book.apply(event)

    def split() -> None:
        for _, text in zip(told, (text for text, _ in texts), strict=True):
            text.split("\n")

    times = interleaved({"ours": folded, "split": split}, turns)
    table = Report("A printed line is taken in and folded with its equal", "us", report.versions("distdl-jupyter"))
    each = {name: [one / (RANKS * len(lines)) for one in taken] for name, taken in times.items()}
    table.compare("a line", each["ours"], "str.split", each["split"])
    return table


def _only(way: Callable[[], object]) -> None:
    way()


def metric(rank: int, step: int, value: float) -> dict[str, Any]:
    return {"type": "metric", "t": 1.8e9 + step, "rank": rank, "step": step, "values": {"loss": value}}


def plain(values: list[list[float]], kept: Kept) -> None:
    for step in range(len(values[0])):
        for rank in range(RANKS):
            event = metric(rank, step, values[rank][step])
            kept[event["rank"]].append((event["step"], event["values"]["loss"], event["t"]))


def fold(values: list[list[float]], book: SeriesBook) -> None:
    for step in range(len(values[0])):
        for rank in range(RANKS):
            book.apply(metric(rank, step, values[rank][step]))


def filled(values: list[list[float]]) -> SeriesBook:
    book = SeriesBook()
    fold(values, book)
    return book


def _all_kept(values: list[list[float]]) -> Kept:
    kept: Kept = {rank: [] for rank in range(RANKS)}
    plain(values, kept)
    return kept


def extrema(kept: Kept) -> object:
    every = np.array([[value for _, value, _ in points] for points in kept.values()])
    width = STEPS // BUCKETS
    buckets = every[:, : width * BUCKETS].reshape(RANKS, BUCKETS, width)
    return buckets.mean(axis=(0, 2)), buckets.min(axis=(0, 2)), buckets.max(axis=(0, 2))


def memory(work: Callable[[], object]) -> float:
    tracemalloc.start()
    result = work()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return float(size)


if __name__ == "__main__":
    report.main(measure, turns=5)
