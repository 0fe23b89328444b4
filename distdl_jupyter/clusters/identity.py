"""Who a rank is, as the variables that the worker reads (``worker.identity``): the same wherever it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distdl_jupyter.core.plan import Placement, RankSlot


def variables(placement: Placement, place: RankSlot) -> dict[str, str]:
    """Return the ``DISTDL_`` variables of one rank."""
    identity = {
        "DISTDL_RANK": place.rank,
        "DISTDL_WORLD_SIZE": len(placement.ranks),
        "DISTDL_LOCAL_RANK": place.local_rank,
        "DISTDL_LOCAL_SIZE": placement.local_size(place.node),
        "DISTDL_NODE_RANK": place.node,
        "DISTDL_NODE_COUNT": placement.node_count,
        "DISTDL_HOST": place.host,
    }
    if place.gpu is not None:
        identity["DISTDL_GPU"] = place.gpu
    return {name: str(value) for name, value in identity.items()}
