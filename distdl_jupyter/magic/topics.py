"""``%dist_config azure``, ``monitoring`` and ``tracking``: show and change settings for all kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from distdl_jupyter.magic.session import say


def azure(changes: Mapping[str, str], *, paged: bool = True) -> Any:
    """Change settings for Azure, and sign in if ``credential`` is given. Raises InvalidSpec.

    On a page (``paged``), return the panel, which shows the account; in a terminal, print the account.
    """
    from distdl_jupyter.azure import identity, settings
    from distdl_jupyter.views import azure as azure_view
    from distdl_jupyter.widgets.azure import azure_sign_in

    if changes.get("credential"):
        identity.sign_in(changes["credential"], **{name: changes[name] for name in changes if name != "credential"})
    elif changes:
        settings.change(**changes)
    if paged:
        return azure_sign_in()
    say("\n".join(azure_view.sign_in_lines(azure_view.sign_in_view())))
    return None


def monitoring(changes: Mapping[str, str]) -> None:
    """Change settings of telemetry and messages, and send a test message to a new address.

    Raises InvalidSpec, MessageNotSent.
    """
    from distdl_jupyter.tracking import messages, telemetry

    settings = messages.configure(**changes)
    say(f"enabled = {settings.enabled}")
    say(f"destination = {', '.join(telemetry.destinations()) or 'not set in the environment'}")
    say(f"address = {messages.notifications().service or 'none'}")
    say(f"notify = {settings.notify}")
    if changes.get("address"):
        say(f"A message was sent to {messages.notifications(test=True).service}.")


def tracking(changes: Mapping[str, str]) -> None:
    """Change settings of experiment trackers. Raises InvalidSpec."""
    from distdl_jupyter.core import reporting
    from distdl_jupyter.tracking.trackers import host_of, mlflow_address

    settings = reporting.change(reporting.TRACKING, **changes)
    say(f"track = {settings.track or 'none'}")
    say(f"mlflow = {host_of(mlflow_address(settings))}")
    say(f"artifacts = {settings.artifacts}")


#: Functions by topic, the first word of the line; ``warm`` runs the command of that name.
TOPICS: dict[str, Callable[..., Any]] = {"azure": azure, "monitoring": monitoring, "tracking": tracking}
