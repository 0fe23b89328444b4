"""Gives DeepSpeed the job's config, picks up the loss and the learning rate of its engine, and has it build safely.

DeepSpeed compiles a part of itself at its first use. torch guards that with a file whose name is ``lock``; a rank that
is killed meanwhile leaves it, and every later process waits for ever (``torch.utils.file_baton``). Here the builds
have a folder of their own under a lock that ends with its process, so a file that lies there is nobody's.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from distdl_jupyter.node import permissions
from distdl_jupyter.worker import channel
from distdl_jupyter.worker.watch import autolog
from distdl_jupyter.worker.watch.hooks import PostImport, guarded

#: The config of the job, as JSON (``backends.deepspeed``).
_VARIABLE = "DISTDL_DEEPSPEED_CONFIG"
_losses = autolog.Losses()


def watch(finder: PostImport) -> None:
    """Ask to be told when DeepSpeed's parts are imported."""
    finder.after("deepspeed.ops.op_builder.builder", _watch_builds)
    finder.after("deepspeed.runtime.engine", _watch_engine)
    finder.after("deepspeed.runtime.pipe.engine", _watch_pipeline)
    finder.after("deepspeed", _give_config)


def _give_config(module: ModuleType) -> None:
    given = os.environ.get(_VARIABLE)
    if not given:
        return
    original = module.initialize

    @functools.wraps(original)
    def initialize(args: Any = None, *more: Any, **kwargs: Any) -> Any:
        own = len(more) > _BEFORE_CONFIG or any(kwargs.get(name) is not None for name in ("config", "config_params"))
        if own or getattr(args, "deepspeed_config", None) is not None:
            channel.note("warning", "The code passes its own DeepSpeed config, so the job's config is not used.")
        else:
            kwargs["config"] = json.loads(given)
        return original(args, *more, **kwargs)

    module.initialize = initialize  # type: ignore[attr-defined]


#: Arguments of ``initialize`` between ``args`` and ``config``.
_BEFORE_CONFIG = 9


def _watch_engine(module: ModuleType) -> None:
    engine = module.DeepSpeedEngine
    backward, step = engine.backward, engine.step

    @functools.wraps(backward)
    def watched_backward(self: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        if not autolog.is_driven():
            guarded("in DeepSpeed's backward", _losses.keep, self, loss)
        return backward(self, loss, *args, **kwargs)

    @functools.wraps(step)
    def watched_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.global_steps
        try:
            return step(self, *args, **kwargs)
        finally:
            if self.global_steps > before and not autolog.is_driven():
                guarded("in DeepSpeed's step", lambda: _offer(self, _losses.mean(self)))

    engine.backward, engine.step = watched_backward, watched_step


def _watch_pipeline(module: ModuleType) -> None:
    engine = module.PipelineEngine
    train_batch = engine.train_batch

    @functools.wraps(train_batch)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = train_batch(self, *args, **kwargs)
        if not autolog.is_driven():
            guarded("in DeepSpeed's train_batch", _offer, self, {"loss": loss.detach()})
        return loss

    engine.train_batch = watched


def _offer(engine: Any, metrics: dict[str, Any]) -> None:
    rates = engine.get_lr()
    autolog.offer("deepspeed", engine.global_steps, metrics | ({"lr": rates[0]} if rates else {}))


def _watch_builds(module: ModuleType) -> None:
    """Let one process at a time build, where ``ninja`` is found, and say that it does."""
    builder = module.OpBuilder
    original = builder.jit_load
    if shutil.which("ninja") is None:
        os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        return
    folder = _folder()
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)

    @functools.wraps(original)
    def jit_load(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _alone(functools.partial(original, self, *args, **kwargs), folder, str(self.name))

    builder.jit_load = jit_load


def _folder() -> Path:
    """Return the folder of the builds, this user's alone, for ranks load what is there. Raises PermissionError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built_for = f"python{sys.version_info[0]}.{sys.version_info[1]}-torch{sys.modules['torch'].__version__}"
    return permissions.own(permissions.own(permissions.chosen(cache / "distdl") / "torch_extensions") / built_for)


def _alone(build: Callable[[], Any], folder: Path, name: str) -> Any:
    with (folder / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob("*/lock"):
            left.unlink()  # of a process that was killed: who builds here holds the lock above
        if not any((folder / name).glob("*.so")):
            channel.note("info", f"DeepSpeed compiles {name}. This is done once per machine and takes about a minute.")
        return build()
