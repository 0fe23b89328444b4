"""Reports the metrics of Lightning, Transformers, Accelerate, DeepSpeed and Ray Train, without changes to user code.

The user's ``log`` takes precedence; nothing is reported twice. A name is reported only by the framework that reported
it first, because Lightning also writes its metrics to a ``SummaryWriter``. If frameworks are nested (a Trainer uses
Accelerate, which uses DeepSpeed), only the outermost one reports. Scalars that training code writes to a
``SummaryWriter`` of torch or tensorboardX are also reported.

Public callbacks are used if a library has them. Only this module uses these private names of Lightning (checked in
release 2.6): ``_LoggerConnector.log_metrics``, which passes the values of ``self.log`` to loggers with their final
names and steps, and ``_batches_that_stepped``, the step count.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import math
import os
import shutil
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distdl_jupyter import permissions
from distdl_jupyter.worker import channel, report
from distdl_jupyter.worker.hooks.imports import Patches, call_hook

#: The source of each metric, by name.
_owners: dict[str, str] = {}
_lock = threading.Lock()


def report_metrics(source: str, step: float, metrics: dict[str, Any]) -> None:
    """Report the metrics of ``source`` at ``step``, except for those that the user or another source reports."""
    accepted = {}
    with _lock:
        for name, value in metrics.items():
            if name not in report.user_names and _owners.get(name, source) == source and _is_number(name, value):
                accepted[name], _owners[name] = value, source
    if accepted:
        report.send(step, accepted)


def _is_number(name: str, value: Any) -> bool:
    if getattr(value, "is_cuda", False):
        return bool(value.numel() == 1)
    with contextlib.suppress(TypeError):
        report.to_json(name, value)
        return True
    return False


def report_progress(completed: float, total: float | None, unit: str) -> None:
    """Report a framework's progress, unless the user's code calls ``progress``."""
    if not report.has_user_progress:
        channel.send("progress", done=completed, total=total, unit=unit)


class _SilencedReports(threading.local):
    """Context manager in which some reports of this thread are silenced. Yields whether the block is the outermost."""

    is_active = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[bool]:
        was_active, self.is_active = self.is_active, True
        try:
            yield not was_active
        finally:
            self.is_active = was_active


#: In this block a SummaryWriter does not report, because a framework writes values that are already reported.
silenced_writers = _SilencedReports()
#: In this block engines do not report, because the framework that uses them does.
silenced_engines = _SilencedReports()


#: Step counters of tags that are written without a step.
_step_counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
_patch = Patches()
#: Hooks SummaryWriter and the trainers when they are imported.
install_hooks = _patch.install
_WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


@_patch("SummaryWriter.add_scalar", *_WRITERS)
def _add_scalar(
    add: Any, self: Any, tag: str, scalar_value: Any, global_step: Any = None, *args: Any, **kwargs: Any
) -> Any:
    _report_scalars(str(tag), {str(tag): scalar_value}, global_step)
    return add(self, tag, scalar_value, global_step, *args, **kwargs)


@_patch("SummaryWriter.add_scalars", *_WRITERS)
def _add_scalars(
    add: Any, self: Any, main_tag: str, tag_scalar_dict: Any, global_step: Any = None, *args: Any, **kwargs: Any
) -> Any:
    if isinstance(tag_scalar_dict, dict):
        named = {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}
        _report_scalars(str(main_tag), named, global_step)
    with silenced_writers():  # tensorboardX calls add_scalar for each of them
        return add(self, main_tag, tag_scalar_dict, global_step, *args, **kwargs)


def _report_scalars(tag: str, values: dict[str, Any], global_step: Any) -> None:
    if not silenced_writers.is_active:
        step = next(_step_counters[tag]) if global_step is None else global_step
        call_hook("in SummaryWriter", lambda: report_metrics("tensorboard", int(step), values))


#: Names of the packages that contain Lightning.
LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
#: Values logged by Lightning and Transformers that are not metrics.
_NON_METRICS = ("epoch", "step", "total_flos")
#: The losses of the batches since the last step of each engine, tensors with one element.
_losses: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def _add_callback(callbacks: list[Any], methods: type, base: type) -> None:
    if not any(isinstance(callback, methods) for callback in callbacks):
        callbacks.append(type("JobMetrics", (methods, base), {})())


def _pop_loss(engine: Any) -> dict[str, Any]:
    """Return the mean of the losses as a metric, or {} if there are none, and clear them."""
    losses = _losses.pop(engine, [])
    return {"loss": sum(losses) / len(losses)} if losses else {}


@_patch("Trainer.fit", *(f"{package}.trainer.trainer" for package in LIGHTNING))
def _fit(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    def add() -> None:
        package = next(name for base in type(self).__mro__ for name in LIGHTNING if base.__module__.startswith(name))
        _add_callback(self.callbacks, _LightningCallback, sys.modules[package].Callback)

    call_hook("before Trainer.fit", add)
    with silenced_engines():
        return original(self, *args, **kwargs)


@_patch(
    "_LoggerConnector.log_metrics",
    *(f"{package}.trainer.connectors.logger_connector.logger_connector" for package in LIGHTNING),
)
def _log_metrics(original: Any, self: Any, metrics: dict[str, Any], step: int | None = None) -> Any:
    def report() -> None:
        number = step if step is not None else metrics.get("step", _get_lightning_step(self.trainer))
        values = {name: value for name, value in metrics.items() if name not in _NON_METRICS}
        report_metrics("lightning", int(number), values)

    call_hook("in Lightning's logging", report)
    with silenced_writers():
        return original(self, metrics, step)


def _get_lightning_step(trainer: Any) -> int:
    """Return the batch number that Lightning uses for logging; it starts at 0."""
    return int(getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", trainer.global_step))


class _LightningCallback:
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        def report() -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if loss is not None:
                report_metrics("lightning batches", _get_lightning_step(trainer), {"loss": loss.detach()})
            batches, epochs, steps = trainer.num_training_batches, trainer.max_epochs, trainer.max_steps
            if steps is not None and steps > 0:
                report_progress(trainer.global_step, steps, "steps")
            elif epochs and epochs > 0 and math.isfinite(batches):
                report_progress(trainer.current_epoch * batches + batch_idx + 1, epochs * batches, "batches")

        call_hook("in Trainer.fit", report)


@_patch("Trainer.train", "transformers.trainer")
@_patch("Trainer.evaluate", "transformers.trainer")
def _run_transformers(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    base = sys.modules["transformers.trainer_callback"].TrainerCallback
    call_hook("before a Trainer runs", _add_callback, self.callback_handler.callbacks, _TransformersCallback, base)
    with silenced_engines():
        return original(self, *args, **kwargs)


@_patch("Trainer.log", "transformers.trainer")
def _log_transformers(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    with silenced_writers():  # its TensorBoardCallback writes the same values under other names
        return original(self, *args, **kwargs)


class _TransformersCallback:
    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        items = (logs or {}).items()
        metrics = {name: value for name, value in items if name not in _NON_METRICS and not name.endswith("_runtime")}
        call_hook("in the Trainer's log", report_metrics, "transformers", state.global_step, metrics)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.max_steps and state.max_steps > 0:
            call_hook("in the Trainer's step", report_progress, state.global_step, state.max_steps, "steps")


#: Number of steps so far, by Accelerator. It does not report the loss of a step, but every loop passes the loss to
#: ``Accelerator.backward``.
_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


@_patch("Accelerator.backward", "accelerate.accelerator")
def _accelerate_backward(original: Any, self: Any, loss: Any, **kwargs: Any) -> Any:
    def report() -> None:
        _losses.setdefault(self, []).append(loss.detach())
        if self.sync_gradients:
            _steps[self] = _steps.get(self, 0) + 1
            report_metrics("accelerate", _steps[self], _pop_loss(self))

    with silenced_engines() as is_outermost:
        result = original(self, loss, **kwargs)
    if is_outermost:
        call_hook("in Accelerator.backward", report)
    return result


@_patch("Accelerator.log", "accelerate.accelerator")
def _accelerate_log(
    original: Any, self: Any, values: dict[str, Any], step: int | None = None, *args: Any, **kwargs: Any
) -> Any:
    number = _steps.get(self, 0) if step is None else step
    call_hook("in Accelerator.log", report_metrics, "Accelerator.log", number, dict(values))
    with silenced_writers():  # its trackers write the same values
        return original(self, values, step, *args, **kwargs)


#: Environment variable with the job's DeepSpeed config as JSON (``backends.deepspeed``).
_CONFIG_VARIABLE = "DISTDL_DEEPSPEED_CONFIG"
#: Number of arguments of ``initialize`` between ``args`` and ``config``.
_CONFIG_INDEX = 9


@_patch("initialize", "deepspeed")
def _initialize(original: Any, args: Any = None, *positional: Any, **kwargs: Any) -> Any:
    configs = (kwargs.get("config"), kwargs.get("config_params"), getattr(args, "deepspeed_config", None))
    if config := os.environ.get(_CONFIG_VARIABLE):
        if len(positional) > _CONFIG_INDEX or configs != (None, None, None):
            channel.notify("warning", "The code passes its own DeepSpeed config, so the job's config is not used.")
        else:
            kwargs["config"] = json.loads(config)
    return original(args, *positional, **kwargs)


@_patch("DeepSpeedEngine.backward", "deepspeed.runtime.engine")
def _deepspeed_backward(original: Any, self: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
    if not silenced_engines.is_active:
        call_hook("in DeepSpeed's backward", lambda: _losses.setdefault(self, []).append(loss.detach()))
    return original(self, loss, *args, **kwargs)


@_patch("DeepSpeedEngine.step", "deepspeed.runtime.engine")
def _deepspeed_step(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    def report() -> None:
        rates = self.get_lr()
        report_metrics("deepspeed", self.global_steps, _pop_loss(self) | ({"lr": rates[0]} if rates else {}))

    steps_before = self.global_steps
    try:
        return original(self, *args, **kwargs)
    finally:
        if self.global_steps > steps_before and not silenced_engines.is_active:
            call_hook("in DeepSpeed's step", report)


@_patch("OpBuilder.jit_load", "deepspeed.ops.op_builder.builder")
def _build_operator(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Let only one process at a time compile a DeepSpeed operator, make ``ninja`` available, and report builds.

    torch guards a build with a file named ``lock``. If a rank is killed during a build, the file remains and all later
    processes wait forever (``torch.utils.file_baton``). So builds use a separate folder with a lock that the operating
    system releases when the process exits. The holder of this lock removes the stale ``lock`` files.
    """
    if shutil.which("ninja") is None:
        os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))

    def make_folder() -> Path:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        builds = permissions.make_private(permissions.make_folder(cache / "distdl") / "torch_extensions")
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}-torch{sys.modules['torch'].__version__}"
        return permissions.make_private(builds / version)  # ranks load code from it

    folder = call_hook("before DeepSpeed compiles an operator", make_folder)
    if folder is None or os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(folder)) != str(folder):
        return original(self, *args, **kwargs)
    with (folder / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for stale_lock in folder.glob("*/lock"):
            stale_lock.unlink()
        if not any((folder / str(self.name)).glob("*.so")):
            text = f"DeepSpeed is compiling {self.name}, which happens once per machine and takes about a minute."
            channel.notify("info", text)
        return original(self, *args, **kwargs)


#: Timeout in seconds for a report, after which the thread checks whether training has ended.
_WAIT_SECONDS = 0.5


@_patch("DataParallelTrainer.fit", "ray.train.v2.api.data_parallel_trainer")
def _fit_ray(original: Any, self: Any) -> Any:
    close = call_hook("before the trainer's fit", _follow_ray, self)
    try:
        return original(self)
    finally:
        if close is not None:
            call_hook("after the trainer's fit", close)


def _follow_ray(trainer: Any) -> Callable[[], None]:
    """Report the metrics of a trainer's workers during training, and return a function that reports the last ones.

    Ray passes the metrics of ``ray.train.report`` to callbacks in its controller, which is another process, so they are
    sent back through a Ray queue to the process that calls ``fit()``. As in Ray's results, the metrics of worker 0 are
    reported; steps count the reports.
    """
    from ray.util.queue import Empty, Queue

    queue, config, ended = Queue(actor_options={"num_cpus": 0}), trainer.run_config, threading.Event()
    callbacks = config.callbacks

    class JobMetrics(sys.modules["ray.train"].UserCallback):  # type: ignore[misc]
        """Sent to the controller by value, because this package may not be installed there."""

        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            if metrics and metrics[0]:
                queue.put(dict(metrics[0]))

    def follow() -> None:
        count = 0
        while True:
            has_ended = ended.is_set()
            try:
                metrics = queue.get(timeout=_WAIT_SECONDS)
                count += 1
                call_hook("in ray.train.report", report_metrics, "ray.train", count, metrics)
            except Empty:
                if has_ended:
                    return
            except Exception:  # noqa: BLE001 - Ray has exited
                return

    def close() -> None:
        config.callbacks = callbacks
        ended.set()
        thread.join()
        queue.shutdown()

    config.callbacks = [*(callbacks or ()), JobMetrics()]
    thread = threading.Thread(target=follow, name="ray reports", daemon=True)
    thread.start()
    return close
