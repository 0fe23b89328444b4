"""What a keeper holds: at most one sign-in that waits, and at most one credential that answers. Knows no socket."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import account as accounts
from distdl_jupyter.azure import credentials, problems, remembered
from distdl_jupyter.azure.credentials import Lasting
from distdl_jupyter.azure.status import Problem, Prompt, Status
from distdl_jupyter.core.errors import DistDLError, NotSignedIn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.azure.account import Account
    from distdl_jupyter.azure.settings import AzureSettings

#: Seconds that a request to sign in waits for the code.
PROMPT_SECONDS = 60.0
NO_KEYRING = (
    "This machine has no keyring, so the sign-in is kept in memory only. "
    "token_cache=plain keeps it in a file that only you may read."
)


@dataclass(eq=False)
class Attempt:
    """A sign-in that somebody began. ``shown`` is set when there is something to show: a code, or its end."""

    kind: str
    settings: AzureSettings
    stopped: threading.Event = field(default_factory=threading.Event)
    shown: threading.Event = field(default_factory=threading.Event)
    prompt: Prompt | None = None
    problem: Problem | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class SignedIn:
    """A sign-in that succeeded."""

    kind: str
    settings: AzureSettings
    credential: Lasting
    account: Account
    note: str = ""


class Holder:
    """Signs in, gives tokens, forgets. All methods may be called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempt: Attempt | None = None
        self._signed_in: SignedIn | None = None
        self._expired: Problem | None = None

    @property
    def is_signed_in(self) -> bool:
        """Whether a credential is held."""
        return self._signed_in is not None

    @property
    def is_waiting(self) -> bool:
        """Whether somebody is asked to sign in."""
        attempt = self._attempt
        return attempt is not None and attempt.problem is None

    def status(self) -> Status:
        """Return where the sign-in stands."""
        with self._lock:
            attempt, held = self._attempt, self._signed_in
        if attempt and attempt.problem is None:
            return Status(state="waiting", kind=attempt.kind, prompt=attempt.prompt,
                          account=held.account if held else None)  # fmt: skip
        if held:
            return Status(state="signed_in", kind=held.kind, account=held.account, note=held.note,
                          problem=attempt.problem if attempt else None)  # fmt: skip
        problem = attempt.problem if attempt else self._expired
        if problem:
            return Status(state="failed", kind=attempt.kind if attempt else "", problem=problem)
        return Status(state="signed_out")

    def settings(self) -> dict[str, Any]:
        """Return the settings of the sign-in that is held, {} when there is none."""
        held = self._signed_in
        return dataclasses.asdict(held.settings) if held else {}

    def sign_in(self, kind: str, settings: AzureSettings) -> Status:
        """Begin to ask somebody; return when there is a code, or an end. An attempt before it is dropped."""
        attempt = Attempt(kind, settings)
        with self._lock:
            if self._attempt:
                self._attempt.stopped.set()
            self._attempt, self._expired = attempt, None
        threading.Thread(target=self._ask, args=(attempt,), name="sign-in", daemon=True).start()
        if kind == "device_code":
            attempt.shown.wait(PROMPT_SECONDS)
        return self.status()

    def resume(self, kind: str, settings: AzureSettings) -> Status:
        """Sign in by what was kept on disk, asking nobody."""
        record = remembered.read()
        if record and not self.is_signed_in:
            try:
                credential = credentials.attended(
                    kind, settings, _nobody, record=record, **remembered.options(settings)
                )
                self._hold(Attempt(kind, settings), credential)
            except DistDLError as error:
                self._expired = _problem(error)
        return self.status()

    def cancel(self) -> Status:
        """Drop the attempt; a code that is entered later is good for nothing."""
        with self._lock:
            if self._attempt:
                self._attempt.stopped.set()
            self._attempt = None
        return self.status()

    def sign_out(self) -> Status:
        """Forget everything, on disk too."""
        with self._lock:
            if self._attempt:
                self._attempt.stopped.set()
            held, self._signed_in, self._attempt, self._expired = self._signed_in, None, None, None
        if held:
            held.credential.close()
        remembered.forget()
        return self.status()

    def token(self, scopes: list[str], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``{"token", "expires_on"}``. Raises NotSignedIn; a sign-in that has expired is dropped."""
        held = self._signed_in
        if held is None:
            raise NotSignedIn("Nobody is signed in to Azure.", hint="Sign in to Azure again.")
        try:
            info = held.credential.get_token_info(*scopes, options=dict(options))  # type: ignore[arg-type]
        except NotSignedIn as error:
            if error.message.startswith(problems.EXPIRED):
                self._drop(held, error)
            raise
        return {"token": info.token, "expires_on": info.expires_on}

    def _drop(self, held: SignedIn, error: NotSignedIn) -> None:
        with self._lock:
            if self._signed_in is held:
                self._signed_in, self._expired = None, _problem(error)

    def _ask(self, attempt: Attempt) -> None:
        """Sign in, in a thread of its own: it lasts until somebody entered the code."""
        try:
            self._hold(attempt, *self._authenticated(attempt))
        except DistDLError as error:
            attempt.problem = _problem(error)
        except Exception as error:  # noqa: BLE001 - whoever waits has to hear of the end
            attempt.problem = _problem(problems.problem(error))
        finally:
            attempt.shown.set()

    def _authenticated(self, attempt: Attempt) -> tuple[Any, Any]:
        from azure.core.exceptions import AzureError

        def shown(address: str, code: str, until: float) -> None:
            attempt.prompt = Prompt(user_code=code, address=address, until=until)
            attempt.shown.set()

        settings = attempt.settings
        cache = remembered.options(settings)
        try:
            credential = credentials.attended(attempt.kind, settings, shown, stopped=attempt.stopped, **cache)
            return credential, credential.authenticate(scopes=[_scope(settings)])
        except (AzureError, ValueError) as error:
            if cache and problems.no_keyring(error):
                attempt.note, attempt.settings = NO_KEYRING, dataclasses.replace(settings, token_cache="")
                return self._authenticated(attempt)
            raise problems.problem(error) from None

    def _hold(self, attempt: Attempt, credential: Any, record: Any | None = None) -> None:
        lasting = Lasting(credential)
        token = lasting.get_token(_scope(attempt.settings)).token
        account = accounts.of_token(token, attempt.kind)
        with self._lock:
            if attempt.stopped.is_set():
                return
            self._signed_in = SignedIn(attempt.kind, attempt.settings, lasting, account, attempt.note)
            self._attempt = None
        if record is not None and attempt.settings.token_cache:
            remembered.write(record)


def _scope(settings: AzureSettings) -> str:
    cloud = settings.endpoints
    return cloud.scope(cloud.resource_manager)


def _problem(error: DistDLError) -> Problem:
    return Problem(message=error.message, hint=error.hint)


def _nobody(address: str, code: str, until: float) -> None:
    """Show nothing: it is not asked."""
