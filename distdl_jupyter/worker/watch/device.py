"""Makes the rank's own GPU torch's current one, so that code that only says ``"cuda"`` uses it too.

All GPUs of the node stay visible, as under torchrun: ``torch.cuda.set_device(local_rank)`` keeps its usual meaning.
"""

from __future__ import annotations

import os
from types import ModuleType

from distdl_jupyter.worker import report
from distdl_jupyter.worker.watch.hooks import PostImport


def watch(finder: PostImport) -> None:
    """Ask to be told of torch when this rank was given a GPU."""
    if own_index(os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.environ.get("DISTDL_GPU", "")) > 0:
        finder.after("torch", _choose)


def own_index(visible: str, own: str) -> int:
    """Return the place of GPU ``own`` among the visible ones, 0 when it is not among them."""
    gpus = visible.split(",")
    return gpus.index(own) if own in gpus else 0


def _choose(torch: ModuleType) -> None:
    index = own_index(os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.environ.get("DISTDL_GPU", ""))
    try:
        torch.cuda.set_device(index)
    except Exception as error:  # noqa: BLE001  a device that fails must not fail the import of torch
        text = f"GPU {index} could not be selected in torch ({error!s:.200}). Call torch.cuda.set_device."
        report.note("warning", text, "gpu-not-selected")
