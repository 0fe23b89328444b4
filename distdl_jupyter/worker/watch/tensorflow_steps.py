"""Measures the steps of TensorFlow's training loops and of Keras on TensorFlow or torch, with or without Horovod.

* A step ends where an optimizer of Keras has been applied; inside a ``tf.function``, where the outermost one that
  applies it returns. So a function that loops over batches itself is one step a call.
* A batch is waited for in the operations of ``tf.data``'s iterators.
* An all-reduce, or all of a pass together, is waited for from the moment at which what it reduces is computed to the
  one at which its result is there, of Horovod and of ``tf.distribute`` alike.

What a graph does cannot be seen from Python, so operations are put beside these of the graph as it is traced: they
read the clock and add to a table of the process, which is read after each call. What XLA compiles has no such
operations: there is no separate time of an all-reduce in it. Functions that run on other processes than the one that
calls them (parameter servers) get none either.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from distdl_jupyter.worker.step_times import MOST_WAITS, recorder
from distdl_jupyter.worker.watch.hooks import PostImport, guarded
from distdl_jupyter.worker.watch.step_hooks import inside, samples_of, timed

#: Optimizers' modules, classes and what applies gradients: Keras 3, tf_keras and its earlier optimizers.
_OPTIMIZERS = (
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"),
    ("tf_keras.src.optimizers.optimizer", "_BaseOptimizer", "apply_gradients"),
    ("tf_keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2", "apply_gradients"),
)
_TABLE = "distdl_jupyter_steps"
#: Places of a function in the table: seconds of data, samples, and of each wait.
_DATA, _SAMPLES, _WAITS = 0, 1, 2
_WIDTH = _WAITS + MOST_WAITS


def watch(finder: PostImport) -> None:
    """Ask to be told when the modules are imported in which steps can be seen."""
    for module, owner, name in _OPTIMIZERS:
        finder.after(module, functools.partial(_watch_optimizer, owner, name))
    if '"ps"' in os.environ.get("TF_CONFIG", "").replace("'", '"'):
        return
    finder.after("tensorflow.python.eager.polymorphic_function.polymorphic_function", _watch_functions)
    finder.after("tensorflow.python.eager.backprop", _watch_tapes)
    finder.after("tensorflow.python.ops.gen_dataset_ops", _watch_iterators)
    finder.after("tensorflow.python.distribute.input_lib", _watch_distributed_iterators)
    finder.after("tensorflow.python.distribute.cross_device_utils", _watch_collectives)
    finder.after("horovod.tensorflow", _watch_horovod)


class _Function:
    """What is known of an outermost ``tf.function``."""

    def __init__(self) -> None:
        #: Whether it applies an optimizer.
        self.trains = False
        self.first_key = _WIDTH * next(_numbers)
        #: How many waits were put into each of its graphs: their number is their place.
        self.waits: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.keys: Any = None
        self.before: Sequence[float] = (0.0,) * _WIDTH


_numbers = itertools.count()
_functions: weakref.WeakKeyDictionary[Any, _Function] = weakref.WeakKeyDictionary()
#: The outermost function that is called now. Of one process: ``tf.distribute`` traces in threads of its own.
_called: _Function | None = None


def _watch_functions(module: ModuleType) -> None:
    owner = module.Function
    call = owner.__call__

    @functools.wraps(call)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _called
        if not recorder.on or _called is not None or inside.on or not _is_eager():
            return call(self, *args, **kwargs)
        function = _functions.get(self)
        if function is None:
            function = _functions.setdefault(self, _Function())
        if function.trains:
            recorder.forward()
        _called = function
        try:
            result = call(self, *args, **kwargs)
        finally:
            _called = None
        if function.trains:
            guarded("after a tf.function", _ended, function)
        return result

    owner.__call__ = watched


def _ended(function: _Function) -> None:
    """Take what the graph of a function that trains has measured, and the end of its step."""
    recorder.backward()
    if function.waits:
        values = _read(function)
        data, samples, *waits = (now - before for now, before in zip(values, function.before, strict=True))
        function.before = values
        count = min(MOST_WAITS, max(function.waits.values()))
        recorder.measured(round(data * 1e9), round(samples), [round(wait * 1e9) for wait in waits[:count]])
    recorder.stepped()


def _watch_optimizer(owner: str, name: str, module: ModuleType) -> None:
    kind = getattr(module, owner)
    original = getattr(kind, name)

    @functools.wraps(original)
    def applied(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if _is_eager():
            recorder.stepped()
        elif _called is not None:
            _called.trains = True
        return result

    setattr(kind, name, applied)


def _watch_tapes(module: ModuleType) -> None:
    tape = module.GradientTape
    enter, gradient = tape.__enter__, tape.gradient

    @functools.wraps(enter)
    def entered(self: Any) -> Any:
        if _called is None and _is_eager():
            recorder.forward()
        return enter(self)

    @functools.wraps(gradient)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _called is None and _is_eager():
            recorder.backward()
        return gradient(self, *args, **kwargs)

    tape.__enter__, tape.gradient = entered, watched


def _watch_iterators(module: ModuleType) -> None:
    for name in ("iterator_get_next", "iterator_get_next_as_optional", "multi_device_iterator_get_next_from_shard"):
        original = getattr(module, name)
        eager = timed("data", original, lambda begin, batch: recorder.data(begin, samples_of(batch)))
        setattr(module, name, _either(original, eager, _graph_data))


def _watch_distributed_iterators(module: ModuleType) -> None:
    """Count the samples of batches that may be the last ones, which an iterator returns as optional values."""
    owner = module.DistributedIteratorBase
    original = owner.get_next

    @functools.wraps(original)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(self, *args, **kwargs)
        if getattr(self, "_enable_get_next_as_optional", False) and not inside.on:
            if _is_eager():
                recorder.measured(0, samples_of(_tensors(batch)), ())
            elif _can_add():
                guarded("in a tf.function", _add_samples, batch)
        return batch

    owner.get_next = watched


def _watch_collectives(module: ModuleType) -> None:
    owner = module.CollectiveReplicaLauncher
    for name in ("all_reduce", "batch_all_reduce", "all_reduce_indexed_slices"):
        _watch_reduction(owner, name, at=1)


def _watch_horovod(module: ModuleType) -> None:
    for name in ("allreduce", "grouped_allreduce"):
        _watch_reduction(module, name, at=0)
    make = module._make_allreduce_grads_fn  # noqa: SLF001  of tapes and of optimizers of Keras

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        return _reducing(make(*args, **kwargs), 0)

    module._make_allreduce_grads_fn = made  # type: ignore[attr-defined]  # noqa: SLF001


def _watch_reduction(owner: Any, name: str, at: int) -> None:
    setattr(owner, name, _reducing(getattr(owner, name), at))


def _reducing(original: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Return a function that says how long what it reduces, its argument ``at``, waits for the other ranks."""
    eager = timed("wait", original, lambda begin, _: recorder.wait(begin))
    return _either(original, eager, functools.partial(_graph_wait, at))


def _either(
    original: Callable[..., Any], eager: Callable[..., Any], graph: Callable[..., Any]
) -> Callable[..., Any]:  # fmt: skip
    """Return a function that is measured by Python's clock when it is carried out, and by the graph's when traced."""

    @functools.wraps(original)
    def either(*args: Any, **kwargs: Any) -> Any:
        if not recorder.on or inside.on:
            return original(*args, **kwargs)
        if _is_eager():
            return eager(*args, **kwargs)
        if not _can_add():
            return original(*args, **kwargs)
        inside.on = True
        try:
            return graph(original, *args, **kwargs)
        finally:
            inside.on = False

    return either


# in graphs ------------------------------------------------------------------------------------


def _is_eager() -> bool:
    context = sys.modules.get("tensorflow.python.eager.context")
    return context is None or bool(context.executing_eagerly())


def _can_add() -> bool:
    """Say whether the graph that is traced now can have operations of ours."""
    ops, flow = _module("framework.ops"), _module("ops.control_flow_util")
    if _called is None or not ops.executing_eagerly_outside_functions():
        return False
    return not flow.GraphOrParentsInXlaContext(ops.get_default_graph()) and _module("ops.gen_lookup_ops") is not None


def _module(name: str) -> Any:
    return sys.modules.get(f"tensorflow.python.{name}")


def _graph_data(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    begin = guarded("in a tf.function", _stamp, ())
    if begin is None:
        return original(*args, **kwargs)
    with _module("framework.ops").control_dependencies([begin]):
        batch = original(*args, **kwargs)
    guarded("in a tf.function", _add_data, begin, batch)
    return batch


def _graph_wait(at: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # Operations that have a state are carried out in the order in which they were made.
    begin = guarded("in a tf.function", _ready, args[at]) if len(args) > at else None
    result = original(*args, **kwargs)
    if begin is not None:
        guarded("in a tf.function", _add_wait, begin, result)
    return result


def _ready(given: Any) -> Any:
    return _stamp(_tensors(given))


def _add_data(begin: Any, batch: Any) -> None:
    _add(_DATA, _stamp(_tensors(batch)) - begin)
    _add_samples(batch)


def _add_samples(batch: Any) -> None:
    array_ops, dtypes = _module("ops.array_ops"), _module("framework.dtypes")
    first = next((one for one in _tensors(batch) if one.dtype != dtypes.variant), None)
    if first is not None and first.shape.rank:
        _add(_SAMPLES, _module("ops.math_ops").cast(array_ops.shape(first)[0], dtypes.float64))


def _add_wait(begin: Any, result: Any) -> None:
    """Add the time from ``begin``, when all that is reduced is there, to when all of the result is."""
    assert _called is not None
    graph = _outermost()
    number = _called.waits.get(graph, 0)
    _called.waits[graph] = number + 1
    _add(_WAITS + min(number, MOST_WAITS - 1), _stamp(_tensors(result)) - begin)


def _outermost() -> Any:
    """Return the graph of the outermost function."""
    graph = _module("framework.ops").get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    return graph


def _tensors(value: Any) -> list[Any]:
    """Return the tensors in a value, in its order."""
    flat: Iterable[Any] = _module("util.nest").flatten(value, expand_composites=True)
    return [one for one in flat if isinstance(one, _module("framework.tensor").Tensor)]


def _stamp(after: Iterable[Any]) -> Any:
    """Return the time at which tensors are there, in seconds."""
    ops = _module("framework.ops")
    with ops.device("/CPU:0"), ops.control_dependencies(list(after)):
        return _module("ops.gen_logging_ops").timestamp()


def _table() -> Any:
    dtypes = _module("framework.dtypes")
    return _module("ops.gen_lookup_ops").mutable_hash_table_v2(
        key_dtype=dtypes.int64, value_dtype=dtypes.float64, shared_name=_TABLE
    )


def _add(place: int, value: Any) -> None:
    """Add a value to a place of the function in the table, whenever the graph runs."""
    assert _called is not None
    _called.waits.setdefault(_outermost(), 0)
    ops, lookup = _module("framework.ops"), _module("ops.gen_lookup_ops")
    constant, dtypes = _module("framework.constant_op").constant, _module("framework.dtypes")
    with ops.device("/CPU:0"):
        table, key = _table(), constant(_called.first_key + place, dtypes.int64)
        before = lookup.lookup_table_find_v2(table, key, constant(0.0, dtypes.float64))
        lookup.lookup_table_insert_v2(table, key, before + value)


def _read(function: _Function) -> Sequence[float]:
    ops, lookup = _module("framework.ops"), _module("ops.gen_lookup_ops")
    constant, dtypes = _module("framework.constant_op").constant, _module("framework.dtypes")
    with ops.device("/CPU:0"):
        if function.keys is None:
            keys = constant(range(function.first_key, function.first_key + _WIDTH), dtypes.int64)
            function.keys = _table(), keys, constant(0.0, dtypes.float64)
        return [float(value) for value in lookup.lookup_table_find_v2(*function.keys).numpy()]
