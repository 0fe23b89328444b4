"""Picks up scalars that training code writes with a ``SummaryWriter``, of torch and of tensorboardX."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from distdl_jupyter.worker.watch import autolog
from distdl_jupyter.worker.watch.hooks import PostImport, guarded

MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")

#: Steps of tags that are written without one.
_counts: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def watch(finder: PostImport) -> None:
    """Ask to be told when one of the writers is imported."""
    for name in MODULES:
        finder.after(name, _watch_writer)


def _watch_writer(module: ModuleType) -> None:
    writer = module.SummaryWriter
    add_scalar, add_scalars = writer.add_scalar, writer.add_scalars

    @functools.wraps(add_scalar)
    def one(self: Any, tag: str, scalar_value: Any, global_step: Any = None, *args: Any, **kwargs: Any) -> Any:
        _offer(str(tag), {str(tag): scalar_value}, global_step)
        return add_scalar(self, tag, scalar_value, global_step, *args, **kwargs)

    @functools.wraps(add_scalars)
    def several(
        self: Any, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(tag_scalar_dict, dict):
            named = {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}
            _offer(str(main_tag), named, global_step)
        # tensorboardX calls add_scalar for each of them.
        with autolog.muted():
            return add_scalars(self, main_tag, tag_scalar_dict, global_step, *args, **kwargs)

    writer.add_scalar, writer.add_scalars = one, several


def _offer(tag: str, values: dict[str, Any], global_step: Any) -> None:
    if not autolog.is_muted():
        guarded("in SummaryWriter", lambda: autolog.offer("tensorboard", _step(tag, global_step), values))


def _step(tag: str, global_step: Any) -> int:
    return next(_counts[tag]) if global_step is None else int(global_step)
