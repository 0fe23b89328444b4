"""Pickles captured names with one shared pickler, and reports sizes, dependencies and values that cannot be pickled.

* The notebook's ``sys.stdout`` and ``open`` are replaced by the rank's; GPU tensors are moved to the rank's GPU.
* Functions and classes that ``importlib.reload`` has replaced become those of the rank's module.
* The modules that the pickle refers to are recorded, so that those beside the notebook can be sent.

The module unpickles nothing.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import io
import operator
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, ClassVar

import cloudpickle

from distdl_jupyter.capture.references import IPYTHON_PREFIXES, find_imports, find_module, find_reloaded, iter_parts
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.source import get_dotted_name
from distdl_jupyter.worker.hooks import frameworks

#: Supported since Python 3.8; a newer protocol would exclude older workers.
PICKLE_PROTOCOL = 5
_LRU_CACHE = type(functools.lru_cache(len))
_FUNCTION_TYPES = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, _LRU_CACHE)
_SYSTEM_STREAMS = ("stdout", "stderr")


@dataclass(slots=True)
class PickleReport:
    """Report of a pickling run: bytes per name, errors per name, and references."""

    sizes: dict[str, int] = field(default_factory=dict)
    #: The error of each name that cannot be pickled, and the object that was being pickled.
    errors: dict[str, tuple[Exception, object]] = field(default_factory=dict)
    #: Modules that a rank must be able to import, by full name.
    modules: set[str] = field(default_factory=set)
    #: Functions that are sent by value.
    functions: dict[int, types.FunctionType] = field(default_factory=dict)
    #: Names of values with tensors on a GPU.
    names_on_gpu: list[str] = field(default_factory=list)


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Reduce a code object like cloudpickle, but keep the file name for tracebacks, which cloudpickle 3.1.3 drops."""
    constructor, arguments = _REDUCE_CODE(code)
    return constructor, (*arguments[:_FILE_NAME_INDEX], code.co_filename, *arguments[_FILE_NAME_INDEX + 1 :])


_REDUCE_CODE = cloudpickle.Pickler.dispatch_table[types.CodeType]
#: Position of the file name among the arguments of ``types.CodeType``, since Python 3.8.
_FILE_NAME_INDEX = 10


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's pickler, with a ``report`` of the pickled objects."""

    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap(
        {types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )

    def __init__(self, file: IO[bytes] | _NullFile, report: PickleReport) -> None:
        super().__init__(file, protocol=PICKLE_PROTOCOL)
        self._report = report
        self.has_gpu_tensor = False
        #: Types of plain data: most objects of a large value have one of a few types.
        self._plain_types: set[type] = set()
        #: The object whose pickling began last.
        self.latest: object = None
        #: The globals of modules, as a rank evaluates them, by the module's name.
        self._module_globals: dict[str, _Call] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Replace objects that differ on a rank, record dependencies, and leave the rest to cloudpickle."""
        self.latest = obj
        if type(obj) in self._plain_types:
            return NotImplemented
        if _is_plain(type(obj)):
            self._plain_types.add(type(obj))
        counterpart = _make_counterpart(obj)
        if counterpart is not None:
            self.has_gpu_tensor = self.has_gpu_tensor or frameworks.is_on_gpu(obj)
            return counterpart
        if isinstance(obj, types.FunctionType | type | _LRU_CACHE) and (path := find_reloaded(obj)) is not None:
            self._report.modules.add(path[0])
            return operator.attrgetter(path[1]), (_Call(importlib.import_module, path[0]),)
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.ModuleType):
            self._report.modules.add(obj.__name__)
        elif reduced is NotImplemented and isinstance(obj, types.FunctionType | types.BuiltinFunctionType | type):
            self._report.modules.add(str(obj.__module__))
        elif isinstance(obj, types.FunctionType) and obj is not _TO_OWN_GPU:
            self._report.functions[id(obj)] = obj
            self._report.modules.update(find_imports(obj.__code__))
            return self._use_module_globals(obj, reduced)
        return reduced

    def _use_module_globals(self, function: types.FunctionType, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the reduction of a lambda or closure that uses the globals of its module as a rank imports it."""
        name = find_module(function)
        if not name:
            return reduced
        self._report.modules.add(name)
        constructor, (code, _, *rest), (state, slots), *more = reduced
        module = self._module_globals.setdefault(name, _Call(vars, _Call(importlib.import_module, name)))
        slots = {**slots, "__globals__": {}, "_cloudpickle_submodules": []}
        return constructor, (code, module, *rest), (state, slots), *more


class _Call:
    """An object that is pickled as a call, which the rank evaluates."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


def _is_plain(cls: type) -> bool:
    """Return whether objects of a type are plain data, which are the same on a rank."""
    streams = (type(stream) for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__))
    special = (type, types.ModuleType, *_FUNCTION_TYPES, *streams)
    return not issubclass(cls, special) and cls.__module__.partition(".")[0] not in ("IPython", "ipykernel", "torch")


def _make_counterpart(obj: Any) -> tuple[Any, ...] | None:
    """Return the call that creates a rank's counterpart of ``obj``, or None for ordinary objects."""
    for name in _SYSTEM_STREAMS:
        if obj is getattr(sys, name) or obj is getattr(sys, f"__{name}__"):
            return getattr, (sys, name)
    if isinstance(obj, types.FunctionType) and getattr(obj, "__wrapped__", None) is io.open:
        return getattr, (builtins, "open")
    if type(obj).__module__.startswith(IPYTHON_PREFIXES) and type(obj).__name__.endswith("ExitAutocall"):
        return getattr, (sys, "exit")
    if isinstance(obj, types.MethodType) and obj.__name__ == "get_ipython" and "IPython" in sys.modules:
        # Notebook detection must raise NameError, as in a plain interpreter.
        return functools.partial, (eval, "get_ipython", {})
    if isinstance(obj, _LRU_CACHE) and obj.__module__ == "__main__":
        cache = _Call(functools.partial(functools.lru_cache, **obj.cache_parameters()))
        return operator.call, (cache, obj.__wrapped__)
    return (_TO_OWN_GPU, (frameworks.copy_to_cpu(obj),)) if frameworks.is_on_gpu(obj) else None


#: A copy outside any module, so that ranks can run it without this package.
_TO_OWN_GPU = types.FunctionType(frameworks.to_own_gpu.__code__, {"__name__": "__main__", "__builtins__": builtins})


# used submodules ----------------------------------------------------------------------------------------
# ``import matplotlib.pyplot`` in the notebook binds only ``matplotlib``, whose import alone gives a rank no ``pyplot``.


def wrap_modules(values: Mapping[str, Any], tree: ast.AST) -> dict[str, Any]:
    """Return the values, with modules wrapped so that a rank also imports the submodules that the code uses."""
    modules = {name: value.__name__ for name, value in values.items() if isinstance(value, types.ModuleType)}
    used_names = {get_dotted_name(node, modules) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    wrapped = dict(values)
    for name, module in modules.items():
        loaded_names = {path for path in used_names if isinstance(sys.modules.get(path), types.ModuleType)}
        if submodules := sorted(path for path in loaded_names if path.startswith(f"{module}.")):
            imports = [_Call(importlib.import_module, path) for path in (*submodules, module)]
            wrapped[name] = _Call(operator.itemgetter(-1), imports)
    return wrapped


# pickling -----------------------------------------------------------------------------------------------


class _NullFile:
    """A file that discards what is written."""

    def write(self, data: Any, /) -> int:
        return memoryview(data).nbytes


def dump(items: Iterable[tuple[str, Any]], file: IO[bytes]) -> PickleReport:
    """Pickle the values in order with one pickler, so that objects shared by names stay shared.

    After the first failure ``file`` is unusable, but the other names are still tried, to report all failures.
    """
    report = PickleReport()
    pickler = Pickler(file, report)
    for name, value in items:
        start = file.tell()
        try:
            pickler.dump(value)
        except Exception as error:  # noqa: BLE001 - a user's __reduce__ or __getstate__ can raise anything
            report.errors.setdefault(name, (error, pickler.latest))
            pickler = Pickler(_NullFile(), report)
            continue
        report.sizes.setdefault(name, file.tell() - start)
        if pickler.has_gpu_tensor:
            report.names_on_gpu.append(name)
            pickler.has_gpu_tensor = False
    return report


# values that cannot be pickled ------------------------------------------------------------------------

#: Remedies by type name.
_REMEDIES = {
    "InteractiveShell": "Remove get_ipython() from it: it exists only in the notebook.",
    "generator": "Convert it to a list, or create it inside the {unit}.",
    "TextIOWrapper": "Open the file inside the {unit}.",
    "BufferedReader": "Open the file inside the {unit}.",
    "BufferedWriter": "Open the file inside the {unit}.",
    "Connection": "Open the connection inside the {unit}.",
    "socket": "Open the connection inside the {unit}.",
}


def raise_errors(dump: PickleReport, values: Mapping[str, Any], *, unit: str) -> None:
    """Raise InvalidSpec if names cannot be pickled, listing each with the failing part and the remedy."""
    failures: dict[int, tuple[str, object, Exception]] = {}
    for name, (error, culprit) in dump.errors.items():
        parts = ((path, part) for path, part in iter_parts(name, values[name]) if part is culprit)
        path, part = next(parts, (name, values[name]))
        previous = failures.get(id(culprit))
        if previous is None or (part is culprit and len(path) < len(previous[0])):
            failures[id(culprit)] = path, part, error
    if failures:
        sentences = [_describe_failure(*failure, unit) for failure in failures.values()]
        field = next(iter(failures.values()))[0]
        raise InvalidSpec(" ".join(sentences), code="not-picklable", field=field)


def _describe_failure(path: str, part: object, error: Exception, unit: str) -> str:
    kind = type(part).__name__
    names = [cls.__name__ for cls in type(part).__mro__]
    remedy = next((_REMEDIES[name] for name in names if name in _REMEDIES), "Create it inside the {unit}.")
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
    detail = "" if kind in reason and "cannot pickle" in reason.lower() else f" ({reason})"
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    return f"{path} cannot be sent to the ranks: it is {article} {kind}{detail}. {remedy.format(unit=unit)}"
