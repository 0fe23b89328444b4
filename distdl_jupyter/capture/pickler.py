"""Pickling of captured names: one shared pickler, the size of each name, and notes on what travels.

* The notebook's own ``sys.stdout`` and ``open`` become the rank's; tensors on a GPU go to the rank's own GPU.
* Functions and classes of modules see these as a rank imports them, never with attributes set in the notebook.
* It is noted which modules the bytes refer to, so that those beside the notebook can be shipped.

Nothing here opens a pickle.
"""

from __future__ import annotations

import ast
import builtins
import functools
import io
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import TextIOBase
from typing import Any, ClassVar, Protocol

import cloudpickle

from distdl_jupyter.capture.references import imports_of, module_of_globals, path_in_module
from distdl_jupyter.worker.hooks import tensors

#: Written by every Python from 3.8 on; a newer default would shut older workers out.
PROTOCOL = 5
_CACHE = type(functools.lru_cache(len))
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, _CACHE)
_NOTEBOOK = ("IPython.", "ipykernel.")
_SYSTEM_STREAMS = ("stdout", "stderr")


@dataclass(slots=True)
class PickleReport:
    """What became of the names: bytes per name, errors per name, and what the bytes refer to."""

    sizes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    #: Modules that a rank must be able to import, by full name.
    modules: set[str] = field(default_factory=set)
    #: Functions that are shipped whole.
    functions: dict[int, types.FunctionType] = field(default_factory=dict)
    #: Names that hold tensors on a GPU.
    on_gpu: list[str] = field(default_factory=list)


class Sink(Protocol):
    """Where pickled bytes go: the part of a file that is needed."""

    def write(self, data: Any, /) -> int:
        """Take bytes."""
        ...

    def tell(self) -> int:
        """Return how many bytes were taken."""
        ...


class CountingSink:
    """A file that only counts what is written to it."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: Any, /) -> int:
        """Count and forget ``data``."""
        length = memoryview(data).nbytes
        self.count += length
        return length

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.count


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Return what cloudpickle does, with the file name: cloudpickle 3.1.3 drops it, and tracebacks need it."""
    make, arguments = _REDUCE_CODE(code)
    return make, (*arguments[:_FILE_NAME], code.co_filename, *arguments[_FILE_NAME + 1 :])


_REDUCE_CODE = cloudpickle.Pickler.dispatch_table[types.CodeType]
#: Where the file name stands among the arguments of ``types.CodeType``, since Python 3.8.
_FILE_NAME = 10


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler that takes ``notes``."""

    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap(
        {types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )

    def __init__(self, file: Sink, notes: PickleReport) -> None:
        super().__init__(file, protocol=PROTOCOL)
        self.notes = notes
        self.gpu_seen = False
        # Called for every object: what needs a look is decided once for each type.
        self._ordinary: set[type] = set()
        self._modules: dict[str, _ModuleGlobals] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Reduce what means something else in a rank, note what is shipped, leave the rest to cloudpickle."""
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
            return _FROM_MODULE, path
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType) and reduced is not NotImplemented and obj not in _OWN:
            reduced = self._with_globals_of_module(obj, reduced)
        if reduced is NotImplemented and type(obj) not in self.dispatch_table:
            _refuse_name_only(obj)
        self._note(obj, whole=reduced is not NotImplemented)
        return reduced

    def _with_globals_of_module(self, function: types.FunctionType, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the reduction of a function that travels by value, with the globals of its module in the rank."""
        name = module_of_globals(function)
        if not name:
            return reduced
        self.notes.modules.add(name)
        make, (code, _, *rest), (state, slots), *more = reduced
        module = self._modules.setdefault(name, _ModuleGlobals(name))
        slots = {**slots, "__globals__": {}, "_cloudpickle_submodules": []}
        return make, (code, module, *rest), (state, slots), *more

    def _note(self, obj: Any, *, whole: bool) -> None:
        if isinstance(obj, types.ModuleType):
            self.notes.modules.add(obj.__name__)
        elif isinstance(obj, types.FunctionType | types.BuiltinFunctionType | type):
            if whole and isinstance(obj, types.FunctionType) and obj not in _OWN:
                self.notes.functions[id(obj)] = obj
                self.notes.modules.update(imports_of(obj.__code__))
            elif not whole and isinstance(module := getattr(obj, "__module__", None), str):
                self.notes.modules.add(module)


class _ModuleGlobals:
    """Pickles as the globals of a module that the rank imports."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _GLOBALS_OF, (self._name,)


def _is_ordinary(kind: type) -> bool:
    """Say whether objects of this type are data: cloudpickle leaves them to pickle, a rank understands them alike."""
    module = str(kind.__module__)
    if issubclass(kind, (type, types.ModuleType, TextIOBase, *_CODE)) or module.startswith(_NOTEBOOK):
        return False
    callable_ = any("__call__" in vars(base) for base in kind.__mro__)
    return not (callable_ and module == "__main__") and not tensors.may_be_on_gpu(kind)


def _rank_counterpart(obj: Any) -> tuple[Any, ...] | None:
    """Return how to build in a rank what stands for ``obj`` there, None for all ordinary objects."""
    for name in _SYSTEM_STREAMS:
        if obj is getattr(sys, name) or obj is getattr(sys, f"__{name}__"):
            return getattr, (sys, name)
    if isinstance(obj, types.FunctionType) and getattr(obj, "__wrapped__", None) is io.open:
        return getattr, (builtins, "open")
    if type(obj).__module__.startswith(_NOTEBOOK) and type(obj).__name__.endswith("ExitAutocall"):
        return getattr, (sys, "exit")
    if isinstance(obj, types.MethodType) and obj.__name__ == "get_ipython" and "IPython" in sys.modules:
        return functools.partial, (_NO_IPYTHON,)
    if isinstance(obj, _CACHE) and obj.__module__ == "__main__":
        return _CACHED, (obj.__wrapped__, obj.cache_parameters())
    return (_TO_OWN_GPU, (tensors.without_gpu(obj),)) if tensors.is_on_gpu(obj) else None


def _refuse_name_only(obj: Any) -> None:
    """Raise PicklingError for an object of the notebook that pickle would only name: no rank finds it by that name."""
    if isinstance(obj, type | types.FunctionType) or getattr(obj, "__module__", None) != "__main__":
        return
    if callable(obj) and isinstance(obj.__reduce_ex__(PROTOCOL), str):
        raise pickle.PicklingError("pickle stores it only by name, and that name exists only in the notebook")


def _get_ipython() -> Any:
    """Run in a rank: answer the question "is this a notebook" as a plain interpreter does."""
    raise NameError("name 'get_ipython' is not defined")


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    """Run in a rank: put the cache around a function again."""
    import functools

    return functools.lru_cache(**parameters)(function)


def _globals_of(module: str) -> Any:
    """Run in a rank: return the globals of a module."""
    import importlib

    return vars(importlib.import_module(module))


def _from_module(module: str, name: str) -> Any:
    """Run in a rank: return what a module holds under a qualified name."""
    import importlib
    import operator

    return operator.attrgetter(name)(importlib.import_module(module))


def shipped_whole(function: Callable[..., Any]) -> types.FunctionType:
    """Return a copy that belongs to no module, so that a rank need not have this package to run it."""
    copy = types.FunctionType(function.__code__, {"__name__": "__main__", "__builtins__": builtins})
    _OWN.add(copy)
    return copy


_OWN: set[types.FunctionType] = set()
_TO_OWN_GPU = shipped_whole(tensors.to_own_gpu)
_NO_IPYTHON = shipped_whole(_get_ipython)
_CACHED = shipped_whole(_cached)
_GLOBALS_OF = shipped_whole(_globals_of)
_FROM_MODULE = shipped_whole(_from_module)


# submodules that the code uses -------------------------------------------------------------------------
# ``import matplotlib.pyplot`` in the notebook binds only ``matplotlib``, whose import alone gives a rank no ``pyplot``.


def with_submodules(values: Mapping[str, Any], tree: ast.AST) -> dict[str, Any]:
    """Return the values; each module whose loaded submodules the code uses is put so that a rank imports them too."""
    chains = list(_chains(tree))
    prepared = dict(values)
    for name, value in values.items():
        if isinstance(value, types.ModuleType):
            names = sorted({sub for chain in chains if chain[0] == name for sub in _loaded(value.__name__, chain[1:])})
            if names:
                prepared[name] = _Importing(value.__name__, names)
    return prepared


def _chains(tree: ast.AST) -> Iterator[list[str]]:
    """Yield ``a.b.c`` as ["a", "b", "c"] wherever the code has it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts: list[str] = []
            part: ast.expr = node
            while isinstance(part, ast.Attribute):
                parts.append(part.attr)
                part = part.value
            if isinstance(part, ast.Name):
                yield [part.id, *reversed(parts)]


def _loaded(module: str, attributes: list[str]) -> Iterator[str]:
    for attribute in attributes:
        module = f"{module}.{attribute}"
        if not isinstance(sys.modules.get(module), types.ModuleType):
            return
        yield module


class _Importing:
    """Pickles as a module that is imported together with submodules."""

    def __init__(self, name: str, submodules: list[str]) -> None:
        self._names = [*submodules, name]

    def __reduce__(self) -> tuple[Any, ...]:
        return _IMPORT, (self._names,)


def _import(names: list[str]) -> Any:
    """Run in a rank: import all and return the last."""
    import importlib

    return [importlib.import_module(name) for name in names][-1]


_IMPORT = shipped_whole(_import)


# packing ----------------------------------------------------------------------------------------------


def dump(items: Iterable[tuple[str, Any]], file: Sink) -> PickleReport:
    """Pickle the values one behind the other with one pickler, so that what two names share stays one object.

    Behind the first name that fails ``file`` is worthless; the others are still tried, so that all that fail are known.
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
    """Return the error with which ``value`` alone refuses to be pickled, None when it can be."""
    return dump([("", value)], CountingSink()).errors.get("")
