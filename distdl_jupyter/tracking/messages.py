"""Messages about jobs through Apprise, whose addresses name a service: ``slack://...``, ``jsons://HOST/PATH``.

Each message is sent by a process of its own (``python -m distdl_jupyter.tracking.messages``), which reads the address
from its standard input. The address is secret: only the name of its service is ever shown.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core.errors import DistDLError, InvalidSpec, MessageNotSent, PluginUnavailable
from distdl_jupyter.tracking import settings

if TYPE_CHECKING:
    from distdl_jupyter.core.alerts import Alert
    from distdl_jupyter.core.state import State
    from distdl_jupyter.core.store import JobFolder

#: Exit statuses.
_NOT_SENT, _INVALID, _NO_PACKAGE = 1, 2, 3
_TYPES = {"end": "success", "failure": "failure", "stall": "warning", "nan": "warning", "rule": "info"}


class Message(NamedTuple):
    """A title, a sentence, and the kind of the alert."""

    title: str
    text: str
    kind: str


#: The message that tests an address.
HELLO = Message("distdl-jupyter: connected", "Messages about your jobs will be sent here.", "end")


@dataclass(frozen=True, slots=True)
class Notifications:
    """The ``service`` of messages about jobs, "" for none, and the events that send one, separated by commas."""

    service: str
    notify: str

    def __str__(self) -> str:
        return f"{self.service or 'nowhere'}, for {self.notify}"


def notifications(address: str | None = None, notify: str | None = None, *, test: bool = False) -> Notifications:
    """Change the settings of messages about jobs, if any are given ("" resets one), and return them.

    With ``test``, a test message is sent now. Raises InvalidSpec, MessageNotSent, PluginUnavailable.
    """
    changes = {name: value for name, value in (("address", address), ("notify", notify)) if value is not None}
    current = configure(**changes) if changes else settings.read()
    if test:
        if not current.address:
            raise InvalidSpec(
                "No address is set, so no message can be sent.",
                code="message-address-missing",
                field="address",
                hint="Set one: distdl notify --set",
            )
        deliver(current.address, HELLO)
    return Notifications(_service(current.address), current.notify)


def configure(**changes: Any) -> settings.Settings:
    """Change settings of telemetry and messages and return them; an address is checked. Raises as ``deliver`` does."""
    if address := str(changes.get("address") or "").strip():
        deliver(address)
    return settings.change(settings.MONITORING, **changes)


def _service(address: str) -> str:
    scheme = address.partition("://")[0]
    return "webhook" if scheme in ("http", "https") else scheme


def notify(folder: JobFolder, name: str, state: State, alert: Alert, id_: str = "") -> None:
    """Send an alert of a job, or of the study ``id_``, if the user has set an address. Return at once."""
    try:
        current = settings.read()
    except DistDLError:  # reported when the job has ended
        return
    if current.address and alert.kind in current.notify.split(","):
        title = f"{name} ({(id_ or folder.id).rpartition('-')[2]}): {state.value}"
        request = (current.address, Message(title, alert.text, alert.kind))
        with contextlib.suppress(OSError), folder.supervisor_log.open("a", encoding="utf-8") as log:
            settings.start_process("messages", log=log.fileno(), input_=request, detached=bool(id_))


def deliver(address: str, message: Message | None = None) -> None:
    """Send a message, or only check the address without one. Raises InvalidSpec, MessageNotSent, PluginUnavailable."""
    # Apprise is never imported here: loggers of this process could write the address.
    command = [sys.executable, "-P", "-m", __name__]
    body = json.dumps((address, message))
    process = subprocess.run(command, check=False, input=body, capture_output=True, text=True)
    if process.returncode == _NO_PACKAGE:
        hint = "Run: pip install 'distdl-jupyter[messages]'"
        raise PluginUnavailable("Messages need the package apprise.", code="messages-package-missing", hint=hint)
    if process.returncode == _INVALID:
        raise InvalidSpec(
            "The address for messages is not valid.",
            code="message-address-invalid",
            field="address",
            hint="Examples: slack://TOKENS, ntfys://HOST/TOPIC, or jsons://HOST/PATH for a JSON webhook at "
            "https://HOST/PATH. All services are listed at https://appriseit.com/services",
        )
    if process.returncode:
        hint = "Check that the address is complete and valid, and that this machine can reach the service."
        reason = process.stdout.partition(" sent: ")[2].strip()
        raise MessageNotSent(f"The message could not be sent: {reason}", code="message-rejected", hint=hint)


def _send(address: str, message: Message | None) -> tuple[int, str]:
    """Return an exit status and a sentence without the address."""
    try:
        import apprise
    except ImportError:
        return _NO_PACKAGE, "Not sent, a package is missing. Run: pip install 'distdl-jupyter[messages]'"
    # Redirects are not followed: another server would get the message.
    retries: dict[str, Any] = {"default_service_retry": 2, "default_service_wait": 2.0}
    sender = apprise.Apprise(asset=apprise.AppriseAsset(app_id="distdl-jupyter", http_redirects=False, **retries))
    if not sender.add(address):
        return _INVALID, "Not sent, the address is not valid. Set it again with: distdl notify --set"
    if message is None:
        return 0, "The address is valid."
    service = _service(address)
    result = sender.notify(message.text, message.title, _TYPES[message.kind], body_format="text")
    if result:
        return 0, f"A message was sent to {service}."
    status = re.search(r"error=(\d{3})", " ".join(entry.message for entry in result.logs()))
    reason = f"responded with {status[1]}" if status else "cannot be reached or rejected it"
    return _NOT_SENT, f"The message could not be sent: {service} {reason}."


def main() -> None:
    """Send the message on standard input."""
    address, message = json.loads(sys.stdin.read())
    log = settings.private_log()
    try:
        status, text = _send(address, Message(*message) if message else None)
    except Exception as error:  # noqa: BLE001 - its text may hold the address
        status, text = _NOT_SENT, f"The message could not be sent: {type(error).__name__}."
    settings.finish(log, f"messages: {text}", status)


if __name__ == "__main__":
    main()
