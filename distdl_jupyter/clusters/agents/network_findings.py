"""What is said of the network on which hosts meet: each one's address, and who does not reach whom.

Pure: a chosen network and what was found by connecting in, ``Check`` rows out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from distdl_jupyter.clusters.agents.network import Common, Endpoint, Gap, Reached, closest, gaps
from distdl_jupyter.clusters.base import Check
from distdl_jupyter.core import humanize


def rows(offered: Mapping[str, Sequence[Endpoint]], reached: Reached, found: Common | None, wanted: str) -> list[Check]:
    """Return what to say of the network that was found, or why there is none.

    ``wanted`` is the option ``network`` ("": any).
    """
    if found is not None:
        return [*_common(found), *_whole(found)]
    if lacking := [host for host, own in offered.items() if not own]:
        return [_nowhere(host, wanted) for host in lacking]
    nearest = closest(offered, reached)
    if nearest is None:
        return [_apart(offered, wanted)]
    return [*_common(nearest), *_gaps(gaps(nearest, reached))]


def _common(common: Common) -> Iterator[Check]:
    for endpoint in common.endpoints:
        yield Check(endpoint.host, "Network", "ok", f"{endpoint.address} on {endpoint.interface} ({endpoint.network})")


def _whole(common: Common) -> Iterator[Check]:
    if len(common.endpoints) > 1:
        yield Check("", "Ports", "ok", "all hosts reach each other")


def _nowhere(host: str, wanted: str) -> Check:
    if wanted:
        says = f"has no address on {wanted}, which the option network names"
        return Check(
            host, "Network", "error", says, "Correct the option network, or remove it.", code="host-network-option"
        )
    return Check(
        host,
        "Network",
        "error",
        "has no IPv4 address except its loopback address",
        "Connect the host to the network of the other hosts.",
        code="host-no-address",
    )


def _apart(offered: Mapping[str, Sequence[Endpoint]], wanted: str) -> Check:
    each = [f"{host} has {humanize.listing([endpoint.address for endpoint in own])}" for host, own in offered.items()]
    says = f"no host reaches an address of another host: {'; '.join(each)}"
    if wanted:
        remedy = f"The hosts do not reach each other on {wanted}. Correct the option network, or remove it."
    else:
        remedy = "Connect the hosts to one network, and allow TCP between them in their firewalls."
    return Check("", "Network", "error", says, remedy, code="hosts-no-common-network")


def _gaps(found: Iterable[Gap]) -> Iterator[Check]:
    """Yield one row for each host that others do not reach, and each reason."""
    sources: dict[tuple[Endpoint, str], list[str]] = {}
    for gap in found:
        sources.setdefault((gap.target, gap.why), []).append(gap.source)
    for (target, why), names in sources.items():
        verb = "does" if len(names) == 1 else "do"
        says = f"{humanize.listing(names)} {verb} not reach {target.host} at {target.address}: {why}"
        yield Check(target.host, "Ports", "error", says, _opened(names, target, why), code="host-ports")


def _opened(sources: Sequence[str], target: Endpoint, why: str) -> str:
    if why == "another machine or program answers":
        return f"Give {target.host} an address that no other machine has, or set the option network to another network."
    return (
        f"Allow TCP from {humanize.listing(sources)} to {target.address}, ports 1024 to 65535, in the firewall of "
        f"{target.host} and in any firewall between them."
    )
