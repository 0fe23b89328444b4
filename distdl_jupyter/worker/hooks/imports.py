"""Calls hooks after modules of frameworks are imported, without importing the frameworks.

A finder at the start of ``sys.meta_path`` delegates to the other finders. If hooks are registered for a module, its
loader calls them after executing the module. For other modules the overhead is two dictionary lookups. A hook that
fails sends a notice to the user and does not affect user code.
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

AfterHook = Callable[[ModuleType], None]


class HookFinder:
    """A finder that delegates to the other finders and calls hooks after imports."""

    def __init__(self) -> None:
        self._after: dict[str, list[AfterHook]] = {}
        self._before: dict[str, Callable[[], None]] = {}

    def hook(self, name: str, call: AfterHook) -> None:
        """Call ``call(module)`` after the module ``name`` is imported, or now if it is already imported."""
        if name in sys.modules:
            call_hook(f"after the import of {name}", call, sys.modules[name])
        else:
            self._after.setdefault(name, []).append(call)

    def check_before(self, name: str, check: Callable[[], None]) -> None:
        """Call ``check()`` before the module ``name`` is imported. If it raises ImportError, the import fails."""
        self._before[name] = check

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec whose loader calls the hooks, or None if the module has none (import protocol)."""
        if (check := self._before.get(name)) is not None:
            check()
        if name not in self._after:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec is not None and spec.loader is not None:
            call_hook(f"before the import of {name}", self._extend_loader, spec.loader, name)
        return spec

    def _extend_loader(self, loader: Any, name: str) -> None:
        """Make the loader call the hooks. Its class is not changed, because frameworks may check it."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            for call in self._after.pop(name, ()):
                call_hook(f"after the import of {name}", call, module)

        loader.exec_module = exec_module


def install() -> HookFinder:
    """Install a finder at the start of ``sys.meta_path`` and return it."""
    finder = HookFinder()
    sys.meta_path.insert(0, finder)
    return finder


class Patches:
    """A decorator for functions that replace a function of a framework when its module is imported."""

    def __init__(self) -> None:
        self._patches: list[tuple[str, str, Callable[..., Any]]] = []

    def __call__(self, path: str, *modules: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return the decorator for ``path`` ("Trainer.fit"). The decorated function gets the original first."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            self._patches += [(module, path, function) for module in modules]
            return function

        return decorate

    def install(self, finder: HookFinder) -> None:
        """Make the replacements after the imports of the modules."""
        for module, path, function in self._patches:
            finder.hook(module, functools.partial(_replace, path, function))


def _replace(path: str, function: Callable[..., Any], module: ModuleType) -> None:
    *owners, name = path.split(".")
    owner: Any = functools.reduce(getattr, owners, module)
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    setattr(owner, name, replacement)


_reported_texts: set[str] = set()


def call_hook(moment: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook. If it raises, send a notice and return None. ``moment`` tells the user when the hook runs."""
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001  a failing hook must not break user code
        text = f"Metrics may be incomplete: {type(error).__name__} was raised {moment} ({error!s:.200})."
        if text not in _reported_texts:
            _reported_texts.add(text)
            channel.notify("warning", text, "hook-failed")
        return None


@contextlib.contextmanager
def report_connect(get_fields: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Report that this rank is connecting and, after the block, that it is connected, with ``get_fields()``."""
    call_hook("before the ranks connected", channel.send, "rendezvous")
    yield
    call_hook("after the ranks connected", lambda: channel.send("ready", **get_fields()))
