"""``torch.compile``: reports when this rank compiles.

A rank that compiles reports nothing else, sometimes for many minutes. This is the only module that uses
``torch._dynamo.callback`` (in torch 2.4 and later); under a torch without it, nothing is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.watch.hooks import PostImport

#: Returns whether a compiler traces the code, which treats the result as a constant.
is_compiling: Callable[[], bool] = bool
#: Whether a compiler has begun, before which ``is_compiling`` need not be called.
has_begun = False


def watch(finder: PostImport) -> None:
    """Report each compilation."""
    finder.after("torch.compiler", _bind)
    finder.after("torch._dynamo.callback", _listen)


def _bind(module: ModuleType) -> None:
    global is_compiling, has_begun
    if hasattr(module, "is_compiling"):  # torch 2.1
        is_compiling, has_begun = module.is_compiling, True


def _listen(module: ModuleType) -> None:
    global has_begun
    handler = module.callback_handler
    handler.register_start_callback(_started)
    handler.register_end_callback(lambda *_: channel.send("compile", compiling=False))
    has_begun = False


def _started(*_: Any) -> None:
    global has_begun
    has_begun = True
    channel.send("compile", compiling=True)
