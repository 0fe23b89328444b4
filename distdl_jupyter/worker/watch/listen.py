"""Listens to the frameworks that training code imports."""

from pathlib import Path

from distdl_jupyter.worker.sources import Sources
from distdl_jupyter.worker.watch import (
    accelerate,
    check_torch,
    child_processes,
    communication,
    compiling,
    deepspeed,
    device,
    display,
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
    device,
    gpu_memory,
    display,
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
    unused_parameters.watch(finder, sources, code)
    return finder
