"""The Spark session of this process, usually a notebook's kernel, for jobs that are submitted from it.

A session of Spark Connect is a server's: jobs speak to that server themselves. A classic session lives here and holds
its application's executors, so a job's stage has to run in it: the job's supervisor asks for that at a socket that only
this user can reach, in the words that ``driver`` hears from its standard input.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import shutil
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

NONE = "The cluster has neither a master nor a remote, and this process has no Spark session."
NONE_HINT = (
    'Start a session (spark = SparkSession.builder.getOrCreate()), or set master="spark://HOST:7077", '
    'or remote="sc://HOST:15002" for Spark Connect.'
)
_lock = threading.Lock()
_path = ""


def active() -> dict[str, str] | None:
    """Return the options that stand for the session of this process, None without one; Spark is not imported."""
    if (remote := _remote()) is not None:
        return {"remote": remote}
    context = _context()
    return None if context is None else {"session": _socket(), "host": _driver_host(context)}


def _remote() -> str | None:
    """Return the address of the Spark Connect server of this process's session, without its secret."""
    module = sys.modules.get("pyspark.sql.connect.session")
    session = module and module.SparkSession.getActiveSession()
    if not session:
        return None
    builder = session.client._builder  # noqa: SLF001 - nothing public says where a session is
    return f"sc://{builder.endpoint}" + ("/;use_ssl=true" if builder.secure else "")


def _context() -> Any:
    module = sys.modules.get("pyspark.core.context") or sys.modules.get("pyspark.context")
    return getattr(getattr(module, "SparkContext", None), "_active_spark_context", None)


def _driver_host(context: Any) -> str:
    local = str(context.master).startswith("local")
    return "127.0.0.1" if local else str(context.getConf().get("spark.driver.host"))


def _socket() -> str:
    """Return the path of the socket at which supervisors ask, which is opened once."""
    global _path
    with _lock:
        if not _path:
            folder = tempfile.mkdtemp(prefix="distdl-spark-")  # mode 0700
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listening.bind(str(Path(folder, "session")))
            listening.listen(64)
            threading.Thread(target=_serve, args=(listening,), name="distdl spark", daemon=True).start()
            _path = str(Path(folder, "session"))
        return _path


def _serve(listening: socket.socket) -> None:
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=_run, args=(connection,), name="distdl spark job", daemon=True).start()


def _run(connection: socket.socket) -> None:
    """Do what one supervisor asks, until it ends the connection."""
    from distdl_jupyter.clusters.spark import driver

    with contextlib.suppress(OSError, ValueError), connection:
        try:
            if (context := _context()) is None:
                stopped = "The notebook's Spark session has been stopped."
                error = {"error": stopped, "code": "spark-session-stopped", "hint": NONE_HINT}
                connection.sendall(json.dumps(error).encode() + b"\n")
            else:
                driver.serve(connection.makefile("rb"), connection.makefile("wb"), threading.Event(), context)
        finally:
            connection.shutdown(socket.SHUT_RDWR)  # a thread may still read here
