"""Measures training steps with torch and Horovod, and with trainers built on them (``step_times``).

* A step ends with ``torch.optim.Optimizer.step``. Waits for batches are measured in the iterator of ``DataLoader``.
* DistributedDataParallel waits for its all-reduces in a callback at the end of the backward pass. A hook on the loss
  queues our callback before it, which records when this rank has finished its part (``Engine::queue_callback``
  preserves the order).
* Python code waits for collective operations in ``Work.wait``, and Horovod's optimizer in ``synchronize``.

The hooks do not affect torch's compiler: it does not start at these functions, and when it traces a call of one, the
function only calls the original. A rank reports when it compiles, because it may report nothing else for many minutes.

This is the only module that uses these private names of torch: ``_BaseDataLoaderIter``, ``_pre_forward`` and
``_sync_buffers`` of DistributedDataParallel, ``_execution_engine``, ``torch._dynamo.callback`` and ``eval_frame``.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Mapping
from types import CodeType, ModuleType
from typing import Any

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.hooks import distributed
from distdl_jupyter.worker.hooks.imports import PostImport
from distdl_jupyter.worker.step_times import now, recorder


class _Inside(threading.local):
    on = backward = False


#: Whether this thread is inside a measured wait (``on``) or backward pass. Nested ones are not measured separately.
inside = _Inside()
#: Code objects of our functions that replace torch's.
_codes: set[CodeType] = set()
#: Functions that are called with the optimizer after each measured step.
_listeners: list[Callable[[Any], None]] = []
#: Function that is called after each step of each optimizer, so it must be fast.
count: Callable[[Any], None] | None = None
#: While a profile is recorded, a decorator that marks a wait in it (``hooks.profile``).
annotate_wait: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
#: Maximum depth of nested containers in which the tensors of a batch are searched.
_MAX_DEPTH = 4
#: Returns whether a compiler is tracing the code. The compiler treats the result as a constant.
is_compiling: Callable[[], bool] = bool
#: Whether a compiler has been started. Before that, ``is_compiling`` is not called.
_has_compiler = False


def watch(finder: PostImport) -> None:
    """Start measuring and hook the modules that run steps."""
    recorder.enable()
    finder.after("torch.optim.optimizer", lambda module: module.register_optimizer_step_post_hook(_stepped))
    finder.after("torch.utils.data.dataloader", _watch_loaders)
    finder.after("torch.autograd", _watch_backward)
    finder.after("torch.nn.parallel.distributed", _watch_parallel)
    finder.after("torch.distributed.distributed_c10d", lambda module: _time_method(module.Work, "wait"))
    finder.after("torch._dynamo.eval_frame", _skip_codes)
    finder.after("torch.compiler", _watch_compiler)
    finder.after("torch._dynamo.callback", _watch_compilations)
    finder.after("horovod.torch.mpi_ops", _watch_synchronize)
    finder.after("horovod.torch.optimizer", _watch_horovod)


def listen(call: Callable[[Any], None]) -> None:
    """Call ``call(optimizer)`` after each measured step."""
    _listeners.append(call)


def _watch_compiler(module: ModuleType) -> None:
    global is_compiling, _has_compiler
    is_compiling, _has_compiler = module.is_compiling, True


def _watch_compilations(module: ModuleType) -> None:
    global _has_compiler

    def on_start(*_: Any) -> None:
        global _has_compiler
        _has_compiler = True
        channel.send("compile", compiling=True)

    module.callback_handler.register_start_callback(on_start)
    module.callback_handler.register_end_callback(lambda *_: channel.send("compile", compiling=False))
    _has_compiler = False


def _stepped(optimizer: Any, *_: Any) -> None:
    if _has_compiler and is_compiling():
        return
    if count is not None:
        count(optimizer)
    if recorder.skips:
        recorder.skip()
        return
    measured = recorder.detailed
    recorder.stepped()
    if measured:
        for call in _listeners:
            call(optimizer)


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function so that torch's compiler does not start at it, as for functions of torch itself."""
    _codes.add(function.__code__)
    if (compiler := sys.modules.get("torch._dynamo.eval_frame")) is not None:
        _skip_codes(compiler)
    return function


def _skip_codes(compiler: ModuleType) -> None:
    if hasattr(compiler, "skip_code"):
        for code in _codes:
            compiler.skip_code(code)


def _timed(original: Callable[..., Any], report: Callable[[int, Any], None] | None = None) -> Callable[..., Any]:
    """Return a wrapper that calls ``report(begin, batch)`` after each call of ``original``, except nested calls.

    By default, ``original`` waits for other ranks.
    """

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if not recorder.detailed:
            if report is not None:
                return original(*args, **kwargs)
            begin = now()
            try:
                return original(*args, **kwargs)
            finally:
                recorder.blocked += now() - begin
        if inside.on:
            return original(*args, **kwargs)
        inside.on = True
        begin, result = recorder.begin("wait" if report is None else "data"), None
        try:
            call = original if report is not None or annotate_wait is None else annotate_wait(original)
            result = call(*args, **kwargs)
            return result
        finally:
            inside.on = False
            if report is None:
                recorder.wait(begin)
            else:
                report(begin, result)

    return _untraced(watched)


def _time_method(owner: Any, name: str) -> None:
    if (original := getattr(owner, name, None)) is not None:  # a version may not have it
        setattr(owner, name, _timed(original))


def _watch_loaders(module: ModuleType) -> None:
    iterator, loader = module._BaseDataLoaderIter, module.DataLoader  # noqa: SLF001  the base class of all iterators
    fetch = iterator.__next__
    measured = _timed(fetch, lambda begin, batch: recorder.data(begin, _samples_of(batch)))

    @functools.wraps(fetch)
    def watched(self: Any) -> Any:
        return (measured if recorder.detailed else fetch)(self)

    iterator.__next__ = _untraced(watched)
    loader.__iter__ = _timed(loader.__iter__, lambda begin, _: recorder.data(begin))


def _samples_of(batch: Any) -> int:
    """Return the size of the first dimension of the first tensor in a batch, 0 if there is none."""
    try:
        for _ in range(_MAX_DEPTH):
            if (shape := getattr(batch, "shape", None)) is not None:
                return int(shape[0]) if len(shape) else 0
            batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    except Exception:  # noqa: BLE001  a batch may be anything
        return 0
    return 0


def _watch_parallel(module: ModuleType) -> None:
    owner = module.DistributedDataParallel
    # Each forward pass begins with this private method, whether it is compiled or not.
    begin_forward, torch = owner._pre_forward, sys.modules["torch"]  # noqa: SLF001

    @functools.wraps(begin_forward)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (_has_compiler and is_compiling()) and recorder.detailed and torch.is_grad_enabled():
            recorder.forward()
        return begin_forward(self, *args, **kwargs)

    sync_buffers = owner._sync_buffers  # noqa: SLF001  rank 0 sends its buffers before the forward pass
    timed_sync = _timed(sync_buffers)

    @functools.wraps(sync_buffers)
    def watched_buffers(self: Any) -> None:
        (sync_buffers if is_compiling() else timed_sync)(self)

    owner._pre_forward, owner._sync_buffers = _untraced(watched), _untraced(watched_buffers)  # noqa: SLF001


def _watch_backward(autograd: ModuleType) -> None:
    backward, grad = autograd.backward, autograd.grad

    @functools.wraps(backward)
    def watched_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if _has_compiler and is_compiling():
            return backward(tensors, *args, **kwargs)
        if recorder.detailed:
            return _measured_backward(backward, tensors, *args, **kwargs)
        recorder.passed, begin = True, now()
        try:
            return backward(tensors, *args, **kwargs)
        finally:
            recorder.blocked += now() - begin

    @functools.wraps(grad)
    def watched_grad(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            if recorder.detailed:
                recorder.backward()
            else:
                recorder.passed = True
        return grad(*args, **kwargs)

    autograd.backward, autograd.grad = _untraced(watched_backward), _untraced(watched_grad)  # type: ignore[attr-defined]


def _measured_backward(backward: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a backward pass and record when the rank has finished its part and begins to wait for other ranks.

    The pass starts at ``tensors``, a tensor or a sequence. On a GPU it runs in another thread.
    """
    if not recorder.on or inside.backward:
        return backward(tensors, *args, **kwargs)
    recorder.can_skip = True
    recorder.backward()
    begin, arrival, thread, handle = now(), 0, threading.get_ident(), None

    def arrived() -> None:
        nonlocal arrival
        try:
            arrival = recorder.arrived()
        except Exception as error:  # noqa: BLE001  our failure must not become the user's
            recorder.fail(error)
        if threading.get_ident() == thread:
            inside.on = True  # later waits of this pass are part of this wait

    def on_gradient(_gradient: Any) -> None:
        try:
            sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(arrived)  # noqa: SLF001
        except Exception as error:  # noqa: BLE001  our failure must not become the user's
            recorder.fail(error)

    inside.backward = True
    try:
        with contextlib.suppress(Exception):  # if the tensor has no gradient, the backward pass itself raises
            root = tensors if hasattr(tensors, "register_hook") else tensors[0]
            if root.is_cuda and recorder.gpu is None:
                recorder.use_gpu(root.device)
            if distributed.connected() is not None:
                handle = root.register_hook(on_gradient)
        return backward(tensors, *args, **kwargs)
    finally:
        inside.backward = inside.on = False
        if handle is not None:
            handle.remove()
        recorder.backward_ended(begin, arrival)


def _watch_synchronize(mpi_ops: ModuleType) -> None:
    original = mpi_ops.synchronize
    wrapper = _timed(original)
    for name in ("horovod.torch", "horovod.torch.optimizer", mpi_ops.__name__):
        module = sys.modules.get(name)  # already imported in a rank forked from a template
        if module is not None and getattr(module, "synchronize", None) is original:
            module.synchronize = wrapper  # type: ignore[attr-defined]


def _watch_horovod(module: ModuleType) -> None:
    for name in ("_DistributedOptimizer", "_DistributedAdasumOptimizer"):
        _time_method(getattr(module, name, None), "synchronize")
