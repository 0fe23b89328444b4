"""Which host takes which rank, and in words what was found, refused or agreed on before a job starts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import listing, plural, total_need
from distdl_jupyter.core.plan import Placement, RankSlot

if TYPE_CHECKING:
    from distdl_jupyter.clusters.agents.checkup import Checkup
    from distdl_jupyter.clusters.agents.network import Common
    from distdl_jupyter.clusters.base import Check
    from distdl_jupyter.core.spec import JobSpec


def places(
    spec: JobSpec, names: Sequence[str], found: Checkup | None = None, common: Common | None = None
) -> tuple[RankSlot, ...]:
    """Return a place for each rank, with GPU, interface and cores as far as the hosts were asked."""
    per_node, each = spec.process_count_per_node, spec.gpus or 1
    found_places = []
    for rank in range(spec.process_count):
        node, local_rank = divmod(rank, per_node)
        facts = found.facts[names[node]] if found is not None else {}
        cores = max(1, int(facts.get("cores") or 1) // spec.most_processes_per_node) if facts else 0
        gpus = [int(gpu["number"]) for gpu in facts.get("gpus") or ()] if spec.use_gpu is not False else []
        found_places.append(
            RankSlot(
                rank, node, names[node], local_rank,
                gpu=gpus[local_rank * each % len(gpus)] if gpus else None,
                gpus=tuple(gpus[local_rank * each : (local_rank + 1) * each]) if each > 1 else (),
                interface=common.endpoint(names[node]).interface if common is not None else "",
                cores=spec.cores or cores,
            )
        )  # fmt: skip
    return tuple(found_places)


def before_contact(spec: JobSpec, gpus: int, said: object = None) -> Placement:
    """Return where ranks run on nodes whose names are not known yet. Raises InvalidSpec where they lack GPUs.

    ``gpus`` is how many GPUs a job gets of each node, ``said`` the option gpus_per_node where that is another value.
    """
    if spec.use_gpu and gpus < spec.process_count_per_node:
        raise InvalidSpec(
            f"use_gpu needs {plural(spec.process_count_per_node, 'GPU')} on each node, but the cluster option "
            f"gpus_per_node is {gpus if said is None else said}.",
            code="gpus-per-node-too-few",
            field="use_gpu",
            hint=f"Set the cluster option gpus_per_node to {spec.process_count_per_node}.",
        )
    names = [f"node-{node}" for node in range(spec.node_count)]
    return Placement(places(spec, names), address="", ports=(), interface="")


def check_gpus(spec: JobSpec, found: Checkup) -> None:
    """Raise LaunchFailed when a host has no GPU for each of its processes."""
    each = spec.gpus or 1
    wanted = spec.process_count_per_node * each
    lacking = [f"{host} has {len(facts.get('gpus') or ())}" for host, facts in found.facts.items()
               if len(facts.get("gpus") or ()) < wanted]  # fmt: skip
    if lacking:
        need = total_need(spec.process_count_per_node, plural(each, "GPU"), plural(wanted, "GPU"))
        raise LaunchFailed(
            f"{need} on each host, but {listing(lacking)}.",
            code="hosts-too-few-gpus",
            hint="Use fewer processes on each host, or remove use_gpu.",
        )


def agreed(found: Checkup) -> Common:
    """Return the network that the hosts share. Raises LaunchFailed."""
    if found.network is None:
        raise LaunchFailed(
            "The hosts share no network.",
            code="no-common-network",
            hint="Set the cluster option network to the network that ranks use.",
        )
    return found.network


def met(spec: JobSpec, names: Sequence[str], common: Common) -> str:
    """Return who was reached and where ranks meet: ``lab: node-a, node-b reached; ranks meet on 10.0.0.0/24``."""
    if len(names) == 1:
        return f"{spec.compute_target}: connected to {names[0]}."
    where = f"{common.network} ({common.interface})" if common.interface else common.network
    return f"{spec.compute_target}: connected to {', '.join(names)}. Ranks communicate over {where}."


def empty_work(hosts: Sequence[str], folder: str) -> str:
    """Return that ranks on these hosts do not find the working directory."""
    return (
        f"{listing(hosts)} {'has' if len(hosts) == 1 else 'have'} no folder {folder}, so ranks there run in an empty "
        "folder. Put the files that ranks read where every host sees them."
    )


def refusal(errors: Sequence[Check]) -> str:
    """Return the red rows as sentences, each with its remedy."""
    return "\n".join(map(sentence, errors))


def sentence(check: Check) -> str:
    """Return a row as a line: ``node-c: torch 2.5.1, the other hosts have 2.13.0. Run pip install ...``."""
    remedy = f"Run {check.remedy}" if check.remedy[:1].islower() else check.remedy
    where = f"{check.node}: " if check.node else ""
    return f"{where}{check.says.rstrip('.')}. {remedy}".rstrip()
