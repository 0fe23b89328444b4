"""Lets ``plt.show()`` and IPython's ``display`` show pictures in a rank, and rich print as to no terminal.

None of these libraries is imported for it.
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from distdl_jupyter.worker import pictures
from distdl_jupyter.worker.watch.hooks import PostImport

BACKEND = "module://distdl_jupyter.worker.mplbackend"
#: Modules that offer IPython's function under their own name.
_OFFERED_BY = ("IPython.display", "IPython.core.display")


def watch(finder: PostImport) -> None:
    """Choose matplotlib's backend unless a user has, and ask to be told of IPython."""
    if not os.environ.get("MPLBACKEND"):
        os.environ["MPLBACKEND"] = BACKEND
        if (matplotlib := sys.modules.get("matplotlib")) is not None:  # a template has imported it
            matplotlib.rcParams["backend"] = BACKEND
    # Of rich: a bar that is drawn anew with each metric would fill the log. Each is printed once, at its end.
    os.environ.setdefault("TTY_INTERACTIVE", "0")
    finder.after("IPython.core.display_functions", _replace)


def _replace(functions: ModuleType) -> None:
    display = functions.display

    @functools.wraps(display)
    def shown(*objects: Any, **options: Any) -> Any:
        shells = sys.modules.get("IPython.core.interactiveshell")
        if shells is not None and shells.InteractiveShell.initialized():
            return display(*objects, **options)
        return pictures.display(*objects, **options)

    for module in (functions, *filter(None, map(sys.modules.get, _OFFERED_BY))):
        if vars(module).get("display") is display:
            module.display = shown  # type: ignore[attr-defined]
