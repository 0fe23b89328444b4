"""Reports the metrics that frameworks compute. The user's ``log`` takes precedence; nothing is reported twice.

A name is reported only by the framework that reported it first, because Lightning also writes its metrics to a
``SummaryWriter``. If frameworks are nested (a Trainer uses Accelerate, which uses DeepSpeed), only the outermost one
reports. Scalars that training code writes to a ``SummaryWriter`` of torch or tensorboardX are also reported.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from distdl_jupyter.worker import channel, report
from distdl_jupyter.worker.hooks.imports import Patches, call_hook

#: The source of each metric, by name.
_owners: dict[str, str] = {}
_lock = threading.Lock()


def report_metrics(source: str, step: float, metrics: dict[str, Any]) -> None:
    """Report the metrics of ``source`` at ``step``, except for those that the user or another source reports."""
    accepted = {}
    with _lock:
        for name, value in metrics.items():
            if name not in report.user_names and _owners.get(name, source) == source and _is_number(name, value):
                accepted[name], _owners[name] = value, source
    if accepted:
        report.send(step, accepted)


def _is_number(name: str, value: Any) -> bool:
    if getattr(value, "is_cuda", False):
        return bool(value.numel() == 1)
    with contextlib.suppress(TypeError):
        report.to_json(name, value)
        return True
    return False


def report_progress(completed: float, total: float | None, unit: str) -> None:
    """Report a framework's progress, unless the user's code calls ``progress``."""
    if not report.has_user_progress:
        channel.send("progress", done=completed, total=total, unit=unit)


class _SilencedReports(threading.local):
    """Context manager in which some reports of this thread are silenced. Yields whether the block is the outermost."""

    is_active = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[bool]:
        was_active, self.is_active = self.is_active, True
        try:
            yield not was_active
        finally:
            self.is_active = was_active


#: In this block a SummaryWriter does not report, because a framework writes values that are already reported.
silenced_writers = _SilencedReports()
#: In this block engines do not report, because the framework that uses them does.
silenced_engines = _SilencedReports()


#: Step counters of tags that are written without a step.
_step_counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
_patch = Patches()
#: Installs the hooks of SummaryWriter.
install_hooks = _patch.install
_WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


@_patch("SummaryWriter.add_scalar", *_WRITERS)
def _add_scalar(
    add: Any, self: Any, tag: str, scalar_value: Any, global_step: Any = None, *args: Any, **kwargs: Any
) -> Any:
    _report_scalars(str(tag), {str(tag): scalar_value}, global_step)
    return add(self, tag, scalar_value, global_step, *args, **kwargs)


@_patch("SummaryWriter.add_scalars", *_WRITERS)
def _add_scalars(
    add: Any, self: Any, main_tag: str, tag_scalar_dict: Any, global_step: Any = None, *args: Any, **kwargs: Any
) -> Any:
    if isinstance(tag_scalar_dict, dict):
        named = {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}
        _report_scalars(str(main_tag), named, global_step)
    with silenced_writers():  # tensorboardX calls add_scalar for each of them
        return add(self, main_tag, tag_scalar_dict, global_step, *args, **kwargs)


def _report_scalars(tag: str, values: dict[str, Any], global_step: Any) -> None:
    if not silenced_writers.is_active:
        step = next(_step_counters[tag]) if global_step is None else global_step
        call_hook("in SummaryWriter", lambda: report_metrics("tensorboard", int(step), values))
