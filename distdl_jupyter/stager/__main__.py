"""The program: one order on standard input, messages on standard output; see the package's own words."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from distdl_jupyter.node.staging import tree
from distdl_jupyter.node.staging.cache import Cache
from distdl_jupyter.node.staging.failure import Failure
from distdl_jupyter.stager import order
from distdl_jupyter.stager.run import Stager
from distdl_jupyter.stager.talk import Talk


def main() -> int:
    """Follow the order and return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is on the disk is good at any moment
    talk = Talk(sys.stdin.buffer, sys.stdout.buffer)
    try:
        request = talk.order()
    except ValueError:
        return _failed(talk, Failure("The staging order is not valid JSON."))
    try:
        if isinstance(request, dict) and "forget" in request:
            _forget(talk, request)
        else:
            Stager(order.order(request), talk).run()
    except Failure as failure:
        return _failed(talk, failure)
    except OSError as error:
        return _failed(talk, Failure(f"Cannot store staged data ({error.strerror or error})."))
    except Exception as error:  # noqa: BLE001 - its text could name what was asked for, with its signature
        return _failed(talk, Failure(f"Cannot copy the data ({type(error).__name__})."))
    return 0


def _forget(talk: Talk, request: dict[str, Any]) -> None:
    cache = Cache(str(request.get("base") or ""))
    cache.prepare()
    job = order.job(request["forget"])
    tree.forget(cache, job)
    if request.get("limit_bytes") is not None:
        cache.make_room(0, int(request["limit_bytes"]))
    talk.last({"type": "forgotten", "job": job})


def _failed(talk: Talk, failure: Failure) -> int:
    talk.last({"type": "failed", "source": failure.source, "text": failure.text, "remedy": failure.remedy})
    return 1


if __name__ == "__main__":
    code = main()
    os._exit(code)  # threads that wait for an answer must not hold up the end
