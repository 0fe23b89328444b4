"""``%dist_config azure``, ``monitoring``, ``tracking`` and ``warm``: settings of a user for all kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def azure(changes: Mapping[str, str], paged: bool = True) -> Any:  # noqa: FBT001, FBT002 - one of two places
    """Change settings for Azure, sign in when a way was given, and show who is signed in.

    On a page (``paged``) that is the panel, which is returned; in a terminal it is printed. Raises InvalidSpec.
    """
    from distdl_jupyter.azure import identity, settings
    from distdl_jupyter.views import azure as azure_view
    from distdl_jupyter.widgets.azure import azure_sign_in

    given = dict(changes)
    if given.get("credential"):
        kind = given.pop("credential")
        identity.sign_in(kind, **given)
    elif given:
        settings.change(**given)
    if paged:
        return azure_sign_in()
    print("\n".join(azure_view.sign_in_lines(azure_view.sign_in_view())), flush=True)  # noqa: T201 - the line's output
    return None


def monitoring(changes: Mapping[str, str], _paged: bool = True) -> None:  # noqa: FBT001, FBT002 - as above
    """Change the settings of telemetry and messages, send a test message to a new address, and print them.

    Raises InvalidSpec, MessageNotSent.
    """
    from distdl_jupyter.core import reporting
    from distdl_jupyter.core.errors import MessageNotSent
    from distdl_jupyter.tracking import telemetry
    from distdl_jupyter.tracking.messages import configure, notifications

    own = configure(**changes) if changes else reporting.SETTINGS.read()
    where = ", ".join(telemetry.destinations()) or "not set in the environment"
    service = notifications().service or "none"
    lines = [f"enabled = {own.enabled}", f"destination = {where}", f"address = {service}", f"notify = {own.notify}"]
    if changes.get("address"):
        try:
            lines.append(f"A message was sent to {notifications(test=True).service}.")
        except MessageNotSent as error:
            lines.append(str(error))
    print("\n".join(lines), flush=True)  # noqa: T201 - a cell's output


def tracking(changes: Mapping[str, str], _paged: bool = True) -> None:  # noqa: FBT001, FBT002 - as above
    """Change the settings of experiment trackers and print them. Raises InvalidSpec."""
    from distdl_jupyter.core.reporting import SETTINGS, TRACKING, change
    from distdl_jupyter.tracking.trackers import host_of, mlflow_address

    own = change(TRACKING, **changes) if changes else SETTINGS.read()
    shown = {name: getattr(own, name) for name in TRACKING}
    shown |= {"track": own.track or "none", "mlflow": host_of(mlflow_address(own))}
    print("\n".join(f"{name} = {value}" for name, value in shown.items()), flush=True)  # noqa: T201 - a cell's output


def warm(changes: Mapping[str, str], _paged: bool = True) -> None:  # noqa: FBT001, FBT002 - as above
    """Switch warm starts on or off, set how long a template runs, and print their state. Raises InvalidSpec."""
    from distdl_jupyter.warm import report, start, template_files

    template_files.parse_settings(changes)
    if "off" in changes:
        start.stop(template_files.of())
    print("\n".join(report.lines()), flush=True)  # noqa: T201 - a cell's output


#: First word of the line -> what is done with its NAME=VALUE words, on a page or in a terminal.
TOPICS: dict[str, Callable[..., Any]] = {
    "azure": azure,
    "monitoring": monitoring,
    "tracking": tracking,
    "warm": warm,
}
