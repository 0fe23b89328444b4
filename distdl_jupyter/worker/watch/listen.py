"""Listens to the frameworks that training code imports."""

from distdl_jupyter.worker.watch import (
    deepspeed,
    device,
    display,
    keras,
    lightning,
    rendezvous,
    tensorboard,
    transformers,
)
from distdl_jupyter.worker.watch.hooks import PostImport, install


def start() -> PostImport:
    """Begin to listen; to be called once, before any user code is imported."""
    finder = install()
    for part in (device, display, rendezvous, keras, lightning, transformers, deepspeed, tensorboard):
        part.watch(finder)
    return finder
