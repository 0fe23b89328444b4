"""Which network a job's hosts meet on, and each host's own interface and address on it.

Pure: it judges addresses and what was found by connecting (``node.ports``). An interface's name or subnet proves
nothing: two hosts can each have an ``eth0`` in 192.168.0.0/24 that lead to different networks. So only addresses that
every other host has reached count.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, ip_network
from typing import Any

from distdl_jupyter.core.errors import InvalidSpec

#: Addresses of one host that are tried at most.
MOST = 6
#: (the host that connects, the address it connects to) -> "" when it was reached, else why not.
Reached = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of one host; ``speed`` in Mbit/s (0: not known), ``virtual`` for a bridge of containers."""

    host: str
    interface: str
    address: str
    network: str
    speed: int = 0
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class Common:
    """The network that the hosts share: an endpoint for each, in their order.

    ``network`` is "10.0.0.0/24", or several with commas where hosts in different subnets reach each other.
    """

    network: str
    endpoints: tuple[Endpoint, ...]

    def endpoint(self, host: str) -> Endpoint:
        """Return a host's endpoint. Raises KeyError."""
        for endpoint in self.endpoints:
            if endpoint.host == host:
                return endpoint
        raise KeyError(host)

    @property
    def interface(self) -> str:
        """The interface's name where it is the same on all hosts, else ""."""
        names = {endpoint.interface for endpoint in self.endpoints}
        return names.pop() if len(names) == 1 else ""


@dataclass(frozen=True, slots=True)
class Gap:
    """``source`` did not reach ``target`` at its address; ``why`` as the system says it."""

    source: str
    target: Endpoint
    why: str


def endpoints(host: str, interfaces: Iterable[Mapping[str, Any]], network: str = "") -> list[Endpoint]:
    """Return the addresses on which a host could meet others, best first.

    ``interfaces`` are those of ``node.facts``; ``network`` is a network or the name of an interface ("": any).
    Raises InvalidSpec when ``network`` is neither.
    """
    up = [
        interface
        for interface in interfaces
        if interface["up"] and not interface["loopback"] and not interface["address"].startswith("169.254.")
    ]
    candidates = [_endpoint(host, interface) for interface in up if _fits(interface, network)]
    return sorted(candidates, key=_worth)[:MOST]


def loopback(host: str, interfaces: Iterable[Mapping[str, Any]] = ()) -> Common:
    """Return the network of a job that has one host: its loopback, which no other host can reach."""
    name = next((str(interface["name"]) for interface in interfaces if interface["loopback"]), "lo")
    return Common("127.0.0.0/8", (Endpoint(host, name, "127.0.0.1", "127.0.0.0/8"),))


def choose(offered: Mapping[str, Sequence[Endpoint]], reached: Reached) -> Common | None:
    """Return the best network on which every host reaches every other, None when there is none.

    One subnet for all comes first, of these the fastest; then hosts in different subnets that reach each other.
    """
    nearest = closest(offered, reached)
    return None if nearest is None or gaps(nearest, reached) else nearest


def closest(offered: Mapping[str, Sequence[Endpoint]], reached: Reached) -> Common | None:
    """Return the network on which fewest connections fail, None when no two hosts share one."""
    candidates = list(_hypotheses(offered, reached))
    return min(candidates, key=lambda candidate: (len(gaps(candidate, reached)), *_order(candidate)), default=None)


def gaps(common: Common, reached: Reached) -> list[Gap]:
    """Return which host does not reach which on this network; what was not tried does not count as reached."""
    pairs = itertools.permutations(common.endpoints, 2)
    tried = ((source, target, reached.get((source.host, target.address), "not tried")) for source, target in pairs)
    return [Gap(source.host, target, why) for source, target, why in tried if why]


def _endpoint(host: str, interface: Mapping[str, Any]) -> Endpoint:
    network = IPv4Interface(f"{interface['address']}/{interface['prefix']}").network
    return Endpoint(
        host,
        str(interface["name"]),
        str(interface["address"]),
        str(network),
        int(interface["speed"]),
        bool(interface["virtual"]),
    )


def _fits(interface: Mapping[str, Any], network: str) -> bool:
    if not network:
        return True
    if "/" not in network:
        return bool(interface["name"] == network or interface["address"] == network)
    return IPv4Interface(interface["address"]).ip in _parsed(network)


def _parsed(network: str) -> IPv4Network:
    try:
        parsed = ip_network(network, strict=False)
    except ValueError:
        parsed = None
    if not isinstance(parsed, IPv4Network):
        raise InvalidSpec(
            f"{network!r} is not a valid network.",
            code="network-invalid",
            field="network",
            hint="Write a network as 10.0.0.0/24, or an interface by its name, such as eno1.",
        )
    return parsed


def _worth(endpoint: Endpoint) -> tuple[bool, int]:
    """Order addresses: those of container bridges last, fast ones first."""
    return endpoint.virtual, -endpoint.speed


def _order(common: Common) -> tuple[bool, bool, int, bool]:
    """Order networks: bridges last, one subnet before several, the slowest host's speed, private ones first."""
    slowest = min((endpoint.speed for endpoint in common.endpoints), default=0)
    public = any(IPv4Address(endpoint.address).is_global for endpoint in common.endpoints)
    return any(endpoint.virtual for endpoint in common.endpoints), "," in common.network, -slowest, public


def _hypotheses(offered: Mapping[str, Sequence[Endpoint]], reached: Reached) -> Iterator[Common]:
    """Yield every assignment of endpoints that could be one network: each shared subnet, then the routed one."""
    networks = dict.fromkeys(endpoint.network for host_endpoints in offered.values() for endpoint in host_endpoints)
    for network in networks:
        candidates = [
            next((endpoint for endpoint in host_endpoints if endpoint.network == network), None)
            for host_endpoints in offered.values()
        ]
        if whole := _all(candidates):
            yield Common(network, whole)
    if whole := _all([_reached_by_all(host, offered, reached) for host in offered]):
        yield Common(",".join(sorted({endpoint.network for endpoint in whole})), whole)


def _all(candidates: Sequence[Endpoint | None]) -> tuple[Endpoint, ...]:
    """Return the endpoints if every host has one of its own, else ().

    An address that occurs twice belongs to two separate networks, such as the docker0 of each host.
    """
    present = tuple(endpoint for endpoint in candidates if endpoint is not None)
    return present if len({endpoint.address for endpoint in present}) == len(candidates) else ()


def _reached_by_all(host: str, offered: Mapping[str, Sequence[Endpoint]], reached: Reached) -> Endpoint | None:
    """Return a host's best address that most others reach, none when nobody reaches any."""
    others = [other for other in offered if other != host]

    def fails(endpoint: Endpoint) -> int:
        return sum(bool(reached.get((other, endpoint.address), "not tried")) for other in others)

    # Endpoints are in their order of worth and min takes the first of equals.
    best = min(offered[host], key=fails, default=None)
    return best if best is not None and fails(best) < len(others) else None
