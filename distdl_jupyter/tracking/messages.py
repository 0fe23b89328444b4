"""Sends messages about jobs through Apprise; an address names a service: ``slack://...``, ``jsons://HOST/PATH``.

Each message is sent by a separate process (``python -m distdl_jupyter.tracking.messages``), which reads the address
from standard input. The address is secret: only the name of its service is displayed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from distdl_jupyter.core import user_settings
from distdl_jupyter.core.errors import InvalidSpec, MessageNotSent, PluginUnavailable
from distdl_jupyter.tracking import run_reporter

#: Apprise's message type for each kind of alert.
_MESSAGE_TYPES = {"end": "success", "failure": "failure", "stall": "warning", "nan": "warning", "rule": "info"}
#: The title, the text and the kind of an alert.
Message = tuple[str, str, str]
#: The message that is sent to test an address.
TEST_MESSAGE: Message = ("distdl-jupyter: connected", "Messages about your jobs will be sent here.", "end")


@dataclass(frozen=True, slots=True)
class Notifications:
    """The ``service`` for messages about jobs, or "" if none is set; ``notify`` are the events, comma-separated."""

    service: str
    notify: str

    def __str__(self) -> str:
        return f"{self.service}, for {self.notify}" if self.service else "no address"


def notifications(address: str | None = None, notify: str | None = None, *, test: bool = False) -> Notifications:
    """Change the settings for messages about jobs that are passed ("" restores the default), and return all settings.

    With ``test``, send a test message. Raises InvalidSpec, MessageNotSent.
    """
    changes = {name: value for name, value in (("address", address), ("notify", notify)) if value is not None}
    current = configure(**changes)
    if test:
        if not current.address:
            raise InvalidSpec(
                "No address is set, so no message can be sent.",
                code="message-address-missing",
                field="address",
                hint="Set one: distdl notify --set",
            )
        deliver(current.address, TEST_MESSAGE)
    return Notifications(_get_service(current.address), current.notify)


def configure(**changes: Any) -> user_settings.ReportingSettings:
    """Change the settings of telemetry and messages, and return them. Raises MessageNotSent for an invalid address."""
    if address := str(changes.get("address") or "").strip():
        deliver(address)
    return user_settings.change_settings("monitoring", **changes)


def _get_service(address: str) -> str:
    scheme = address.partition("://")[0]
    return "webhook" if scheme in ("http", "https") else scheme


def deliver(address: str, message: Message | None = None) -> None:
    """Send a message, or only check the address if there is no message. Raises MessageNotSent."""
    # Apprise is not imported in this process, because loggers of this process could write the address.
    command = [sys.executable, "-P", "-m", __name__]
    body = json.dumps((address, message))
    process = subprocess.run(command, check=False, input=body, capture_output=True, text=True)
    if process.returncode:
        raise MessageNotSent(process.stdout.removeprefix("messages: ").strip(), code="message-not-sent")


def send(address: str, message: Message | None) -> str:
    """Send a message from this process, or only check the address; return the result as text. Raises DistDLError."""
    try:
        import apprise
    except ImportError:
        problem = "Messages need the package apprise."
        hint = "Run: pip install 'distdl-jupyter[messages]'"
        raise PluginUnavailable(problem, code="messages-package-missing", hint=hint) from None
    # Redirects are not followed, because they would send the message to another server.
    retries: dict[str, Any] = {"default_service_retry": 2, "default_service_wait": 2.0}
    sender = apprise.Apprise(asset=apprise.AppriseAsset(app_id="distdl-jupyter", http_redirects=False, **retries))
    if not sender.add(address):
        raise InvalidSpec(
            "The address for messages is not valid.",
            code="message-address-invalid",
            field="address",
            hint="Use an address such as slack://TOKENS, ntfys://HOST/TOPIC, or jsons://HOST/PATH for a JSON webhook "
            "at https://HOST/PATH. All services are listed at https://appriseit.com/services",
        )
    service = _get_service(address)
    if message is None:
        return ""
    title, text, alert_type = message
    result = sender.notify(text, title, _MESSAGE_TYPES[alert_type], body_format="text")
    if result:
        return f"A message was sent to {service}."
    status = re.search(r"error=(\d{3})", " ".join(entry.message for entry in result.logs()))
    reason = f"responded with {status[1]}" if status else "cannot be reached or rejected it"
    hint = "Check that the address is complete and valid, and that this machine can reach the service."
    raise MessageNotSent(f"The message could not be sent: {service} {reason}.", code="message-rejected", hint=hint)


def main() -> None:
    """Send the message on standard input."""
    address, message = json.loads(sys.stdin.read())
    run_reporter("messages", lambda: send(address, message))


if __name__ == "__main__":
    main()
