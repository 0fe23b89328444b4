"""Tells when a rank begins to meet the others and when they have met, in Horovod, torch and TensorFlow.

It also refuses Horovod under Keras 3: there every rank trains on its own, without an error (measured with Horovod
0.28.1: the ranks' weights differ after the first step).
"""

from __future__ import annotations

import functools
import os
import sys
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.watch import store
from distdl_jupyter.worker.watch.hooks import PostImport, guarded

#: The process groups that were destroyed last; an older one has nothing to do any more and may go.
_destroyed: deque[Any] = deque(maxlen=16)
#: The modules that have taken torch's functions, where somebody has looked ahead.
_takers: list[ModuleType] | None = None


def look_ahead() -> None:
    """Find the modules that have taken torch's functions, in a process from which ranks are forked.

    To look at each loaded module means to write to it (Python counts who holds it), so each rank would copy them all.
    """
    global _takers
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is not None:
        taken = {name: getattr(c10d, name) for name in ("init_process_group", "destroy_process_group")}
        _takers = [module for module in list(sys.modules.values()) if _has_any(module, taken)]


def _has_any(module: ModuleType, taken: dict[str, Any]) -> bool:
    own = getattr(module, "__dict__", {})
    return any(own.get(name) is function for name, function in taken.items())


def watch(finder: PostImport) -> None:
    """Ask to be told of the modules in which the meeting happens."""
    finder.after("horovod.common.basics", _watch_horovod)
    finder.after("torch.distributed.distributed_c10d", _watch_torch)
    finder.after("tensorflow.python.distribute.collective_all_reduce_strategy", _watch_tensorflow)
    for name in ("horovod.keras", "horovod.tensorflow.keras"):
        finder.before(name, functools.partial(refuse_keras_3, name))


def _watch_horovod(basics: ModuleType) -> None:
    owner = basics.HorovodBasics
    owner.init = _reporting(owner.init, lambda horovod: {"backend": _controller(horovod), "size": horovod.size()})


def _controller(horovod: Any) -> str:
    return "horovod-mpi" if horovod.mpi_enabled() else "horovod-gloo"


def _watch_torch(c10d: ModuleType) -> None:
    original = c10d.init_process_group
    watched = _reporting(
        _when_there_is_a_store(_with_transport(original)),
        lambda *_: {"backend": f"torch-{_transport(c10d)}", "size": c10d.get_world_size()},
    )
    _put_in_place(original, watched)
    _put_in_place(c10d.destroy_process_group, _outliving(c10d, c10d.destroy_process_group))


def _put_in_place(original: Callable[..., Any], watched: Callable[..., Any]) -> None:
    # Others take the name from its module afterwards; in a rank that was forked from a template they already have.
    name = original.__name__
    for module in list(sys.modules.values()) if _takers is None else _takers:
        if getattr(module, "__dict__", {}).get(name) is original:
            module.__dict__[name] = watched


def _outliving(c10d: ModuleType, destroy: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``destroy_process_group`` that lets the groups themselves live on for a while.

    Where a DistributedDataParallel model goes right after the call, torch (2.13, Gloo) joins the group's threads while
    it holds the interpreter's lock, and one of them may still wait for that lock to drop what the last all-reduce had:
    then the rank hangs for ever. A group that somebody still holds is not taken apart there.
    """

    @functools.wraps(destroy)
    def watched(*args: Any, **kwargs: Any) -> Any:
        guarded("before the ranks part", lambda: _destroyed.extend(c10d._world.pg_map))  # noqa: SLF001  no public list
        return destroy(*args, **kwargs)

    return watched


def _watch_tensorflow(module: ModuleType) -> None:
    """``tf.distribute.MultiWorkerMirroredStrategy`` is this class; it waits for all workers when it is made."""
    owner = module.CollectiveAllReduceStrategy
    owner.__init__ = _reporting(owner.__init__, lambda strategy: {"backend": "tensorflow", "size": _workers(strategy)})


def _workers(strategy: Any) -> int:
    jobs = strategy.cluster_resolver.cluster_spec().as_dict()
    return sum(map(len, jobs.values())) or 1


def _transport(c10d: ModuleType) -> str:
    """Return the group's transport; a group that was made without naming one has one for each kind of device."""
    name = str(c10d.get_backend())
    if name != "undefined":
        return name
    by_device = dict(part.split(":", 1) for part in str(c10d.get_backend_config()).split(","))
    device = "cuda" if "cuda" in by_device and sys.modules["torch"].cuda.is_available() else "cpu"
    return by_device[device]


def _with_transport(initialise: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``init_process_group`` that takes the transport of the job when the code names none."""
    transport = os.environ.get("DISTDL_TORCH_TRANSPORT")
    if not transport:
        return initialise

    @functools.wraps(initialise)
    def chosen(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return initialise(backend or transport, *args, **kwargs)

    return chosen


def _when_there_is_a_store(initialise: Callable[..., Any]) -> Callable[..., Any]:
    names = ("backend", "init_method", "timeout", "world_size", "rank", "store")

    @functools.wraps(initialise)
    def later(*args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        guarded("before the ranks met", store.stay_here)
        guarded("before the ranks met", store.await_listener, arguments)
        return initialise(*args, **kwargs)

    return later


def _reporting(initialise: Callable[..., Any], facts: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Return ``initialise`` with a report before and after it; ``facts`` gets its first argument (a method's self)."""

    @functools.wraps(initialise)
    def watched(*args: Any, **kwargs: Any) -> Any:
        guarded("before the ranks met", channel.send, "rendezvous")
        result = initialise(*args, **kwargs)
        guarded("after the ranks met", lambda: channel.send("ready", **facts(*args[:1])))
        return result

    return watched


def refuse_keras_3(module: str) -> None:
    """Raise ImportError when ``import keras`` means Keras 3 here."""
    version = keras_version()
    if version.split(".")[0].isdigit() and int(version.split(".")[0]) >= 3:
        raise ImportError(
            f"{module} of Horovod 0.28 does not average gradients under Keras 3 ({version} is installed), so each "
            "rank would train its own model. Use import distdl_jupyter.compat.horovod.keras as hvd instead.",
            name=module,
        )


def keras_version() -> str:
    """Return the version of the module that ``import keras`` gives, "" without one; Keras itself is not imported."""
    loaded = sys.modules.get("keras")
    if loaded is not None:
        return str(getattr(loaded, "__version__", ""))
    from importlib import metadata

    try:
        return metadata.version("keras")
    except metadata.PackageNotFoundError:
        return ""
