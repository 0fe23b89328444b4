"""What a command line asks for, as far as it has been read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

PYTHON = re.compile(r"(.*/)?python[0-9.]*")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
REMEDY = "Write the command as: python SCRIPT.py ARGUMENTS, with or without mpirun before it."


@dataclass(slots=True)
class Command:
    """What a command line asks for. ``processes`` is the total, None where it is not said; so is ``per_node``.

    ``left_out`` pairs what stands in the line with why it is not needed.
    """

    script: str = ""
    arguments: tuple[str, ...] = ()
    launcher: str = ""
    processes: int | None = None
    per_node: int | None = None
    directory: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    #: Gives the text of a shell script by its path in the job, None when it is not here.
    text: Callable[[str], str | None] = field(default=lambda _path: None, repr=False, compare=False)
