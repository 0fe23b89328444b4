"""Variables and folders that a script written for another system expects, made in each rank before the script runs.

What they stand for is known only here: the job's folder, the rank's number, where its data was staged to. Texts may
hold ``$NAME`` of the rank's environment and of variables set before.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def lay(layout: Mapping[str, Any], arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Set ``variables`` (pairs, in order), make ``folders`` and ``links`` (pairs of link and target).

    Returns the script's arguments with variables filled in; without a layout they stay as they are.
    """
    if not layout:
        return arguments
    os.environ["PWD"] = str(Path.cwd())  # a shell's own variable, which chdir leaves behind
    for name, text in layout.get("variables", ()):
        os.environ[name] = os.path.expandvars(text)
    for path in layout.get("folders", ()):
        Path(os.path.expandvars(path)).mkdir(parents=True, exist_ok=True)
    for link, target in layout.get("links", ()):
        _link(Path(os.path.expandvars(link)), os.path.expandvars(target))
    return tuple(os.path.expandvars(text) for text in arguments)


def _link(link: Path, target: str) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another rank of this node was first
        link.symlink_to(target)
