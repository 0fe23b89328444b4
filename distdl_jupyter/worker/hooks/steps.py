"""Measures training steps with torch and Horovod, and with trainers built on them (``step_times``).

* A step ends with ``torch.optim.Optimizer.step``. Waits for batches are measured in the iterator of ``DataLoader``.
* DistributedDataParallel waits for its all-reduces in a callback at the end of the backward pass. A hook on the loss
  queues our callback before it, which records when this rank has finished its part (torch preserves the order).
* Python code waits for collective operations in ``Work.wait``, and Horovod's optimizer in ``synchronize``.

torch's compiler does not start at the hooks, and when it traces a call of one, the hook only calls the original. A rank
reports when it compiles, because it may report nothing else for many minutes.

Private names of torch: ``_BaseDataLoaderIter``, ``_pre_forward`` and ``_sync_buffers`` of DistributedDataParallel,
``_execution_engine``, ``torch._dynamo.callback`` and ``eval_frame``. If a version of torch does not have one of them, a
notice says so and the hooks that do not need it still work.
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
from distdl_jupyter.worker.hooks.imports import HookFinder, call_hook
from distdl_jupyter.worker.step_times import read_clock, recorder


class _ThreadState(threading.local):
    is_waiting = is_in_backward = False


#: Whether this thread is inside a measured wait or backward pass. Nested ones are not measured separately.
_thread_state = _ThreadState()
#: Code objects of our functions that replace torch's.
_codes: set[CodeType] = set()
#: Functions that are called with the optimizer after each measured step. Modules with hooks add theirs.
listeners: list[Callable[[Any], None]] = []
#: Function that is called after each step of each optimizer, so it must be fast.
count_step: Callable[[Any], None] | None = None
#: Maximum depth of nested containers in which the tensors of a batch are searched.
_MAX_DEPTH = 4
#: Returns whether a compiler is tracing the code, which treats the result as a constant. It is torch's function only
#: once a compiler has started, because that function is slower.
_is_compiling: Callable[[], bool] = bool


def install_hooks(finder: HookFinder) -> None:
    """Start measuring and hook the modules that run steps."""
    recorder.is_enabled = True
    finder.hook("torch.optim.optimizer", lambda module: module.register_optimizer_step_post_hook(_on_step))
    finder.hook("torch.utils.data.dataloader", _watch_loaders)
    finder.hook("torch.autograd", _watch_backward)
    finder.hook("torch.nn.parallel.distributed", _watch_parallel)
    finder.hook("torch.distributed.distributed_c10d", lambda module: _time_method(module.Work, "wait"))
    finder.hook("torch._dynamo.eval_frame", _skip_codes)
    finder.hook("torch.compiler", _watch_compiler)
    finder.hook("torch._dynamo.callback", _watch_compilations)
    finder.hook("horovod.torch.mpi_ops", _watch_synchronize)
    finder.hook("horovod.torch.optimizer", _watch_horovod)


def _on_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if _is_compiling():
        return
    if recorder.skip_limit:
        # A copy of the usual case of ``skip``. Without the call, almost every step takes about 1 us less.
        end, skipped = recorder.backward_end, recorder.skipped + 1
        is_usual = 0 < end < recorder.resume_at and skipped < recorder.skip_limit
        if is_usual and end - recorder.skip_end < recorder.pause_limit:
            recorder.skipped, recorder.skip_end, recorder.backward_end, recorder.blocked_time = skipped, end, 0, 0
        else:
            recorder.skip()
    else:
        recorder.record_step()
        for call in listeners:
            call_hook("after an optimizer step", call, optimizer)
    if count_step is not None:
        count_step(optimizer)


def _watch_compiler(module: ModuleType) -> None:
    global _is_compiling
    _is_compiling = module.is_compiling


def _watch_compilations(module: ModuleType) -> None:
    global _is_compiling
    is_tracing = _is_compiling

    def on_start(*_: Any) -> None:
        global _is_compiling
        _is_compiling = is_tracing
        channel.send("compile", compiling=True)

    module.callback_handler.register_start_callback(on_start)
    module.callback_handler.register_end_callback(lambda *_: channel.send("compile", compiling=False))
    _is_compiling = bool


def _mark_untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function so that torch's compiler does not start at it, as for functions of torch itself."""
    _codes.add(function.__code__)
    if (compiler := sys.modules.get("torch._dynamo.eval_frame")) is not None:
        _skip_codes(compiler)
    return function


def _skip_codes(compiler: ModuleType) -> None:
    for code in _codes if hasattr(compiler, "skip_code") else ():
        compiler.skip_code(code)


def _time_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper that records each call as a wait for other ranks, except nested calls."""

    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or _thread_state.is_waiting:
            return original(*args, **kwargs)
        if recorder.skip_limit:
            begin = read_clock()
            result = original(*args, **kwargs)
            recorder.blocked_time += read_clock() - begin
            return result
        _thread_state.is_waiting, begin = True, read_clock()
        recorder.mark_part("wait", begin)
        try:
            return original(*args, **kwargs)
        finally:
            _thread_state.is_waiting = False
            recorder.record_wait(begin)

    return _mark_untraced(wait)


def _time_method(owner: Any, name: str) -> None:
    if (original := getattr(owner, name, None)) is not None:  # a version may not have it
        setattr(owner, name, _time_calls(original))


def _watch_synchronize(mpi_ops: ModuleType) -> None:
    original = mpi_ops.synchronize
    wrapper = _time_calls(original)
    for name in ("horovod.torch", "horovod.torch.optimizer", mpi_ops.__name__):
        module = sys.modules.get(name)  # already imported in a rank forked from a template
        if module is not None and getattr(module, "synchronize", None) is original:
            module.synchronize = wrapper  # type: ignore[attr-defined]


def _watch_horovod(module: ModuleType) -> None:
    for name in ("_DistributedOptimizer", "_DistributedAdasumOptimizer"):
        _time_method(getattr(module, name, None), "synchronize")


def _watch_loaders(module: ModuleType) -> None:
    def timed(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def fetch(self: Any) -> Any:
            if recorder.skip_limit or _thread_state.is_waiting:
                return original(self)
            _thread_state.is_waiting, begin, batch = True, read_clock(), None
            recorder.mark_part("data", begin)
            try:
                batch = original(self)
                return batch
            finally:
                _thread_state.is_waiting = False
                recorder.record_data(begin, _count_samples(batch))

        return _mark_untraced(fetch)

    iterator = module._BaseDataLoaderIter  # noqa: SLF001  the base class of all iterators
    iterator.__next__ = timed(iterator.__next__)
    module.DataLoader.__iter__ = timed(module.DataLoader.__iter__)


def _count_samples(batch: Any) -> int:
    """Return the size of the first dimension of the first tensor in a batch, or 0 if there is none."""
    with contextlib.suppress(Exception):  # a batch may be anything
        for _ in range(_MAX_DEPTH):
            if (shape := getattr(batch, "shape", None)) is not None:
                return int(shape[0]) if len(shape) else 0
            batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    return 0


def _watch_parallel(module: ModuleType) -> None:
    owner, torch = module.DistributedDataParallel, sys.modules["torch"]
    # Each forward pass begins with the first of these private methods, whether it is compiled or not. In the second
    # one, rank 0 sends its buffers before the forward pass.
    begin_forward = owner._pre_forward  # noqa: SLF001

    @functools.wraps(begin_forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (_is_compiling() or recorder.skip_limit) and torch.is_grad_enabled():
            recorder.record_pass(is_forward=True)
        return begin_forward(self, *args, **kwargs) if kwargs else begin_forward(self, *args)  # the latter is faster

    owner._pre_forward = _mark_untraced(forward)  # noqa: SLF001  no public method begins each pass
    _time_method(owner, "_sync_buffers")


def _watch_backward(autograd: ModuleType) -> None:
    backward = autograd.backward

    @functools.wraps(backward)
    def timed_backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: Any = None,
        create_graph: Any = False,  # noqa: FBT002  torch's parameters
        *args: Any,
        inputs: Any = None,
        **kwargs: Any,
    ) -> None:
        # torch always passes ``inputs``, and usually None. A call without *args and **kwargs is faster.
        if inputs is not None:
            kwargs["inputs"] = inputs
        if _is_compiling():
            backward(tensors, grad_tensors, retain_graph, create_graph, *args, **kwargs)
        elif recorder.skip_limit or not recorder.is_enabled:  # after a failure, steps are still counted
            begin = read_clock()
            if args or kwargs:
                backward(tensors, grad_tensors, retain_graph, create_graph, *args, **kwargs)
            else:
                backward(tensors, grad_tensors, retain_graph, create_graph)
            recorder.backward_end = end = read_clock()
            recorder.blocked_time += end - begin
        else:
            _measure_backward(backward, tensors, grad_tensors, retain_graph, create_graph, *args, **kwargs)

    autograd.backward = _mark_untraced(timed_backward)  # type: ignore[attr-defined]


def _measure_backward(backward: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a backward pass (on a GPU in another thread) and record when this rank begins to wait for other ranks."""
    if _thread_state.is_in_backward:
        return backward(tensors, *args, **kwargs)
    recorder.can_skip = True
    recorder.record_pass(is_forward=False)
    begin, thread, handle = read_clock(), threading.get_ident(), None

    def arrived() -> None:
        recorder.record_arrival()
        if threading.get_ident() == thread:
            _thread_state.is_waiting = True  # later waits of this pass are part of this wait

    def on_gradient(_gradient: Any) -> None:
        try:
            sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(arrived)  # noqa: SLF001
        except Exception as error:  # noqa: BLE001  our failure must not become the user's
            recorder.fail(error)

    _thread_state.is_in_backward = True
    try:
        with contextlib.suppress(Exception):  # if the tensor has no gradient, the backward pass itself raises
            root = tensors if hasattr(tensors, "register_hook") else tensors[0]
            if root.is_cuda and recorder.gpu is None:
                recorder.use_gpu(root.device)
            if distributed.get_distributed() is not None:
                handle = root.register_hook(on_gradient)
        return backward(tensors, *args, **kwargs)
    finally:
        _thread_state.is_in_backward = _thread_state.is_waiting = False
        if handle is not None:
            handle.remove()
        recorder.end_backward(begin)
