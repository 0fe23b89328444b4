"""Listens to the frameworks that training code imports."""

from distdl_jupyter.worker.watch import (
    accelerate,
    deepspeed,
    device,
    display,
    keras,
    lightning,
    ray_train,
    rendezvous,
    step_hooks,
    tensorboard,
    transformers,
)
from distdl_jupyter.worker.watch.hooks import PostImport, install

_PARTS = (device, display, rendezvous, step_hooks, keras, lightning, transformers, accelerate, deepspeed, ray_train,
          tensorboard)  # fmt: skip


def start() -> PostImport:
    """Begin to listen; to be called once, before any user code is imported."""
    finder = install()
    for part in _PARTS:
        part.watch(finder)
    return finder
