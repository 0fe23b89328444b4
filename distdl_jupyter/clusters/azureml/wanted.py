"""What is said of a compute cluster that is to be made, and what Azure is asked for then.

What is safe and costs least is the default: no node without a job, nodes that go after ten minutes without one, no
logging in over SSH, no public address where there is a virtual network, an identity that Azure manages. Rules on names,
networks and identities: learn.microsoft.com, how-to-create-attach-compute-cluster and how-to-secure-training-vnet.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter.azure import VmSize, catalogue, successor_of
from distdl_jupyter.core.errors import InvalidSpec

#: An InfiniBand network's own addresses: a virtual network may not hold them.
_RESERVED = ipaddress.ip_network("172.16.0.0/16")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]")
_SUBNET = re.compile(r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Network/virtualNetworks/[^/]+/"
                     r"subnets/[^/]+", re.IGNORECASE)  # fmt: skip
_IDENTITY = re.compile(r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.ManagedIdentity/"
                       r"userAssignedIdentities/[^/]+", re.IGNORECASE)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComputeWanted:
    """The compute cluster to make."""

    vm_size: str = field(metadata={"help": "VM size of each node, such as Standard_NC4as_T4_v3", "first": True})
    max_nodes: int = field(default=1, metadata={"help": "maximum number of nodes", "first": True})
    min_nodes: int = field(
        default=0, metadata={"help": "nodes that keep running without a job and always cost money", "first": True}
    )
    idle_seconds: int = field(default=600, metadata={"help": "seconds without a job after which a node stops"})
    low_priority: bool = field(
        default=False,
        metadata={"help": "cheaper nodes that Azure can preempt: a preempted job restarts, so save checkpoints"},
    )
    subnet: str = field(default="", metadata={"help": "ID of a subnet for the nodes, in the workspace's region"})
    public_ip: bool | None = field(
        default=None, metadata={"help": "give each node a public address (default: only without a subnet)"}
    )
    identity: str = field(
        default="system",
        metadata={"help": "identity with which jobs read data: system, none, or the ID of a managed identity"},
    )

    def __post_init__(self) -> None:
        _count("max_nodes", self.max_nodes, 1)
        _count("min_nodes", self.min_nodes, 0)
        _count("idle_seconds", self.idle_seconds, 60)
        if self.min_nodes > self.max_nodes:
            raise InvalidSpec(
                f"min_nodes is {self.min_nodes}, but max_nodes is {self.max_nodes}.",
                code="azureml-min-above-max-nodes",
                field="min_nodes",
                hint="Lower min_nodes, or raise max_nodes.",
            )
        if self.subnet and not _SUBNET.fullmatch(self.subnet):
            raise InvalidSpec(
                f"subnet is {self.subnet!r}, but must be the ID of a "
                "subnet.", code="azureml-subnet-invalid", field="subnet",
                hint="Copy the ID from the Azure portal: /subscriptions/.../virtualNetworks/NETWORK/subnets/SUBNET",
            )  # fmt: skip
        if self.identity not in ("system", "none") and not _IDENTITY.fullmatch(self.identity):
            raise InvalidSpec(
                f"identity is {self.identity!r}, but must be system, none, or the ID of a managed identity.",
                code="azureml-identity-invalid",
                field="identity",
            )

    @property
    def size(self) -> str:
        """The size as Azure writes it. Raises InvalidSpec for one that can no longer be rented."""
        known = known_size(self.vm_size)
        if known is None:
            return self.vm_size.strip()
        later = successor_of(known)
        if known.retired:
            instead = f"Use {later.size.size}: {later.reason}" if later else "Use another size."
            raise InvalidSpec(
                f"{known.size} was retired on {known.retirement_date}.",
                code="azureml-size-retired",
                field="vm_size",
                hint=instead,
            )
        return known.size

    @property
    def has_public_ip(self) -> bool:
        """Whether each node gets a public address."""
        return not self.subnet if self.public_ip is None else self.public_ip

    def body(self, location: str) -> dict[str, Any]:
        """Return what the resource manager is asked for. Raises InvalidSpec."""
        if not self.vm_size:
            raise InvalidSpec(
                "vm_size is missing.",
                code="azureml-size-missing",
                field="vm_size",
                hint="Set vm_size to the VM size of each node.",
            )
        inner: dict[str, Any] = {
            "osType": "Linux",
            "vmSize": self.size,
            "vmPriority": "LowPriority" if self.low_priority else "Dedicated",
            "scaleSettings": {
                "minNodeCount": self.min_nodes,
                "maxNodeCount": self.max_nodes,
                "nodeIdleTimeBeforeScaleDown": duration(self.idle_seconds),
            },
            "remoteLoginPortPublicAccess": "Disabled",
            "enableNodePublicIp": self.has_public_ip,
        }
        if self.subnet:
            inner["subnet"] = {"id": self.subnet}
        return {
            "location": location,
            **self._identity(),
            "properties": {"computeType": "AmlCompute", "disableLocalAuth": True, "properties": inner},
        }

    def _identity(self) -> dict[str, Any]:
        if self.identity == "none":
            return {}
        if self.identity == "system":
            return {"identity": {"type": "SystemAssigned"}}
        return {"identity": {"type": "UserAssigned", "userAssignedIdentities": {self.identity: {}}}}

    def check_network(self, prefixes: Iterable[str]) -> None:
        """Refuse a subnet of addresses that an InfiniBand size needs itself. Raises InvalidSpec."""
        known = known_size(self.vm_size)
        if known is None or not known.infiniband:
            return
        for prefix in prefixes:
            network = ipaddress.ip_network(prefix, strict=False)
            if network.version == _RESERVED.version and network.overlaps(_RESERVED):
                raise InvalidSpec(
                    f"The address range {prefix} of the subnet overlaps 172.16.0.0/16, which InfiniBand sizes "
                    "use.", code="azureml-subnet-overlap",
                    field="subnet", hint="Choose a subnet in another address range.",
                )  # fmt: skip


def check_name(name: str) -> None:
    """Refuse a name that Azure does not take for a compute cluster. Raises InvalidSpec."""
    if not _NAME.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} is not a valid name for a compute cluster.",
            code="azureml-compute-name",
            field="compute",
            hint="Use 3 to 24 letters, digits and dashes, starting with a letter.",
        )


def known_size(name: str) -> VmSize | None:
    """Return a size of the catalogue by its whole name, in any case, None for one that it does not hold."""
    plain = name.strip().lower().removeprefix("standard_")
    return next((size for size in catalogue() if size.name.lower() == plain), None)


def duration(seconds: int) -> str:
    """Return seconds as ISO 8601 writes a duration: 600 -> "PT10M"."""
    return f"PT{seconds // 60}M" if seconds % 60 == 0 else f"PT{seconds}S"


def minutes(text: str) -> float | None:
    """Return an ISO duration of hours, minutes and seconds as minutes, None when it is none."""
    found = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?", text)
    if not found or text == "PT":
        return None
    hours, mins, seconds = (float(part or 0) for part in found.groups())
    return 60 * hours + mins + seconds / 60


def _count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidSpec(
            f"{name} is {value!r}, but must be an integer of at least {least}.",
            code="azureml-number-invalid",
            field=name,
        )
