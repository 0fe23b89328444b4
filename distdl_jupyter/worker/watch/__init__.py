"""Listens to the frameworks that training code uses: when the ranks meet, and what a framework reports by itself.

Nothing here imports a framework, and nothing here can break user code: what fails becomes a note.
"""

from distdl_jupyter.worker.watch import device, display, keras, lightning, rendezvous, tensorboard, transformers
from distdl_jupyter.worker.watch.hooks import PostImport, install

__all__ = ["start"]


def start() -> PostImport:
    """Begin to listen; to be called once, before any user code is imported."""
    finder = install()
    for part in (device, display, rendezvous, keras, lightning, transformers, tensorboard):
        part.watch(finder)
    return finder
