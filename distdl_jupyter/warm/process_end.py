"""The whole life of a forked process: what it does, and an end that never climbs into the frames of its parent."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from distdl_jupyter.worker.watch import shutdown


def run(program: Callable[[], Any]) -> NoReturn:
    """Call ``program``; its SystemExit or its error gives the exit code, as in a process of its own."""
    code = 1
    try:
        code = _code_of(program)
        shutdown.end(code)
    except BaseException:  # noqa: BLE001 - even what goes wrong at the end stays here
        os._exit(code)
    finally:
        os._exit(code)


def _code_of(program: Callable[[], Any]) -> int:
    try:
        program()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - printed as Python prints what nobody catches
        traceback.print_exc()
        return 1
    return 0
