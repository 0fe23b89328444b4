"""Runs our code right after a framework's module was imported, without importing any framework.

It installs a finder at the start of ``sys.meta_path``. For the few modules with registered hooks, it lets the other
finders find the module and makes the loader call the hooks after the module's code has run; for every other name the
cost is one dictionary lookup. If a hook fails, the user gets a notice, and user code is not affected.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from distdl_jupyter.worker import channel

After = Callable[[ModuleType], None]
Before = Callable[[], None]


class PostImport:
    """A finder that only delegates to the others; see the module."""

    def __init__(self) -> None:
        self._after: dict[str, list[After]] = {}
        self._before: dict[str, Before] = {}

    def after(self, name: str, call: After) -> None:
        """Call ``call(module)`` after the module ``name`` is imported; at once if it already is."""
        if name in sys.modules:
            guarded(f"after the import of {name}", call, sys.modules[name])
        else:
            self._after.setdefault(name, []).append(call)

    def before(self, name: str, check: Before) -> None:
        """Call ``check()`` before the module ``name`` is imported; its ImportError makes the import fail."""
        self._before[name] = check

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec with a prepared loader, or None for the other finders (import protocol)."""
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
        """Make this loader object call the hooks without changing its class, which frameworks may check."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            for call in self._after.pop(name, ()):
                guarded(f"after the import of {name}", call, module)

        loader.exec_module = exec_module


def install() -> PostImport:
    """Install a finder at the start of ``sys.meta_path`` and return it."""
    finder = PostImport()
    sys.meta_path.insert(0, finder)
    return finder


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a replacement for a function of a class or module; its first argument is the original."""
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
    """Call one of our functions from user code; if it fails, send a notice and return None."""
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
    """Report that this rank is connecting, and after the block that it is connected, with the group's facts."""
    guarded("before the ranks connected", channel.send, "rendezvous")
    yield
    guarded("after the ranks connected", lambda: channel.send("ready", **facts()))
