"""A barrier stage as a job's supervisor sees it: the process with the session, and the port to which tasks connect."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from distdl_jupyter.clusters.agents.tcp_link import Port
from distdl_jupyter.clusters.spark.options import Order, SparkOptions, addresses
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.worker.serving.connection import peer_uid

#: The variable that the process with an own session and all of its children have: the job's id.
MARK = "DISTDL_SPARK_DRIVER"
_DRIVER = "distdl_jupyter.clusters.spark.driver"
_POLL_SECONDS = 0.1
#: Seconds in which a check gets a session.
_OPEN_SECONDS = 120.0
#: Seconds in which the stage ends and gives its slots back.
END_SECONDS = 10.0
_KERNEL_ENDED = "The kernel with the Spark session of the job has ended."
#: Variables that would lead an own session elsewhere.
_LEADING = (
    *("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"),
    *("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON"),
)


class Stage:
    """One barrier stage, in a session of its own process or in that of a notebook's kernel (``driver``)."""

    def __init__(self, options: SparkOptions, order: Order) -> None:
        """Begin. Raises LaunchFailed."""
        self._options = options
        self._reason = f"reaching Spark at {options.address}"
        self._error: LaunchFailed | None = None
        self._closing = False
        #: How many tasks the stage has, 0 while that is not known.
        self._count = order.tasks if order.least == order.tasks else 0
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        self.port = Port(_host(options), self._lost)
        request = {"options": dataclasses.asdict(options), "order": dataclasses.asdict(order), "back": self.port.back}
        try:
            self._connection = _connect_to_kernel(options.session) if options.session else self._start(order.name)
            self._connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            self.port.close()
            self._output.close()
            raise _not_started(options, error) from error
        self._thread = threading.Thread(target=self._follow, name="spark", daemon=True)
        self._thread.start()

    def _start(self, job: str) -> socket.socket:
        """Start a process for an own session and return the connection to it. Raises OSError."""
        connection, other = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name not in _LEADING} | {MARK: job}
        command = [sys.executable, "-P", "-m", _DRIVER]
        with other:
            # In the session of the supervisor, whose watchdog leaves it the time to give the slots back.
            self._process = subprocess.Popen(
                command,
                process_group=0,
                env=environment,
                stdin=other.fileno(),
                stdout=self._output,
                stderr=self._output,
            )
        return connection

    def _follow(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._connection.makefile("rb") as lines:
            for message in map(json.loads, lines):
                self._reason = message.get("waits", self._reason)
                self._count = message.get("tasks", self._count)
                if "error" in message:
                    self._error = self._failure(message["error"], message["code"], message["hint"])
        ended = _KERNEL_ENDED
        if self._process is not None:
            ended = f"Spark's driver exited with code {self._process.wait()}."
        if not self._closing and self._error is None:
            self._error = self._failure(ended, "spark-driver-ended")
        self.port.cut()  # tasks of a session elsewhere could continue

    def _failure(self, message: str, code: str, hint: str = "") -> LaunchFailed:
        """Return an error, with the output of the driver where that did not start or has ended."""
        output = ""
        if "driver" in message:
            self._output.seek(0)
            output = self._output.read().decode(errors="replace").strip()[-2000:]
        return LaunchFailed(message, code=code, hint=hint, output=output)

    def _lost(self, name: str) -> str:
        reason = f" {self._error.message}" if self._error is not None else ""
        return f"Spark's executor on {name} was lost, because its task ended before the job.{reason}"

    def await_tasks(self, report: Callable[[str], object], seconds: float = math.inf) -> int:
        """Wait until all tasks have connected and return how many there are; ``report`` gets why they have not.

        ``seconds`` count from when Spark has opened the session, which may take ``_OPEN_SECONDS`` where they are
        finite. Raises LaunchFailed, and what ``report`` raises.
        """
        opened, until = False, time.monotonic() + (math.inf if math.isinf(seconds) else _OPEN_SECONDS)
        while not self._count or len(self.port.callers) < self._count:
            if self._error is not None:
                raise self._error
            if self._count and not opened:
                opened, until = True, time.monotonic() + seconds
            if time.monotonic() > until:
                raise LaunchFailed(
                    f"Spark at {self._options.address} has no free executor: {self._reason}.",
                    code="spark-no-executor",
                    hint="Try again when its other jobs have ended, or read the log of its driver.",
                )
            report(self._reason)
            time.sleep(_POLL_SECONDS)
        self.port.close()
        return self._count

    def close(self) -> None:
        """End the stage, which gives the slots back; idempotent."""
        if self._closing:
            return
        self._closing = True
        self.port.close()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self._thread.join(END_SECONDS)
        with contextlib.suppress(OSError):
            if self._thread.is_alive() and self._process is not None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()
        self._output.close()


def _connect_to_kernel(path: str) -> socket.socket:
    """Return a connection to the kernel with the session. Raises OSError, also for a listener of another user."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
        if peer_uid(connection) != os.getuid():
            raise ConnectionRefusedError(path)
    except OSError:
        connection.close()
        raise
    return connection


def _not_started(options: SparkOptions, error: OSError) -> LaunchFailed:
    if options.session:
        hint = "Start a Spark session in another notebook and submit the job there."
        return LaunchFailed(_KERNEL_ENDED, code="spark-kernel-ended", hint=hint)
    return LaunchFailed(f"Cannot start Spark's driver: {error.strerror or error}.", code="spark-driver-not-started")


def _host(options: SparkOptions) -> str:
    """Return this machine's address on the route to the master, which executors can reach. Raises LaunchFailed."""
    if options.host:
        return options.host
    if options.master.startswith("local"):
        return "127.0.0.1"
    # TEST-NET-1 in place of a master without an address, such as yarn. Nothing is sent.
    host, port = next(addresses(options), ("192.0.2.1", 9))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LaunchFailed(
            f"This machine has no route to {host}: {error.strerror or error}.",
            code="spark-no-route",
            hint="Correct the option master or remote, or set the option host.",
        ) from error
