"""What a template hands down to the processes that are forked from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distdl_jupyter.warm import preconditions
from distdl_jupyter.warm.process_marker import Room


@dataclass(slots=True)
class Prepared:
    """``environment`` is the one in which modules were imported; ``read`` are the variables that they have read."""

    room: Room
    environment: Mapping[str, str]
    read: set[str]
    set_by_imports: Mapping[str, str]

    def differing(self, environment: Mapping[str, str]) -> str:
        """Return a variable that keeps a process of this environment from being forked, "" when there is none.

        A submitter that has imported the same modules has what they set: torch sets KMP_DUPLICATE_LIB_OK.
        """
        set_alike = {name: value for name, value in self.set_by_imports.items() if environment.get(name) == value}
        return preconditions.differing({**self.environment, **set_alike}, environment, self.read)
