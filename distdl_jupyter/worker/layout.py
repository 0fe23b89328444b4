"""Variables and folders that a script written for another system expects, made in each rank before the script runs.

Their values are known only here: the folder of the job, the number of the rank, the folders of its data. Texts may
contain ``$NAME`` of the environment and of variables set before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def lay(layout: Mapping[str, Any], arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Set ``variables`` (pairs, in order), make ``folders``, and return the arguments with variables filled in.

    Without a layout the arguments stay as they are.
    """
    if not layout:
        return arguments
    for name, text in layout.get("variables", ()):
        os.environ[name] = os.path.expandvars(text)
    for path in layout.get("folders", ()):
        Path(os.path.expandvars(path)).mkdir(parents=True, exist_ok=True)
    return tuple(os.path.expandvars(text) for text in arguments)
