"""Notices a rank of several that trains without the others, while the job runs.

A rank communicates when a process group of several ranks has run a collective operation, or Horovod has averaged
something. What a rank does alone between two collective operations (``no_sync``, local SGD) is left to it: it is asked
only whether there has been any.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.step_times import recorder
from distdl_jupyter.worker.watch import step_hooks
from distdl_jupyter.worker.watch.hooks import PostImport

#: Variable with the job's backend.
VARIABLE = "DISTDL_BACKEND"
CODE = "no-communication"
#: Steps after which a rank without a group has had the time to make one, and one with a group to use it: local SGD may
#: average rarely. ``step_times`` measures all of these steps.
_WITHOUT_GROUP, _WITHOUT_COLLECTIVE = 20, 100
_REMEDIES = {
    "torch": "Call torch.distributed.init_process_group() and wrap the model in DistributedDataParallel, or configure "
        "the trainer for all processes (Lightning: devices and strategy).",
    "horovod": "Call hvd.init() and wrap the optimizer in hvd.DistributedOptimizer.",
    "deepspeed": "Train with the engine that deepspeed.initialize() returns.",
}  # fmt: skip
#: Modules through which ranks may communicate in ways that are not followed here.
_OTHER_WAYS = ("mpi4py.MPI", "ray", "tensorflow", "jax")


def watch(_finder: PostImport) -> None:
    """Watch the steps of a job of several ranks that are to communicate."""
    backend, size = os.environ.get(VARIABLE, ""), os.environ.get("DISTDL_WORLD_SIZE", "1")
    if backend in _REMEDIES and size.isdigit() and int(size) > 1 and not os.environ.get("DISTDL_CHECK"):
        step_hooks.listen(_Watcher(_REMEDIES[backend]).stepped)


class _Watcher:
    """Checks once or twice whether this process has communicated."""

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._next = _WITHOUT_GROUP
        self._steps = 0
        self._pid = os.getpid()

    def stepped(self, _optimizer: Any) -> None:
        """Check after ``_WITHOUT_GROUP`` steps, and after ``_WITHOUT_COLLECTIVE`` where there is a group."""
        self._steps = recorder.step + 1
        if not self._next or self._steps < self._next:
            return
        try:
            self._check()
        except Exception:  # noqa: BLE001  our failure must not become the user's
            self._next = 0

    def _check(self) -> None:
        has_group = _has_group()
        if has_group and self._steps < _WITHOUT_COLLECTIVE and not _has_communicated():
            self._next = _WITHOUT_COLLECTIVE
            return
        self._next = 0
        if os.getpid() != self._pid or any(name in sys.modules for name in _OTHER_WAYS) or _has_communicated():
            return
        what = "a collective operation" if has_group else "a process group of several ranks"
        text = (
            f"The ranks do not communicate: after {self._steps} optimizer steps the code had not used {what}, so each "
            f"rank trains its own model. {self._remedy}"
        )
        channel.note("warning", text, CODE)


def _groups() -> list[Any]:
    """Return torch's process groups of several ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    groups = distributed.distributed_c10d._world.pg_map  # noqa: SLF001  torch offers no public way to all groups
    return [group for group in groups if group.size() > 1]


def _uses_horovod() -> bool:
    horovod = sys.modules.get("horovod.torch")
    return horovod is not None and bool(horovod.is_initialized()) and horovod.size() > 1


def _uses_rpc() -> bool:
    rpc = sys.modules.get("torch.distributed.rpc.api")
    return rpc is not None and bool(rpc._is_current_rpc_agent_set())  # noqa: SLF001


def _has_group() -> bool:
    return bool(_groups()) or _uses_horovod() or _uses_rpc()


def _has_communicated() -> bool:
    return _uses_rpc() or (_uses_horovod() and recorder.has_waited) or any(map(_is_used, _groups()))


def _is_used(group: Any) -> bool:
    try:
        return bool(group._get_sequence_number_for_group() > 0)  # noqa: SLF001
    except (RuntimeError, AttributeError):  # a transport that does not count its operations
        return True
