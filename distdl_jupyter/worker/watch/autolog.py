"""Values that frameworks report by themselves, as metrics: the user's own ``log`` always wins, nothing comes twice.

* A name that the user logs is never reported from here again; the first value of each name is held back until the next
  offer, because the user's own call for the same step often comes just after the framework's.
* A name belongs to the framework that offered it first: Lightning writes its metrics through a ``SummaryWriter`` too.
* Of frameworks inside each other (a Trainer drives Accelerate, which drives DeepSpeed) the outermost one reports.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from distdl_jupyter.worker import report, scalar


class Held(NamedTuple):
    """Values that wait for the next offer."""

    step: float
    values: dict[str, Any]


_owners: dict[str, str] = {}
_held: list[Held] = []
_lock = threading.RLock()
_muted = threading.local()
_driven = threading.local()


def offer(source: str, step: float, metrics: dict[str, Any]) -> None:
    """Report values that ``source`` found at ``step``, as far as they are numbers and nobody else's."""
    with _lock:
        release()
        ours = {name: value for name, value in metrics.items() if _is_ours(source, name, value)}
        first = {name: value for name, value in ours.items() if name not in _owners}
        _owners.update(dict.fromkeys(first, source))
        if first:
            _held.append(Held(step, first))
        _send(step, {name: value for name, value in ours.items() if name not in first})


def release() -> None:
    """Report what was held back, without what the user has logged in the meantime."""
    with _lock:
        waiting, _held[:] = list(_held), []
        for held in waiting:
            _send(held.step, {name: value for name, value in held.values.items() if name not in report.own_names})


def advance(done: float, total: float | None, unit: str) -> None:
    """Report a framework's progress, unless the user's code reports its own."""
    if not report.own_progress:
        report.send_progress(done, total, unit)


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Within this block of this thread no offer counts: a framework hands on what it has offered itself."""
    before = getattr(_muted, "on", False)
    _muted.on = True
    try:
        yield
    finally:
        _muted.on = before


def is_muted() -> bool:
    """Say whether this thread is inside ``muted``."""
    return getattr(_muted, "on", False)


@contextlib.contextmanager
def driving() -> Iterator[bool]:
    """Within this block of this thread the engines inside report nothing; yields False where it is inside itself."""
    before = is_driven()
    _driven.on = True
    try:
        yield not before
    finally:
        _driven.on = before


def is_driven() -> bool:
    """Say whether this thread is inside ``driving``."""
    return getattr(_driven, "on", False)


class Losses:
    """The losses of the batches since the last step of each engine."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

    def keep(self, engine: Any, loss: Any) -> None:
        """Take the loss of a batch, a tensor with one number."""
        self._kept.setdefault(engine, []).append(loss.detach())

    def mean(self, engine: Any) -> dict[str, Any]:
        """Return their mean as a metric, nothing without any, and forget them."""
        losses = self._kept.pop(engine, [])
        return {"loss": sum(losses) / len(losses)} if losses else {}


def _is_ours(source: str, name: str, value: Any) -> bool:
    if name in report.own_names or _owners.get(name, source) != source:
        return False
    if getattr(value, "is_cuda", False):
        return bool(value.numel() == 1)
    try:
        scalar.to_json(name, value)
    except TypeError:
        return False
    return True


def _send(step: float, metrics: dict[str, Any]) -> None:
    if metrics:
        report.send(step, metrics)
