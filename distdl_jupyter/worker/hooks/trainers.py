"""Reports the metrics of Lightning, Transformers, Accelerate, DeepSpeed and Ray Train, without changes to user code.

Public callbacks are used if a library has them. Only this module uses these private names of Lightning (checked in
release 2.6): ``_LoggerConnector.log_metrics``, which passes the values of ``self.log`` to loggers with their final
names and steps, and ``_batches_that_stepped``, the step count.
"""

from __future__ import annotations

import fcntl
import functools
import json
import math
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from distdl_jupyter import permissions
from distdl_jupyter.worker import channel
from distdl_jupyter.worker.hooks import autolog
from distdl_jupyter.worker.hooks.imports import PostImport, guarded, replaces

#: Names of the packages that contain Lightning.
LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
#: Values logged by Lightning and Transformers that are not metrics.
_NOT_METRICS = ("epoch", "step")
_losses = autolog.Losses()


def watch(finder: PostImport) -> None:
    """Hook the trainers when they are imported."""
    for package in LIGHTNING:
        finder.after(f"{package}.trainer.trainer", functools.partial(_watch_lightning, package))
        finder.after(f"{package}.trainer.connectors.logger_connector.logger_connector", _watch_loggers)
    finder.after("transformers.trainer", _watch_transformers)
    finder.after("accelerate.accelerator", _watch_accelerator)
    finder.after("deepspeed.ops.op_builder.builder", _watch_builds)
    finder.after("deepspeed.runtime.engine", _watch_engine)
    finder.after("deepspeed.runtime.pipe.engine", _watch_pipeline)
    finder.after("deepspeed", _pass_config)
    finder.after("ray.train.v2.api.data_parallel_trainer", _watch_ray)


def _run_with_callback(owner: Any, name: str, add: Callable[[Any], None]) -> None:
    """Add a callback to each trainer before the method ``name`` runs. Engines inside the method do not report."""

    @replaces(owner, name)
    def run(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        guarded(f"before {owner.__name__}.{name}", add, self)
        with autolog.driving():
            return original(self, *args, **kwargs)


# Lightning ---------------------------------------------------------------------------------------


def _watch_lightning(package: str, module: ModuleType) -> None:
    def add(trainer: Any) -> None:
        if not any(isinstance(callback, _LightningReports) for callback in trainer.callbacks):
            trainer.callbacks.append(type("JobMetrics", (_LightningReports, sys.modules[package].Callback), {})())

    _run_with_callback(module.Trainer, "fit", add)


def _watch_loggers(module: ModuleType) -> None:
    @replaces(module._LoggerConnector, "log_metrics")  # noqa: SLF001
    def log_metrics(original: Any, self: Any, metrics: dict[str, Any], step: int | None = None) -> Any:
        guarded("in Lightning's logging", _offer_lightning, self.trainer, metrics, step)
        with autolog.muted():
            return original(self, metrics, step)


def _offer_lightning(trainer: Any, metrics: dict[str, Any], step: int | None) -> None:
    if step is None:
        step = int(metrics["step"]) if "step" in metrics else _lightning_step(trainer)
    autolog.offer("lightning", step, {name: value for name, value in metrics.items() if name not in _NOT_METRICS})


def _lightning_step(trainer: Any) -> int:
    """Return the batch number that Lightning uses for logging; it starts at 0."""
    inner = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", None)
    return int(trainer.global_step if inner is None else inner)


class _LightningReports:
    """The methods of our Lightning callback."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        guarded("in Trainer.fit", self._batch, trainer, outputs, batch_idx)

    def _batch(self, trainer: Any, outputs: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            autolog.offer("lightning batches", _lightning_step(trainer), {"loss": loss.detach()})
        batches, epochs, steps = trainer.num_training_batches, trainer.max_epochs, trainer.max_steps
        if steps is not None and steps > 0:
            autolog.advance(trainer.global_step, steps, "steps")
        elif epochs and epochs > 0 and math.isfinite(batches):
            autolog.advance(trainer.current_epoch * batches + batch_idx + 1, epochs * batches, "batches")


# Transformers ------------------------------------------------------------------------------------


def _watch_transformers(module: ModuleType) -> None:
    def add(trainer: Any) -> None:
        if not any(isinstance(callback, _TransformersReports) for callback in trainer.callback_handler.callbacks):
            base = sys.modules["transformers.trainer_callback"].TrainerCallback
            trainer.add_callback(type("JobMetrics", (_TransformersReports, base), {})())

    for name in ("train", "evaluate"):
        _run_with_callback(module.Trainer, name, add)

    @replaces(module.Trainer, "log")
    def log(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        with autolog.muted():  # its TensorBoardCallback writes the same values under other names
            return original(self, *args, **kwargs)


class _TransformersReports:
    """The methods of our Transformers callback."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        metrics = {
            name: value
            for name, value in (logs or {}).items()
            if name not in (*_NOT_METRICS, "total_flos") and not name.endswith("_runtime")
        }
        guarded("in the Trainer's log", autolog.offer, "transformers", state.global_step, metrics)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.max_steps and state.max_steps > 0:
            guarded("in the Trainer's step", autolog.advance, state.global_step, state.max_steps, "steps")


# Accelerate: it does not report the loss of a step, but every loop passes it to ``Accelerator.backward`` ----

#: Number of steps so far, by Accelerator.
_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def _watch_accelerator(module: ModuleType) -> None:
    @replaces(module.Accelerator, "backward")
    def backward(original: Any, self: Any, loss: Any, **kwargs: Any) -> Any:
        with autolog.driving() as is_outermost:
            result = original(self, loss, **kwargs)
        if is_outermost:
            guarded("in Accelerator.backward", _accelerate_batch, self, loss)
        return result

    @replaces(module.Accelerator, "log")
    def log(
        original: Any, self: Any, values: dict[str, Any], step: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        number = _steps.get(self, 0) if step is None else step
        guarded("in Accelerator.log", autolog.offer, "Accelerator.log", number, dict(values))
        with autolog.muted():  # its trackers write the same values
            return original(self, values, step, *args, **kwargs)


def _accelerate_batch(accelerator: Any, loss: Any) -> None:
    _losses.keep(accelerator, loss)
    if accelerator.sync_gradients:
        _steps[accelerator] = _steps.get(accelerator, 0) + 1
        autolog.offer("accelerate", _steps[accelerator], _losses.mean(accelerator))


# DeepSpeed ---------------------------------------------------------------------------------------

#: Environment variable with the job's DeepSpeed config as JSON (``backends.deepspeed``).
_CONFIG = "DISTDL_DEEPSPEED_CONFIG"
#: Number of arguments of ``initialize`` between ``args`` and ``config``.
_BEFORE_CONFIG = 9


def _pass_config(module: ModuleType) -> None:
    config = os.environ.get(_CONFIG)
    if not config:
        return

    @replaces(module, "initialize")
    def initialize(original: Any, args: Any = None, *more: Any, **kwargs: Any) -> Any:
        has_config = len(more) > _BEFORE_CONFIG or any(
            kwargs.get(name) is not None for name in ("config", "config_params")
        )
        if has_config or getattr(args, "deepspeed_config", None) is not None:
            channel.note("warning", "The code passes its own DeepSpeed config, so the job's config is not used.")
        else:
            kwargs["config"] = json.loads(config)
        return original(args, *more, **kwargs)


def _watch_engine(module: ModuleType) -> None:
    @replaces(module.DeepSpeedEngine, "backward")
    def backward(original: Any, self: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        if not autolog.driving.is_inside:
            guarded("in DeepSpeed's backward", _losses.keep, self, loss)
        return original(self, loss, *args, **kwargs)

    @replaces(module.DeepSpeedEngine, "step")
    def step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.global_steps
        try:
            return original(self, *args, **kwargs)
        finally:
            if self.global_steps > before and not autolog.driving.is_inside:
                guarded("in DeepSpeed's step", lambda: _offer_deepspeed(self, _losses.mean(self)))


def _watch_pipeline(module: ModuleType) -> None:
    @replaces(module.PipelineEngine, "train_batch")
    def train_batch(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(self, *args, **kwargs)
        if not autolog.driving.is_inside:
            guarded("in DeepSpeed's train_batch", _offer_deepspeed, self, {"loss": loss.detach()})
        return loss


def _offer_deepspeed(engine: Any, metrics: dict[str, Any]) -> None:
    rates = engine.get_lr()
    autolog.offer("deepspeed", engine.global_steps, metrics | ({"lr": rates[0]} if rates else {}))


def _watch_builds(module: ModuleType) -> None:
    """Let only one process at a time compile a DeepSpeed operator, make ``ninja`` available, and report builds.

    torch guards a build with a file named ``lock``. If a rank is killed during a build, the file remains and all later
    processes wait forever (``torch.utils.file_baton``). So builds use a separate folder with a lock that the operating
    system releases when the process exits. The holder of this lock removes the ``lock`` files: they are stale.
    """
    if shutil.which("ninja") is None:
        os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        return
    folder = _build_folder()
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)

    @replaces(module.OpBuilder, "jit_load")
    def jit_load(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        with (folder / "building").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in folder.glob("*/lock"):
                left.unlink()  # left by a killed process
            if not any((folder / str(self.name)).glob("*.so")):
                text = f"DeepSpeed compiles {self.name}. This is done once per machine and takes about a minute."
                channel.note("info", text)
            return original(self, *args, **kwargs)


def _build_folder() -> Path:
    """Return the private folder for builds, from which ranks load code. Raises PermissionError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built_for = f"python{sys.version_info[0]}.{sys.version_info[1]}-torch{sys.modules['torch'].__version__}"
    return permissions.private_folder(
        permissions.private_folder(permissions.user_folder(cache / "distdl") / "torch_extensions") / built_for
    )


# Ray Train ---------------------------------------------------------------------------------------

#: Timeout in seconds for a report, after which the thread checks whether training has ended.
_WAIT_SECONDS = 0.5


def _watch_ray(module: ModuleType) -> None:
    @replaces(module.DataParallelTrainer, "fit")
    def fit(original: Any, self: Any) -> Any:
        reports = guarded("before the trainer's fit", _RayReports, self)
        try:
            return original(self)
        finally:
            if reports is not None:
                guarded("after the trainer's fit", reports.close)


class _RayReports:
    """Reports the metrics of a trainer's workers during training, in the process that calls ``fit()``.

    Ray passes the metrics of ``ray.train.report`` to callbacks in its controller, which is another process, so they are
    sent back through a Ray queue. As in Ray's results, the metrics of worker 0 are reported; steps count the reports.
    """

    def __init__(self, trainer: Any) -> None:
        from ray.util.queue import Queue

        self._queue = Queue(actor_options={"num_cpus": 0})
        self._config = trainer.run_config
        self._callbacks = self._config.callbacks
        self._config.callbacks = [*(self._callbacks or ()), _ray_callback(self._queue)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="ray reports", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        from ray.util.queue import Empty

        count = 0
        while True:
            ended = self._ended.is_set()
            try:
                metrics = self._queue.get(timeout=_WAIT_SECONDS)
            except Empty:
                if ended:
                    return
            except Exception:  # noqa: BLE001 - Ray has exited
                return
            else:
                count += 1
                guarded("in ray.train.report", autolog.offer, "ray.train", count, metrics)

    def close(self) -> None:
        """Report the remaining metrics."""
        self._config.callbacks = self._callbacks
        self._ended.set()
        self._thread.join()
        self._queue.shutdown()


def _ray_callback(queue: Any) -> Any:
    """Return a callback for Ray's controller. It is sent by value, because this package may not be installed there."""
    base: Any = sys.modules["ray.train"].UserCallback

    class JobMetrics(base):  # type: ignore[misc]
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            if metrics and metrics[0]:
                queue.put(dict(metrics[0]))

    return JobMetrics()
