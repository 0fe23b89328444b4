"""Pickles captured names with one shared pickler, and reports sizes, dependencies and values that cannot be pickled.

* The notebook's ``sys.stdout`` and ``open`` are replaced by the rank's; GPU tensors are moved to the rank's GPU.
* Functions and classes of modules use the modules as imported by a rank, without attributes set in the notebook.
* The modules that the pickle refers to are recorded, so that those beside the notebook can be sent.

Nothing is unpickled here.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import io
import itertools
import operator
import pickle
import sys
import time
import types
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import TextIOBase
from typing import IO, Any, ClassVar

import cloudpickle

from distdl_jupyter.capture.references import (
    globals_of,
    imports_of,
    module_of_globals,
    parts_of,
    path_in_module,
    travels_by_value,
)
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.source import dotted_name
from distdl_jupyter.worker.hooks import tensors

#: Supported since Python 3.8; a newer protocol would exclude older workers.
PROTOCOL = 5
_CACHE = type(functools.lru_cache(len))
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, _CACHE)
_NOTEBOOK = ("IPython.", "ipykernel.")
_SYSTEM_STREAMS = ("stdout", "stderr")


@dataclass(slots=True)
class PickleReport:
    """Report of a pickling run: bytes per name, errors per name, and references."""

    sizes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    #: Modules that a rank must be able to import, by full name.
    modules: set[str] = field(default_factory=set)
    #: Functions that are sent by value.
    functions: dict[int, types.FunctionType] = field(default_factory=dict)
    #: Names of values with tensors on a GPU.
    on_gpu: list[str] = field(default_factory=list)


class CountingSink:
    """A file that only counts the bytes written to it."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: Any, /) -> int:
        """Count the bytes of ``data``."""
        length = memoryview(data).nbytes
        self.count += length
        return length

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.count


Sink = IO[bytes] | CountingSink


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Reduce a code object like cloudpickle, but keep the file name for tracebacks, which cloudpickle 3.1.3 drops."""
    make, arguments = _REDUCE_CODE(code)
    return make, (*arguments[:_FILE_NAME], code.co_filename, *arguments[_FILE_NAME + 1 :])


_REDUCE_CODE = cloudpickle.Pickler.dispatch_table[types.CodeType]
#: Position of the file name among the arguments of ``types.CodeType``, since Python 3.8.
_FILE_NAME = 10


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler, with ``notes`` about the pickled objects."""

    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap(
        {types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )

    def __init__(self, file: Sink, notes: PickleReport) -> None:
        super().__init__(file, protocol=PROTOCOL)
        self.notes = notes
        self.gpu_seen = False
        # Called for every object, so the decision is cached by type.
        self._ordinary: set[type] = set()
        self._modules: dict[str, _Call] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Replace objects that differ on a rank, note dependencies, and leave the rest to cloudpickle."""
        if type(obj) in self._ordinary:
            return NotImplemented
        if _is_ordinary(type(obj)):
            self._ordinary.add(type(obj))
        replaced = _rank_counterpart(obj)
        if replaced is not None:
            self.gpu_seen = self.gpu_seen or tensors.is_on_gpu(obj)
            return replaced
        if isinstance(obj, types.FunctionType | type | _CACHE) and (path := path_in_module(obj)) is not None:
            self.notes.modules.add(path[0])
            return operator.attrgetter(path[1]), (_Call(importlib.import_module, path[0]),)
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType) and reduced is not NotImplemented and obj is not _TO_OWN_GPU:
            reduced = self._with_globals_of_module(obj, reduced)
        if reduced is NotImplemented and type(obj) not in self.dispatch_table:
            _refuse_name_only(obj)
        self._note(obj, whole=reduced is not NotImplemented)
        return reduced

    def _with_globals_of_module(self, function: types.FunctionType, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the reduction of a function sent by value that uses the globals of its module on the rank."""
        name = module_of_globals(function)
        if not name:
            return reduced
        self.notes.modules.add(name)
        make, (code, _, *rest), (state, slots), *more = reduced
        module = self._modules.setdefault(name, _Call(vars, _Call(importlib.import_module, name)))
        slots = {**slots, "__globals__": {}, "_cloudpickle_submodules": []}
        return make, (code, module, *rest), (state, slots), *more

    def _note(self, obj: Any, *, whole: bool) -> None:
        if isinstance(obj, types.ModuleType):
            self.notes.modules.add(obj.__name__)
        elif isinstance(obj, types.FunctionType | types.BuiltinFunctionType | type):
            if whole and isinstance(obj, types.FunctionType) and obj is not _TO_OWN_GPU:
                self.notes.functions[id(obj)] = obj
                self.notes.modules.update(imports_of(obj.__code__))
            elif not whole and isinstance(module := getattr(obj, "__module__", None), str):
                self.notes.modules.add(module)


class _Call:
    """Pickles as a call that the rank evaluates."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


def _is_ordinary(kind: type) -> bool:
    """Return whether objects of a type are plain data, which pickle handles and which are the same on a rank."""
    module = str(kind.__module__)
    if issubclass(kind, (type, types.ModuleType, TextIOBase, *_CODE)) or module.startswith(_NOTEBOOK):
        return False
    callable_ = any("__call__" in vars(base) for base in kind.__mro__)
    return not (callable_ and module == "__main__") and not tensors.may_be_on_gpu(kind)


def _rank_counterpart(obj: Any) -> tuple[Any, ...] | None:
    """Return the call that creates a rank's counterpart of ``obj``, None for ordinary objects."""
    for name in _SYSTEM_STREAMS:
        if obj is getattr(sys, name) or obj is getattr(sys, f"__{name}__"):
            return getattr, (sys, name)
    if isinstance(obj, types.FunctionType) and getattr(obj, "__wrapped__", None) is io.open:
        return getattr, (builtins, "open")
    if type(obj).__module__.startswith(_NOTEBOOK) and type(obj).__name__.endswith("ExitAutocall"):
        return getattr, (sys, "exit")
    if isinstance(obj, types.MethodType) and obj.__name__ == "get_ipython" and "IPython" in sys.modules:
        # Notebook detection must raise NameError, as in a plain interpreter.
        return functools.partial, (eval, "get_ipython", {})
    if isinstance(obj, _CACHE) and obj.__module__ == "__main__":
        cache = _Call(functools.partial(functools.lru_cache, **obj.cache_parameters()))
        return operator.call, (cache, obj.__wrapped__)
    return (_TO_OWN_GPU, (tensors.without_gpu(obj),)) if tensors.is_on_gpu(obj) else None


def _refuse_name_only(obj: Any) -> None:
    """Raise PicklingError for a notebook object that pickle would send by name, because ranks cannot find it."""
    if isinstance(obj, type | types.FunctionType) or getattr(obj, "__module__", None) != "__main__":
        return
    if callable(obj) and isinstance(obj.__reduce_ex__(PROTOCOL), str):
        raise pickle.PicklingError("pickle stores it only by name, and that name exists only in the notebook")


#: A copy outside any module, so that ranks can run it without this package.
_TO_OWN_GPU = types.FunctionType(tensors.to_own_gpu.__code__, {"__name__": "__main__", "__builtins__": builtins})


# used submodules ----------------------------------------------------------------------------------------
# ``import matplotlib.pyplot`` in the notebook binds only ``matplotlib``, whose import alone gives a rank no ``pyplot``.


def with_submodules(values: Mapping[str, Any], tree: ast.AST) -> dict[str, Any]:
    """Return the values, with modules wrapped so that a rank also imports the submodules that the code uses."""
    modules = {name: value.__name__ for name, value in values.items() if isinstance(value, types.ModuleType)}
    used = {dotted_name(node, modules) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    prepared = dict(values)
    for name, module in modules.items():
        loaded = {path for path in used if isinstance(sys.modules.get(path), types.ModuleType)}
        if submodules := sorted(path for path in loaded if path.startswith(f"{module}.")):
            imports = [_Call(importlib.import_module, path) for path in (*submodules, module)]
            prepared[name] = _Call(operator.itemgetter(-1), imports)
    return prepared


# pickling -----------------------------------------------------------------------------------------------


def dump(items: Iterable[tuple[str, Any]], file: Sink) -> PickleReport:
    """Pickle the values in order with one pickler, so that objects shared by names stay shared.

    After the first failure ``file`` is unusable, but the other names are still tried, to report all failures.
    """
    notes = PickleReport()
    pickler = Pickler(file, notes)
    for name, value in items:
        begin = file.tell()
        try:
            pickler.dump(value)
        except Exception as error:  # noqa: BLE001 - any exception can come out of a user's __reduce__ or __getstate__
            notes.errors[name] = error
            file = CountingSink()
            pickler = Pickler(file, notes)
            continue
        notes.sizes[name] = file.tell() - begin
        if pickler.gpu_seen:
            notes.on_gpu.append(name)
            pickler.gpu_seen = False
    return notes


def why_not(value: object) -> Exception | None:
    """Return the error of pickling ``value`` alone, None if it can be pickled."""
    return dump([("", value)], CountingSink()).errors.get("")


# values that cannot be pickled ------------------------------------------------------------------------
# The parts of a failing value are pickled separately, recursively, until no part fails.

#: Time limit in seconds: each step pickles a part again. The innermost part found so far is reported.
_SEARCH_SECONDS = 5.0
_MOST_ITEMS = 2000
_BASIC = (int, float, complex, bool, str, bytes, bytearray, type(None), types.ModuleType)

#: Remedies by type name.
_REMEDIES = {
    "InteractiveShell": "Remove get_ipython() from it: it exists only in the notebook.",
    "generator": "Convert it to a list, or create it inside the {unit}.",
    "TextIOWrapper": "Open the file inside the {unit}.",
    "BufferedReader": "Open the file inside the {unit}.",
    "BufferedWriter": "Open the file inside the {unit}.",
    "Connection": "Open the connection inside the {unit}.",
    "socket": "Open the connection inside the {unit}.",
    "module": "Import it inside the {unit}.",
}


@dataclass(frozen=True, slots=True)
class Unpicklable:
    """The innermost part that fails, its path and the pickler's error message."""

    path: str
    value: object
    error: Exception

    @property
    def type_name(self) -> str:
        """Name of the part's type."""
        return type(self.value).__name__


def refuse(dump: PickleReport, values: Mapping[str, Any], *, unit: str) -> None:
    """Raise InvalidSpec if names cannot be pickled, listing each with the failing part and the remedy."""
    if not dump.errors:
        return
    by_value: dict[int, Unpicklable] = {}
    for name, error in dump.errors.items():
        failure = find(name, values[name], error)
        known = by_value.get(id(failure.value))
        if known is None or len(failure.path) < len(known.path):
            by_value[id(failure.value)] = failure
    sentences = [_sentence(failure, unit) for failure in by_value.values()]
    first = next(iter(by_value.values()))
    raise InvalidSpec(" ".join(sentences), code="not-picklable", field=first.path)


def _sentence(part: Unpicklable, unit: str) -> str:
    names = [cls.__name__ for cls in type(part.value).__mro__]
    remedy = next((_REMEDIES[name] for name in names if name in _REMEDIES), "Create it inside the {unit}.")
    reason = (
        str(part.error).strip().splitlines()[0].rstrip(".") if str(part.error).strip() else type(part.error).__name__
    )
    detail = "" if part.type_name in reason and "cannot pickle" in reason.lower() else f" ({reason})"
    article = "an" if part.type_name[:1].lower() in "aeiou" else "a"
    return (
        f"{part.path} cannot be sent to the ranks: it is {article} {part.type_name}{detail}. {remedy.format(unit=unit)}"
    )


def find(name: str, value: object, error: Exception, clock: Callable[[], float] = time.monotonic) -> Unpicklable:
    """Return the innermost part of ``value`` that makes pickling fail with ``error``."""
    failure, visited, ends = Unpicklable(name, value, error), {id(value)}, clock() + _SEARCH_SECONDS
    pending = _parts(name, value)
    while clock() < ends and (part := next(pending, None)) is not None:
        path, value = part
        if id(value) in visited or isinstance(value, _BASIC):
            continue
        visited.add(id(value))
        if (reason := why_not(value)) is not None:
            failure, pending = Unpicklable(path, value, reason), _parts(path, value)
    return failure


def _parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the parts that are sent with a value, each with its path."""
    if isinstance(value, types.FunctionType) and travels_by_value(value):
        # A global has its own name in the notebook, so the path begins with it.
        space = value.__globals__
        yield from ((name, space[name]) for name in globals_of(value.__code__) if name in space)
    parts = parts_of(path, value)
    yield from _parts_of_instance(path, value) if parts is None else parts


def _parts_of_instance(path: str, value: object) -> Iterator[tuple[str, object]]:
    try:
        reduced = value.__reduce_ex__(5)
    except Exception:  # noqa: BLE001 - the value itself is the culprit when it cannot even say what it is made of
        return
    if isinstance(reduced, str):
        return
    _, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    for part in state if isinstance(state, tuple) else (state,):  # a tuple: attributes in slots are separate
        if isinstance(part, dict):
            yield from _attributes(path, value, part)
        elif part is not None:
            yield f"the state of {path}", part
    yield from parts_of(path, list(itertools.islice(items or (), _MOST_ITEMS))) or ()
    yield from parts_of(path, dict(itertools.islice(pairs or (), _MOST_ITEMS))) or ()
    names = {id(part): name for name, part in getattr(value, "__dict__", {}).items()}
    yield from ((f"{path}.{names[id(a)]}" if id(a) in names else f"a part of {path}", a) for a in arguments)


def _attributes(path: str, value: object, attributes: dict[str, object]) -> Iterator[tuple[str, object]]:
    for name, part in attributes.items():
        # A torch module stores its parts in ``_modules`` and similar dicts; users access them as attributes.
        inner = part.items() if isinstance(part, dict) and name.startswith("_") else ()
        yield from ((f"{path}.{key}", v) for key, v in inner if isinstance(key, str) and getattr(value, key, None) is v)
        yield f"{path}.{name}", part
