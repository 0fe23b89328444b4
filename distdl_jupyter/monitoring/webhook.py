"""Messages about a job to a webhook: Slack, Teams, ntfy, or any address that takes JSON.

It runs as a process of its own (``start.notify``), so that a slow endpoint delays no job: it reads the message from its
standard input and the address from the user's settings, tries three times and ends. The address is a secret: of it only
the host is ever said.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from distdl_jupyter.core.errors import DistDLError, InvalidSpec, MessageNotSent
from distdl_jupyter.monitoring import settings

#: Seconds that an endpoint has to answer, and before each try.
_TIMEOUT, _WAITS = 10.0, (0.0, 2.0, 6.0)
#: What begins the address of an ntfy server that is not ntfy.sh.
_NTFY = "ntfy+"
#: Hosts of Teams' workflows and of its older connectors.
_TEAMS = (".webhook.office.com", ".logic.azure.com", ".powerplatform.com")
#: ntfy's priorities (docs.ntfy.sh/publish) and tags.
_PRIORITIES = {"failure": ("high", "x"), "stall": ("high", "hourglass"), "nan": ("high", "warning")}


class Message(NamedTuple):
    """What is sent: the job's id and name, its state, the kind of the alert, and a sentence."""

    job: str
    name: str
    state: str
    kind: str
    text: str

    @property
    def title(self) -> str:
        """Name and state."""
        return f"{self.name} ({self.job.rpartition('-')[2]}): {self.state}"


#: The message that a new webhook gets.
HELLO = Message("hello", "distdl-jupyter", "connected", "end", "Messages about your jobs will be sent here.")


def deliver(address: str, message: Message) -> str:
    """Send a message, with some tries, and return the host. Raises MessageNotSent."""
    host, why = check_address(address), ""
    for wait in _WAITS:
        time.sleep(wait)
        try:
            with _OPENER.open(_request(address, message), timeout=_TIMEOUT):
                return host
        except urllib.error.HTTPError as error:
            why = f"{host} answered {error.code}"
            if error.code < 500 and error.code != 429:
                break
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = f"{host} is unreachable ({type(getattr(error, 'reason', error)).__name__})"
    hint = "Check that the address is complete and valid, and that this machine reaches the host."
    raise MessageNotSent(f"The message could not be sent: {why}.", code="webhook-unreachable", hint=hint)


def check_address(address: str) -> str:
    """Return the host of a webhook's address. Raises InvalidSpec, which does not repeat the address."""
    with contextlib.suppress(ValueError):  # which may quote the address
        split = urlsplit(address.removeprefix(_NTFY))
        is_sound = address.isprintable() and " " not in address and split.port != 0
        if is_sound and split.scheme in ("https", "http") and split.hostname:
            return split.hostname
    hint = "Copy it from Slack, Teams or ntfy. For your own ntfy server, use ntfy+https://HOST/TOPIC."
    raise InvalidSpec("webhook must be an https address.", code="webhook-invalid", field="webhook", hint=hint)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A webhook that leads elsewhere would get the message, and whoever stands there the address."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _request(address: str, message: Message) -> urllib.request.Request:
    place = address.removeprefix(_NTFY)
    host = urlsplit(place).hostname or ""
    if address.startswith(_NTFY) or host == "ntfy.sh":
        priority, tag = _PRIORITIES.get(message.kind, ("default", "white_check_mark"))
        headers = {"Title": message.title.encode("ascii", "replace").decode(), "Priority": priority, "Tags": tag}
        return urllib.request.Request(place, message.text.encode(), headers, method="POST")  # noqa: S310 - checked
    if host.endswith("slack.com"):
        body: dict[str, Any] = {"text": f"*{_plain(message.title)}*\n{_plain(message.text)}"}
    elif host.endswith(_TEAMS):
        body = _card(message)
    else:
        body = {**message._asdict(), "title": message.title}
    headers = {"Content-Type": "application/json"}
    return urllib.request.Request(place, json.dumps(body).encode(), headers, method="POST")  # noqa: S310 - checked


def _plain(text: str) -> str:
    """Return a text in which Slack finds no markup (docs.slack.dev, formatting message text)."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _card(message: Message) -> dict[str, Any]:
    """Return an adaptive card, which Teams' workflows take."""
    lines = [{"type": "TextBlock", "text": message.title, "weight": "bolder", "wrap": True},
             {"type": "TextBlock", "text": message.text, "wrap": True}]  # fmt: skip
    card = {"type": "AdaptiveCard", "version": "1.4", "body": lines}
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}


@dataclass(frozen=True, slots=True)
class Notifications:
    """Where messages about jobs go: the ``host`` of the webhook, "" for nowhere; and what for, separated by commas."""

    host: str
    notify: str

    def __str__(self) -> str:
        return f"{self.host or 'nowhere'}, for {self.notify}"


def notifications(webhook: str | None = None, notify: str | None = None, *, test: bool = False) -> Notifications:
    """Change the settings of notifications about jobs, if any are given ("" resets one), and return them.

    With ``test``, a test message is sent now. Raises InvalidSpec, MessageNotSent.
    """
    given = {name: value for name, value in (("webhook", webhook), ("notify", notify)) if value is not None}
    known = settings.change(settings.MONITORING, **given) if given else settings.read()
    host = check_address(known.webhook) if known.webhook else ""
    if test:
        if not host:
            raise InvalidSpec(
                "No webhook is set, so no message can be sent.",
                code="webhook-missing",
                field="webhook",
                hint="Set one: distdl notify --set, or notifications(webhook=ADDRESS).",
            )
        deliver(known.webhook, HELLO)
    return Notifications(host, known.notify)


def main() -> None:
    """Send the message on standard input."""
    message = Message(**json.loads(sys.stdin.read()))
    try:
        said = f"A message was sent to {deliver(settings.read().webhook, message)}."
    except DistDLError as error:
        said = error.message
    print(f"webhook: {message.kind}: {said}", flush=True)  # noqa: T201 - into the job's supervisor.log


if __name__ == "__main__":
    main()
