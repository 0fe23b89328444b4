"""What goes wrong between this machine and a host, each as one sentence with its remedy."""

from __future__ import annotations

from distdl_jupyter.core.errors import LaunchFailed


class HostTrouble(LaunchFailed):
    """Something about one host; ``says`` is the sentence, ``remedy`` what to do about it."""

    def __init__(self, host: str, says: str, remedy: str = "") -> None:
        super().__init__(f"{host}: {says}", hint=remedy)
        self.host = host
        self.says = says
        self.remedy = remedy


class Unreachable(HostTrouble):
    """No agent could be started on a host.

    ``kind`` names the cause for programs: unknown-key, changed-key, denied, name, refused, timeout, route, python,
    old-python, shell, ssh, other.
    """

    def __init__(self, host: str, kind: str, says: str, remedy: str = "") -> None:
        super().__init__(host, says, remedy)
        self.kind = kind


class HostFailed(HostTrouble):
    """A host that was reached refused a request, or does not answer any more."""
