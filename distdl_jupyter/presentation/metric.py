"""Which metric is shown where there is room for one, and its way as a curve of a word's size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distdl_jupyter.presentation.plain import finite

if TYPE_CHECKING:
    from distdl_jupyter.core.view import MetricView

#: Points of the small curve.
_POINTS = 40


def favourite(names: Sequence[str]) -> str:
    """Return the metric to show first: the loss, else the first one reported, "" when there is none."""
    return next((name for name in names if "loss" in name.lower()), names[0] if names else "")


def spark(metric: MetricView | None) -> tuple[float | None, ...]:
    """Return up to 40 means of a metric, spread over its steps, the newest last; () for fewer than two.

    They have the digits that can be seen at that size: a list of a thousand jobs holds as many curves.
    """
    means = metric.trail.to(metric.mean, _POINTS) if metric is not None else []
    return tuple(finite(float(f"{mean:.4g}")) for mean in means) if len(means) > 1 else ()
