"""What is said of machines that can be made and unmade, and of values that an option may have at a place.

Plain data for the contract in ``clusters.base``. It knows no cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Choice:
    """One value that an option may have; ``label`` ("": the value itself) and ``detail`` are for people.

    ``sets`` holds other options that come with it, as the resource group of a workspace.
    """

    value: str
    label: str = ""
    detail: str = ""
    sets: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """A cluster's machines as a whole. ``state`` is a word while something goes on ("creating"), "" when nothing does.

    Between ``min_nodes`` and ``max_nodes`` are up, as jobs need them; the first stay up, and cost money, without a job.
    ``problem`` says why the last change failed. ``cost_per_hour`` is the price of one node, None when it is not known.
    """

    exists: bool
    state: str = ""
    problem: str = ""
    size: str = ""
    detail: str = ""
    min_nodes: int = 0
    max_nodes: int = 0
    cost_per_hour: float | None = None
    currency: str = ""
    #: Where the price comes from, in words.
    price_source: str = ""
