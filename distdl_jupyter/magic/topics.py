"""``%dist_config azure`` and ``%dist_config monitoring``: settings of the user for all kernels, beside one kernel's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def azure(changes: Mapping[str, str]) -> Any:
    """Change settings for Azure, sign in when a way was given, and return the panel. Raises InvalidSpec."""
    from distdl_jupyter.azure import identity, settings
    from distdl_jupyter.panels import azure_sign_in

    given = dict(changes)
    if given.get("credential"):
        kind = given.pop("credential")
        identity.sign_in(kind, **given)
    elif given:
        settings.change(**given)
    return azure_sign_in()


def monitoring(changes: Mapping[str, str]) -> None:
    """Change settings for monitoring and print them. Raises InvalidSpec."""
    from distdl_jupyter.monitoring import settings

    own = settings.change(**changes) if changes else settings.read()
    where = ", ".join(settings.destinations()) or "no variable of the environment says where to"
    print(f"enabled = {own.enabled}\ndestination = {where}", flush=True)  # noqa: T201 - a cell's output


#: First word of the line -> what is done with its NAME=VALUE words.
TOPICS: dict[str, Callable[[Mapping[str, str]], Any]] = {"azure": azure, "monitoring": monitoring}
