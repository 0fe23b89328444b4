"""Hooks for Horovod: connecting and disconnecting of ranks, and the Keras version that it is used with.

Horovod with Keras 3 is refused, because every rank would silently train its own model (measured with Horovod 0.28.1:
the ranks' weights differ after the first step).
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from distdl_jupyter.worker.hooks import distributed
from distdl_jupyter.worker.hooks.imports import PostImport, connecting, guarded, replaces

_MODULES = ("horovod.torch", "horovod.tensorflow", "horovod.mxnet")


def watch(finder: PostImport) -> None:
    """Hook Horovod's functions that connect and disconnect ranks, and refuse its Keras wrappers for Keras 3."""
    finder.after("horovod.common.basics", _watch_init)
    for name in _MODULES:
        finder.after(name, _watch_shutdown)
    for name in ("horovod.keras", "horovod.tensorflow.keras"):
        finder.before(name, functools.partial(refuse_keras_3, name))


def _watch_init(basics: ModuleType) -> None:
    @replaces(basics.HorovodBasics, "init")
    def connect(init: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        with connecting(lambda: {"backend": f"horovod-{'mpi' if self.mpi_enabled() else 'gloo'}", "size": self.size()}):
            return init(self, *args, **kwargs)


def _watch_shutdown(horovod: ModuleType) -> None:
    @replaces(horovod, "shutdown")
    def disconnect(shutdown: Any, *args: Any, **kwargs: Any) -> None:
        if not distributed.are_kept:
            shutdown(*args, **kwargs)


def leave() -> None:
    """Shut down Horovod if the code has initialized it; imports nothing."""
    for horovod in filter(None, map(sys.modules.get, _MODULES)):
        if hasattr(horovod, "is_initialized") and guarded("at the end", horovod.is_initialized):
            guarded("at the end", horovod.shutdown)


def running() -> Any:
    """Return ``horovod.torch`` if it is initialized, else None."""
    horovod: Any = sys.modules.get("horovod.torch")
    return horovod if horovod is not None and horovod.is_initialized() else None


def refuse_keras_3(module: str) -> None:
    """Raise ImportError when ``import keras`` means Keras 3 here."""
    version = _keras_version()
    if version.split(".")[0].isdigit() and int(version.split(".")[0]) >= 3:
        raise ImportError(
            f"{module} of Horovod 0.28 does not average gradients under Keras 3 ({version} is installed), so each "
            "rank would train its own model. Use import distdl_jupyter.compat.horovod.keras as hvd instead.",
            name=module,
        )


def _keras_version() -> str:
    """Return the version that ``import keras`` would import, "" if none; does not import Keras."""
    loaded = sys.modules.get("keras")
    if loaded is not None:
        return str(getattr(loaded, "__version__", ""))
    from importlib import metadata

    try:
        return metadata.version("keras")
    except metadata.PackageNotFoundError:
        return ""
