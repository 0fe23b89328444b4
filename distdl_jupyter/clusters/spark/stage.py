"""A barrier stage as a job's supervisor sees it: who holds the session, and the port to which the tasks connect."""

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from distdl_jupyter.clusters.agents.tcp_link import Port
from distdl_jupyter.clusters.spark.options import LOOK_AT_MASTER, Order, SparkOptions, addresses
from distdl_jupyter.core import sockets
from distdl_jupyter.core.errors import LaunchFailed

#: The variable that the process with the session and all of its children have: the job's id.
MARK = "DISTDL_SPARK_DRIVER"
_DRIVER = "distdl_jupyter.clusters.spark.driver"
#: Seconds between two looks whether all tasks run.
_LOOK_SECONDS = 0.1
#: Seconds in which Spark opens a session for a check.
_OPEN_SECONDS = 120.0
#: Seconds in which who holds the session ends the stage: the slots are given back.
END_SECONDS = 10.0
#: Seconds for the list of executors, Java's start included.
_ASK_SECONDS = 45.0
#: Variables that would lead the session elsewhere.
_LEADING = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE", "SPARK_CONNECT_MODE_ENABLED",
            "SPARK_API_MODE", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS",
            "PYSPARK_DRIVER_PYTHON")  # fmt: skip


class Stage:
    """One barrier stage: who holds its session, and the port to which its tasks connect."""

    def __init__(self, options: SparkOptions, order: Order) -> None:
        """Begin. Raises LaunchFailed."""
        self._options = options
        self._why = f"reaching Spark at {options.address}"
        self._error: LaunchFailed | None = None
        self._closing = False
        #: How many tasks the stage has, 0 while that is not known.
        self._count = order.tasks if order.least == order.tasks else 0
        self.port = Port(_host(options), self._lost)
        try:
            self._driver = _driver("stage", options, order, self.port.back)
        except LaunchFailed:
            self.port.close()
            raise
        self._thread = threading.Thread(target=self._follow, name="spark", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for message in self._driver.messages():
            if "waits" in message:
                self._why = str(message["waits"])
            elif "tasks" in message:
                self._count = int(message["tasks"])
            elif "error" in message:
                self._error = self._failed(*_error_of(message))
        ended = self._driver.why_ended()
        if not self._closing and self._error is None:
            self._error = self._failed(ended, "spark-driver-ended")
        self.port.cut()  # where the session is elsewhere tasks could go on

    def _lost(self, name: str) -> str:
        why = f" {self._error.message}" if self._error is not None else ""
        return f"Spark's executor on {name} was lost, because its task ended before the job.{why}"

    def _failed(self, message: str, code: str, hint: str = "") -> LaunchFailed:
        """Return the error with what the driver has printed, where it has not begun or has ended by itself."""
        output = self._driver.printed() if "driver" in message else ""
        return LaunchFailed(message, code=code, hint=hint, output=output)

    def await_tasks(self, report: Callable[[str], object], seconds: float = math.inf) -> int:
        """Wait until all tasks have connected and return how many there are; ``report`` hears why they have not.

        ``seconds`` count from when Spark has opened the session, which may take ``_OPEN_SECONDS`` where they are given.
        Raises LaunchFailed, and what ``report`` raises.
        """
        opened, until = False, time.monotonic() + (math.inf if math.isinf(seconds) else _OPEN_SECONDS)
        while not self._count or len(self.port.callers) < self._count:
            if self._error is not None:
                raise self._error
            if self._count and not opened:
                opened, until = True, time.monotonic() + seconds
            if time.monotonic() > until:
                if opened:
                    raise LaunchFailed(
                        f"Spark at {self._options.address} has no free executor: {self._why}.",
                        code="spark-no-executor",
                        hint="Try again when its other jobs have ended.",
                    )
                raise LaunchFailed(
                    f"Spark at {self._options.address} did not open a session within {_OPEN_SECONDS:.0f} s.",
                    code="spark-no-session",
                    hint="Try again later, or read the log of its driver.",
                )
            report(self._why)
            time.sleep(_LOOK_SECONDS)
        self.port.close()
        return self._count

    def close(self) -> None:
        """End the stage, which gives the slots back; idempotent."""
        if self._closing:
            return
        self._closing = True
        self.port.close()
        self._driver.end_input()
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            self._driver.kill()
            self._thread.join()
        self._driver.close()


def _error_of(message: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the message, code and hint of an error of the driver."""
    return str(message["error"]), str(message["code"]), str(message["hint"])


def nodes(options: SparkOptions) -> list[dict[str, Any]]:
    """Return the fields of ``NodeInfo`` of each executor that a job could have. Raises LaunchFailed."""
    driver = _driver("nodes", options, Order("nodes"), {"host": _host(options)})
    timer = threading.Timer(_ASK_SECONDS, driver.kill)
    timer.start()
    try:
        found = list(driver.messages())
    finally:
        timer.cancel()
        driver.end_input()
        driver.why_ended()
        driver.close()
    for message in found:
        if "error" in message:
            text, code, hint = _error_of(message)
            raise LaunchFailed(text, code=code, hint=hint)
        if "nodes" in message:
            return list(message["nodes"])
    raise LaunchFailed(
        f"Spark at {options.address} did not respond within {_ASK_SECONDS:.0f} s.",
        code="spark-silent",
        hint=LOOK_AT_MASTER,
    )


def _host(options: SparkOptions) -> str:
    """Return the address of this machine that executors reach: that which leads to the master. Raises LaunchFailed."""
    if options.host:
        return options.host
    if options.master.startswith("local"):
        return "127.0.0.1"
    # TEST-NET-1 stands for a master that has no address, such as yarn. Nothing is sent.
    host, port = next(addresses(options), ("192.0.2.1", 9))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect((host, port))
            return str(asking.getsockname()[0])
    except OSError as error:
        raise LaunchFailed(
            f"This machine has no route to {host}: {error.strerror or error}.",
            code="spark-no-route",
            hint="Correct the option master or remote, or set the option host.",
        ) from error


# who holds the session ----------------------------------------------------------------------------


class _Driver(ABC):
    """Who holds the session: it reads what it is to do, tells of it in lines of JSON, and ends when its input does."""

    _input: IO[bytes]
    _output: IO[bytes]

    def _begin(self, given: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # its end tells
            self._input.write(json.dumps(given).encode() + b"\n")
            self._input.flush()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield what it tells, until it ends."""
        with contextlib.suppress(OSError, ValueError):  # it was killed meanwhile
            yield from map(json.loads, self._output)

    @abstractmethod
    def end_input(self) -> None:
        """Let it end the stage."""

    @abstractmethod
    def why_ended(self) -> str:
        """Wait for its end and return what that means where nobody asked for it."""

    @abstractmethod
    def kill(self) -> None:
        """End it by force."""

    def printed(self) -> str:
        """Return the end of what it has printed."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Free what it held."""


class _Process(_Driver):
    """A process of its own."""

    def __init__(self, what: str, job: str, given: dict[str, Any]) -> None:
        """Raises OSError."""
        environment = {name: value for name, value in os.environ.items() if name not in _LEADING}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        # In the session of the supervisor, whose watchdog leaves it the time to give the slots back.
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", _DRIVER, what], process_group=0, env=environment | {MARK: job},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        assert self._popen.stdin is not None, "it is a pipe"
        assert self._popen.stdout is not None, "it is a pipe"
        self._input, self._output = self._popen.stdin, self._popen.stdout
        self._begin(given)

    def end_input(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._input.close()

    def why_ended(self) -> str:
        return f"Spark's driver exited with code {self._popen.wait()}."

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def printed(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-2000:]

    def close(self) -> None:
        self._output.close()
        self._errors.close()


class _Kernel(_Driver):
    """The process that has submitted the job (``session``)."""

    def __init__(self, path: str, given: dict[str, Any]) -> None:
        """Raises OSError, also where the kernel has ended and somebody else listens in its place."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
            if sockets.peer_uid(self._socket) != os.getuid():
                raise ConnectionRefusedError(path)
        except OSError:
            self._socket.close()
            raise
        self._input, self._output = self._socket.makefile("wb"), self._socket.makefile("rb")
        self._begin(given)

    def end_input(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def why_ended(self) -> str:
        return "The kernel with the Spark session of the job has ended."

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._input.close()
        self._output.close()
        self._socket.close()


def _driver(what: str, options: SparkOptions, order: Order, back: dict[str, Any]) -> _Driver:
    """Let who holds the session begin. Raises LaunchFailed."""
    given = {"what": what, "options": dataclasses.asdict(options), "order": dataclasses.asdict(order), "back": back}
    try:
        return _Kernel(options.session, given) if options.session else _Process(what, order.name, given)
    except OSError as error:
        if options.session:
            raise LaunchFailed(
                "The kernel with the Spark session of the job has ended.",
                code="spark-kernel-ended",
                hint="Start a Spark session in another notebook and submit the job there.",
            ) from error
        raise LaunchFailed(
            f"Cannot start Spark's driver: {error.strerror or error}.", code="spark-driver-not-started"
        ) from error
