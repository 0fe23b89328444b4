"""The options that all clusters with agents have."""

from __future__ import annotations

from typing import Protocol

#: Help texts.
DIRECTORY_HELP = (
    "folder for the files of jobs on a host that shares no folder with this machine (default: ~/.cache/distdl)"
)
NETWORK_HELP = (
    "network or interface that ranks use to communicate, such as 10.0.0.0/24 or eno1 (default: the one "
    "that all hosts share)"
)
SHARED_HELP = "whether hosts see this machine's folders (default: detected)"
OVERSUBSCRIBE_HELP = "allow more processes than the limit of a machine (8 per core, at least 64)"


class AgentOptions(Protocol):
    """The options that all clusters with agents have."""

    @property
    def directory(self) -> str:
        """Where jobs keep their files on a host that shares no folder with this machine, "" for the usual place."""

    @property
    def network(self) -> str:
        """The network or interface on which ranks meet, "" for any."""

    @property
    def shared(self) -> bool | None:
        """Whether hosts see this machine's folders; None: it is found out."""

    @property
    def oversubscribe(self) -> bool:
        """Whether more processes may be started than one machine takes unasked."""
