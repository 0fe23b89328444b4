"""What to rent instead of a retired size: one documented rule over the catalogue.

1. The size that Azure's migration guide names, when it has no fewer GPUs and no less memory on each. (The guide
   answers some sizes with fewer or smaller GPUs: a training that filled the old ones would not fit.)
2. Else, among the sizes that are not retired, whose NVIDIA GPUs are joined by NVLink on an x86 host (Azure calls the
   others sizes for inference, visualisation or confidential computing) and have at least the old memory each: the
   nearest number of GPUs, rather more than fewer; then the series that Azure's guide names; then InfiniBand when the
   old one had it; then the least memory.

Sources: Microsoft's n-series-migration.md and ncv3-retirement.md, with their commits in ``vm_sizes.csv``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction

from distdl_jupyter.azure.catalogue_file import catalogue
from distdl_jupyter.azure.vm_size import VmSize


@dataclass(frozen=True, slots=True)
class Successor:
    """The size to use instead and why, in one or two sentences; ``source`` is the page, "" where the rule chose."""

    size: VmSize
    reason: str
    source: str


def successor(size: VmSize) -> VmSize | None:
    """Return what to rent instead of a retired size; None for a size that is not retired."""
    found = successor_of(size)
    return found.size if found else None


@functools.cache
def successor_of(size: VmSize) -> Successor | None:
    """Return the successor of a retired size with its reason and source; None for a size that is not retired."""
    if not size.retired:
        return None
    named = _named(size)
    if named is not None and _is_enough(named, size):
        return Successor(
            named, _reason(size, named, "recommended by Azure's migration guide"), size.azure_successor_source
        )
    candidates = [other for other in catalogue() if _trains(other) and _memory(other) >= _memory(size)]
    if not candidates:
        return None
    best = min(candidates, key=lambda other: _distance(size, other))
    by_guide = best.series == size.azure_successor
    why = "of the series recommended by Azure's migration guide" if by_guide else "nearest training size in the catalog"
    return Successor(best, _reason(size, best, why), size.azure_successor_source if by_guide else "")


def _named(size: VmSize) -> VmSize | None:
    return next((other for other in catalogue() if other.name == size.azure_successor), None)


def _is_enough(other: VmSize, size: VmSize) -> bool:
    return not other.retired and other.gpu_count >= size.gpu_count and _memory(other) >= _memory(size)


def _trains(size: VmSize) -> bool:
    return not size.retired and size.nvidia and not size.arm_host and size.nvlink is True


def _memory(size: VmSize) -> int:
    return size.gpu_memory_gib or 0


def _distance(size: VmSize, other: VmSize) -> tuple[Fraction, bool, bool, bool, int]:
    return (
        abs(other.gpu_count - size.gpu_count),
        other.gpu_count < size.gpu_count,
        other.series != size.azure_successor,
        bool(size.infiniband) and not other.infiniband,
        _memory(other),
    )


def _reason(old: VmSize, new: VmSize, why: str) -> str:
    text = f"{new.gpus_text} {new.memory_text} instead of {old.gpus_text} {old.memory_text} ({why})."
    if old.infiniband and not new.infiniband:
        text += " It has no InfiniBand." if new.infiniband is False else " Whether it has InfiniBand is not documented."
    return text
