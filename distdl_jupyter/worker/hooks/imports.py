"""Runs our code right after a framework's module was imported, without importing any framework.

A finder is first on ``sys.meta_path``. For the few modules that hooks are registered for, it lets the usual finders
find the module and has the loader call the hooks when the module's code has run; for every other name it is one
dictionary lookup. A hook that fails becomes a note: user code never sees it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

from distdl_jupyter.worker import channel

V = TypeVar("V")
After = Callable[[ModuleType], None]
Before = Callable[[], None]


class ByObject(dict[int, V]):
    """Values by the ``id`` of an object, for as long as it lives: a lookup is faster than in a WeakKeyDictionary."""

    def add(self, key: object, value: V) -> V:
        """Keep a value and return it."""
        self[id(key)] = value
        weakref.finalize(key, self.pop, id(key), None).atexit = False
        return value


class PostImport:
    """A finder that finds nothing itself; see the module."""

    def __init__(self) -> None:
        self._after: dict[str, list[After]] = {}
        self._before: dict[str, Before] = {}

    def after(self, name: str, call: After) -> None:
        """Call ``call(module)`` when the module ``name`` has been imported; at once if it already is."""
        if name in sys.modules:
            guarded(f"after the import of {name}", call, sys.modules[name])
        else:
            self._after.setdefault(name, []).append(call)

    def before(self, name: str, check: Before) -> None:
        """Call ``check()`` when the module ``name`` is about to be imported; an ImportError of it is the import's."""
        self._before[name] = check

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Take part in the import system: prepare the module's loader, or leave the name to the others."""
        if (check := self._before.get(name)) is not None:
            check()
        if name not in self._after:
            return None
        spec = self._found_by_others(name, path, target)
        if spec is not None and spec.loader is not None:
            guarded(f"before the import of {name}", self._call_after, spec.loader, name)
        return spec

    def _found_by_others(self, name: str, path: Any, target: Any) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _call_after(self, loader: Any, name: str) -> None:
        """Let this one loader object call back; its class, and so what frameworks see of it, stays the same."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            for call in self._after.pop(name, ()):
                guarded(f"after the import of {name}", call, module)

        loader.exec_module = exec_module


def install() -> PostImport:
    """Put a finder first on ``sys.meta_path`` and return it."""
    finder = PostImport()
    sys.meta_path.insert(0, finder)
    return finder


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function in the place of one of a class or module; it gets the original as its first argument."""
    original = getattr(owner, name)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        setattr(owner, name, replacement)
        return function

    return decorate


_reported: set[str] = set()


def guarded(what: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call something of ours from inside user code; when it fails say so in a note and return None."""
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001  our failure must not become the user's
        text = f"Metrics may be incomplete: {what} {type(error).__name__} was raised ({error!s:.200})."
        if text not in _reported:
            _reported.add(text)
            channel.note("warning", text, "hook-failed")
        return None


@contextlib.contextmanager
def connecting(facts: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Report that this rank connects to the others, and after the block that it has, with the facts of the group."""
    guarded("before the ranks connected", channel.send, "rendezvous")
    yield
    guarded("after the ranks connected", lambda: channel.send("ready", **facts()))
