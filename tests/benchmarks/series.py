"""What a long curve costs: taking points in, keeping them, and having a figure ready, beside keeping every point.

``python tests/benchmarks/series.py`` prints each as a multiple of the plain way: points appended to lists, and numpy
for the mean, the lowest and the highest of 980 buckets. 4 ranks x 250,000 steps = 1,000,000 points.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from distdl_jupyter.core.figure import figure
from distdl_jupyter.core.log import LogBook
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.panels.svgcurve import svg

RANKS, STEPS, BUCKETS = 4, 250_000, 980
ROUNDS = 5


def main() -> None:
    """Measure and print a table."""
    chance = random.Random(1)
    values = [[chance.random() for _ in range(STEPS)] for _ in range(RANKS)]
    kept: dict[int, list[tuple[int, float, float]]] = {rank: [] for rank in range(RANKS)}
    book = SeriesBook()
    points = RANKS * STEPS
    into_lists = once(lambda: plain(values, kept)) / points
    into_book = once(lambda: fold(values, book)) / points
    row("one point into lists", into_lists, into_lists, "us", 1e6)
    row("one point into a book", into_book, into_lists, "us", 1e6)

    with_numpy = best(lambda: extrema(kept))
    row("band of all points, numpy", with_numpy, with_numpy, "ms", 1e3)
    row("band from the book", best(lambda: book.band("loss")), with_numpy, "ms", 1e3)
    row("figure, band", best(lambda: figure(book, "loss")), with_numpy, "ms", 1e3)
    row("figure, each rank", best(lambda: figure(book, "loss", mode="ranks")), with_numpy, "ms", 1e3)
    row("picture", best(lambda: svg(book.band("loss"), "loss")), with_numpy, "ms", 1e3)

    every = memory(lambda: plain(values, {rank: [] for rank in range(RANKS)}))
    row("memory of all points", every, every, "MB", 1e-6)
    row("memory of a book", memory(lambda: filled(values)), every, "MB", 1e-6)
    log_lines()


def metric(rank: int, step: int, value: float) -> dict[str, Any]:
    return {"type": "metric", "t": 1.8e9 + step, "rank": rank, "step": step, "values": {"loss": value}}


def plain(values: list[list[float]], kept: dict[int, list[tuple[int, float, float]]]) -> object:
    for step in range(STEPS):
        for rank in range(RANKS):
            event = metric(rank, step, values[rank][step])
            kept[event["rank"]].append((event["step"], event["values"]["loss"], event["t"]))
    return kept


def fold(values: list[list[float]], book: SeriesBook) -> object:
    for step in range(STEPS):
        for rank in range(RANKS):
            book.apply(metric(rank, step, values[rank][step]))
    return book


def filled(values: list[list[float]]) -> SeriesBook:
    book = SeriesBook()
    fold(values, book)
    return book


def extrema(kept: dict[int, list[tuple[int, float, float]]]) -> object:
    every = np.array([[value for _, value, _ in points] for points in kept.values()])
    width = STEPS // BUCKETS
    buckets = every[:, : width * BUCKETS].reshape(RANKS, BUCKETS, width)
    return buckets.mean(axis=(0, 2)), buckets.min(axis=(0, 2)), buckets.max(axis=(0, 2))


def log_lines() -> None:
    lines = [f"step {number} loss 0.123" for number in range(25_000)]
    texts = [("\n".join(lines[at : at + 10]), rank) for at in range(0, len(lines), 10) for rank in range(RANKS)]
    events = [
        {"type": "log", "t": 1.8e9 + at / 500, "rank": rank, "stream": "out", "text": text}
        for at, (text, rank) in enumerate(texts)
    ]
    book = LogBook(RANKS)
    splitting = once(lambda: [event["text"].split("\n") for event in events]) / (RANKS * len(lines))
    folding = once(lambda: [book.apply(event) for event in events]) / (RANKS * len(lines))  # type: ignore[func-returns-value]
    row("one log line split", splitting, splitting, "us", 1e6)
    row("one log line folded over 4 ranks", folding, splitting, "us", 1e6)
    row("changes since the last look", best(lambda: book.changes(book.mark - 20)), splitting, "us", 1e6)


def once(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def best(work: Callable[[], object]) -> float:
    return min(once(work) for _ in range(ROUNDS))


def memory(work: Callable[[], object]) -> float:
    tracemalloc.start()
    result = work()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return float(size)


def row(name: str, cost: float, base: float, unit: str, scale: float) -> None:
    print(f"{name:34} {cost * scale:10.3f} {unit:3} {cost / base:10.4f} x")


if __name__ == "__main__":
    main()
