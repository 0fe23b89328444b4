"""Reports the metrics that frameworks compute. The user's ``log`` takes precedence; nothing is reported twice.

* A name that the user logs is not reported by a framework.
* A name is reported only by the framework that reported it first, because Lightning also writes its metrics to a
  ``SummaryWriter``.
* If frameworks are nested (a Trainer uses Accelerate, which uses DeepSpeed), only the outermost one reports.

Scalars that training code writes to a ``SummaryWriter`` of torch or tensorboardX are also reported.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from distdl_jupyter.worker import report
from distdl_jupyter.worker.hooks.imports import Patches, PostImport, guarded

#: The source of each metric, by name.
_owners: dict[str, str] = {}
_lock = threading.Lock()


def offer(source: str, step: float, metrics: dict[str, Any]) -> None:
    """Report the metrics of ``source`` at ``step``, except for those that the user or another source reports."""
    with _lock:
        accepted = {name: value for name, value in metrics.items() if _can_report(source, name, value)}
        _owners.update(dict.fromkeys(accepted, source))
    if accepted:
        report.send(step, accepted)


def advance(done: float, total: float | None, unit: str) -> None:
    """Report a framework's progress, unless the user's code calls ``progress``."""
    if not report.own_progress:
        report.send_progress(done, total, unit)


class _Nested(threading.local):
    """Context manager that marks this thread as inside the block, and yields whether the block is the outermost."""

    is_inside = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[bool]:
        was_inside, self.is_inside = self.is_inside, True
        try:
            yield not was_inside
        finally:
            self.is_inside = was_inside


#: In this block a SummaryWriter does not report, because a framework writes values that are already reported.
muted = _Nested()
#: In this block engines do not report, because the framework that uses them does.
driving = _Nested()


def _can_report(source: str, name: str, value: Any) -> bool:
    if name in report.own_names or _owners.get(name, source) != source:
        return False
    if getattr(value, "is_cuda", False):
        return bool(value.numel() == 1)
    try:
        report.to_json(name, value)
    except TypeError:
        return False
    return True


# SummaryWriter -----------------------------------------------------------------------------------

#: Step counters of tags that are written without a step.
_counts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


_patch = Patches()
_WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


def watch(finder: PostImport) -> None:
    """Report the scalars that a ``SummaryWriter`` writes."""
    _patch.install(finder)


@_patch("SummaryWriter.add_scalar", *_WRITERS)
def _add_scalar(
    add: Any, self: Any, tag: str, scalar_value: Any, global_step: Any = None, *args: Any, **kw: Any
) -> Any:
    _report_scalars(str(tag), {str(tag): scalar_value}, global_step)
    return add(self, tag, scalar_value, global_step, *args, **kw)


@_patch("SummaryWriter.add_scalars", *_WRITERS)
def _add_scalars(
    add: Any, self: Any, main_tag: str, tag_scalar_dict: Any, global_step: Any = None, *args: Any, **kw: Any
) -> Any:
    if isinstance(tag_scalar_dict, dict):
        named = {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}
        _report_scalars(str(main_tag), named, global_step)
    with muted():  # tensorboardX calls add_scalar for each of them
        return add(self, main_tag, tag_scalar_dict, global_step, *args, **kw)


def _report_scalars(tag: str, values: dict[str, Any], global_step: Any) -> None:
    if not muted.is_inside:
        step = next(_counts[tag]) if global_step is None else global_step
        guarded("in SummaryWriter", lambda: offer("tensorboard", int(step), values))
