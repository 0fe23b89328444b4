"""Listens to the frameworks that training code imports, and adapts those for which a few lines are enough."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from distdl_jupyter.worker import channel, pictures
from distdl_jupyter.worker.sources import Sources
from distdl_jupyter.worker.watch import (
    accelerate,
    check_torch,
    child_processes,
    communication,
    compiling,
    deepspeed,
    gpu_memory,
    keras,
    lightning,
    profile,
    ray_train,
    rendezvous,
    step_hooks,
    tensorboard,
    transformers,
    unused_parameters,
    weight_check,
)
from distdl_jupyter.worker.watch.hooks import PostImport, install

_PARTS = (
    child_processes,
    gpu_memory,
    rendezvous,
    step_hooks,
    profile,
    check_torch,
    keras,
    lightning,
    transformers,
    accelerate,
    deepspeed,
    ray_train,
    tensorboard,
    weight_check,
    communication,
    compiling,
)


def start(sources: Sources, code: Path) -> PostImport:
    """Begin to listen; to be called once, before any user code is imported. ``code`` has the user's modules."""
    finder = install()
    for part in _PARTS:
        part.watch(finder)
    _watch_device(finder)
    _watch_display(finder)
    unused_parameters.watch(finder, sources, code)
    return finder


# the rank's own GPU ------------------------------------------------------------------------------


def _watch_device(finder: PostImport) -> None:
    """Make the rank's own GPU torch's current one, so that code that only names ``"cuda"`` uses it too.

    All GPUs of the node stay visible, as under torchrun: ``torch.cuda.set_device(local_rank)`` keeps its usual meaning.
    """
    if own_index(os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.environ.get("DISTDL_GPU", "")) > 0:
        finder.after("torch", _choose)


def own_index(visible: str, own: str) -> int:
    """Return the index of GPU ``own`` among the visible ones, 0 when it is not among them."""
    gpus = visible.split(",")
    return gpus.index(own) if own in gpus else 0


def _choose(torch: ModuleType) -> None:
    index = own_index(os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.environ.get("DISTDL_GPU", ""))
    try:
        torch.cuda.set_device(index)
    except Exception as error:  # noqa: BLE001  a device that fails must not fail the import of torch
        text = f"GPU {index} could not be selected in torch ({error!s:.200}). Call torch.cuda.set_device."
        channel.note("warning", text, "gpu-not-selected")


# pictures ----------------------------------------------------------------------------------------

BACKEND = "module://distdl_jupyter.worker.mplbackend"
#: Modules that offer IPython's function under their own name.
_OFFERED_BY = ("IPython.display", "IPython.core.display")


def _watch_display(finder: PostImport) -> None:
    """Let ``plt.show()`` and IPython's ``display`` show pictures, and rich print as to no terminal.

    None of these libraries is imported for it. A backend of matplotlib that the user has chosen stays.
    """
    if not os.environ.get("MPLBACKEND"):
        os.environ["MPLBACKEND"] = BACKEND
        if (matplotlib := sys.modules.get("matplotlib")) is not None:  # a template has imported it
            matplotlib.rcParams["backend"] = BACKEND
    # Of rich: a bar that is drawn anew with each metric would fill the log. Each is printed once, at its end.
    os.environ.setdefault("TTY_INTERACTIVE", "0")
    finder.after("IPython.core.display_functions", _replace_display)


def _replace_display(functions: ModuleType) -> None:
    display = functions.display

    @functools.wraps(display)
    def shown(*objects: Any, **options: Any) -> Any:
        shells = sys.modules.get("IPython.core.interactiveshell")
        if shells is not None and shells.InteractiveShell.initialized():
            return display(*objects, **options)
        return pictures.display(*objects, **options)

    for module in (functions, *filter(None, map(sys.modules.get, _OFFERED_BY))):
        if vars(module).get("display") is display:
            module.display = shown  # type: ignore[attr-defined]
