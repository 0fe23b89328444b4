"""The options of a Spark cluster, and the stage that a job needs."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from distdl_jupyter.clusters.agents.agent import DIRECTORY_HELP, NETWORK_HELP, OVERSUBSCRIBE_HELP, SHARED_HELP
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.redact import is_secret

#: Remedies when nothing responds, and without a session.
CHECK_MASTER = "Check that its master is running, and correct the option master or remote."
NO_SESSION_HINT = (
    'Start a session (spark = SparkSession.builder.getOrCreate()), or set master="spark://HOST:7077", '
    'or remote="sc://HOST:15002" for Spark Connect.'
)


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Which Spark cluster, and what of each executor a job takes."""

    master: str = field(
        default="",
        metadata={
            "help": "master of the cluster: spark://10.0.0.4:7077, yarn, or local-cluster[2,1,1024]",
            "first": True,
        },
    )
    remote: str = field(
        default="", metadata={"help": "Spark Connect server, instead of master: sc://10.0.0.4:15002", "first": True}
    )
    cpus_per_process: int = field(default=1, metadata={"help": "Spark cores for each process", "first": True})
    gpus_per_node: int = field(default=0, metadata={"help": "GPUs on each node", "first": True})
    conf: str = field(default="", metadata={"help": 'Spark settings as JSON: {"spark.executor.memory": "4g"}'})
    python: str = field(
        default="", metadata={"help": "path of Python on the executors (default: the path of this Python)"}
    )
    session: str = field(
        default="",
        metadata={"help": "socket of the process with the Spark session, instead of master; found automatically"},
    )
    host: str = field(
        default="",
        metadata={"help": "address of this machine that executors can reach (default: the one on the route to it)"},
    )
    directory: str = field(default="", metadata={"help": DIRECTORY_HELP})
    network: str = field(default="", metadata={"help": NETWORK_HELP})
    shared: bool | None = field(default=None, metadata={"help": SHARED_HELP})
    oversubscribe: bool = field(default=False, metadata={"help": OVERSUBSCRIBE_HELP})

    @property
    def address(self) -> str:
        """The master or the server."""
        return self.remote or self.master or "the notebook's session"

    def settings(self) -> dict[str, str]:
        """Return the user's settings of Spark. Raises InvalidSpec."""
        try:
            pairs = json.loads(self.conf or "{}").items()
        except (ValueError, AttributeError):
            raise InvalidSpec(
                f'conf is {self.conf!r}, but must be JSON such as {{"spark.executor.memory": "4g"}}.',
                code="spark-conf-invalid",
                field="conf",
            ) from None
        settings = {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in pairs}
        if hidden := [name for name, value in settings.items() if is_secret(name, value)]:
            raise InvalidSpec(
                f"conf contains a secret ({hidden[0]}), which would be visible in the process list.",
                code="spark-conf-secret",
                field="conf",
                hint="Put it into the file spark-defaults.conf in SPARK_CONF_DIR.",
            )
        return settings


@dataclass(frozen=True, slots=True)
class Order:
    """A stage of ``tasks`` tasks with ``cpus`` cores each, or at least ``least`` of them.

    ``whole``: an executor is as large as its worker allows, and gets one task.
    """

    name: str
    tasks: int = 1
    least: int = 1
    cpus: int = 1
    python: str = ""
    whole: bool = False


def addresses(options: SparkOptions) -> Iterator[tuple[str, int]]:
    """Yield host and port of each master, or of the Connect server, as far as the options name them."""
    named = options.address.partition("://")[2].split("/")[0]
    for match in re.finditer(r"([^/,;:]+|\[[0-9a-fA-F:]+\]):(\d+)", named):
        yield match[1].strip("[]"), int(match[2])
    if options.remote and not re.search(r":\d+", options.remote):
        yield options.remote.removeprefix("sc://").split("/")[0], 15002


def require_master(options: SparkOptions) -> None:
    """Raise LaunchFailed when no master or server responds, for which Spark itself waits a minute."""
    reason = ""
    for address in addresses(options) if options.remote or options.master.startswith("spark://") else ():
        try:
            with socket.create_connection(address, 5.0):
                return
        except OSError as error:
            reason = f"{error.strerror or error}"
    if reason:
        raise LaunchFailed(
            f"Spark at {options.address} does not respond: {reason}.", code="spark-unreachable", hint=CHECK_MASTER
        )
