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

#: Says whether a compiler follows the code, which takes this for a constant.
is_compiling: Callable[[], bool] = bool


def watch(finder: PostImport) -> None:
    """Report each compilation."""
    finder.after("torch.compiler", _bind)
    finder.after("torch._dynamo.callback", _listen)


def _bind(module: ModuleType) -> None:
    global is_compiling
    if hasattr(module, "is_compiling"):  # torch 2.1
        is_compiling = module.is_compiling


def _listen(module: ModuleType) -> None:
    handler = module.callback_handler
    handler.register_start_callback(lambda *_: _report(compiling=True))
    handler.register_end_callback(lambda *_: _report(compiling=False))


def _report(**fields: Any) -> None:
    out = channel.current()
    if out is not None:
        out.send("compile", **fields)
