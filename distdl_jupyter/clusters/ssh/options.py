"""The settings of a cluster of hosts that are reached over OpenSSH."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter.clusters.agents.options import DIRECTORY_HELP, NETWORK_HELP, OVERSUBSCRIBE_HELP, SHARED_HELP


@dataclass(frozen=True, slots=True)
class SshOptions:
    """Which hosts, and how they are reached. Names, users, ports and keys are best kept in ``~/.ssh/config``."""

    hosts: str = field(
        default="",
        metadata={"help": "hosts in order, as ssh accepts them: gpu1, gpu2:4 (for 4 processes), user@gpu3, or a "
                          "pattern for hosts in the ssh configuration: gpu*", "first": True},
    )  # fmt: skip
    hostfile: str = field(
        default="", metadata={"help": "a file with one host per line, in the format of Open MPI and Horovod"}
    )
    ssh_config: str = field(default="", metadata={"help": "the ssh configuration file (default: ~/.ssh/config)"})
    python: str = field(
        default="", metadata={"help": "the Python that runs ranks on the hosts (default: the job's own path)"}
    )
    directory: str = field(default="", metadata={"help": DIRECTORY_HELP})
    network: str = field(default="", metadata={"help": NETWORK_HELP})
    patience_seconds: float = field(
        default=20.0, metadata={"help": "seconds without a heartbeat after which hosts stop a job's ranks"}
    )
    shared: bool | None = field(default=None, metadata={"help": SHARED_HELP})
    oversubscribe: bool = field(
        default=False,
        metadata={"help": OVERSUBSCRIBE_HELP},
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", _joined(self.hosts))


def _joined(hosts: Any) -> str:
    """Return one line of hosts for what a user gave: a text, or a list of names."""
    if isinstance(hosts, str) or not isinstance(hosts, Iterable):
        return str(hosts or "")
    return ",".join(str(one) for one in hosts)
