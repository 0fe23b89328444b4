"""The sign-in by device code or browser that is stored for all processes of a user on a machine.

azure-identity keeps the tokens in its persistent cache: in the machine's keyring, and where there is none unencrypted
in ``~/.IdentityService/distdl_jupyter.nocae`` (mode 0600 in a folder of mode 0700), as the Azure command line keeps its
own. Whose tokens they are stands beside the settings in ``distdl_azure_account.json``: an ``AuthenticationRecord``
(names and ids, no token) with the settings of that sign-in. Tokens of an earlier account stay there until ``forget``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter import permissions
from distdl_jupyter.azure import settings as settled
from distdl_jupyter.core import atomic_write
from distdl_jupyter.core.errors import NotSignedIn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.azure.settings import AzureSettings

FILE = "distdl_azure_account.json"
#: The name of azure-identity's cache: ours alone, not that of other tools.
NAME = "distdl_jupyter"
_AGAIN = "Sign in to Azure again."
_ELSEWISE = "Correct that, or use the account of az login."


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """Who signed in, and with which settings. ``record`` is a serialized ``AuthenticationRecord``."""

    credential: str
    tenant_id: str
    client_id: str
    cloud: str
    record: str
    #: Something to know that hinders nothing.
    note: str = ""

    def is_of(self, settings: AzureSettings) -> bool:
        """Say whether it was made with these settings."""
        return all(getattr(self, name) == getattr(settings, name) for name in BOUND)

    @property
    def bound(self) -> dict[str, Any]:
        """The settings that it was made with."""
        return {name: getattr(self, name) for name in BOUND}


#: The settings that a sign-in belongs to: with others, it is another one.
BOUND = ("credential", "tenant_id", "client_id", "cloud")


def file() -> Path:
    """Return where it is written who is signed in."""
    return settled.file().with_name(FILE)


def read() -> SignIn | None:
    """Return the sign-in, None where nobody is signed in. Raises NotSignedIn for a file that cannot be trusted."""
    try:
        with file().open(encoding="utf-8") as source:
            seen = os.fstat(source.fileno())
            _check_own(file(), seen)
            if permissions.is_open(seen):
                raise NotSignedIn(
                    f"{file()} is writable by others.",
                    code="sign-in-file-writable",
                    hint="Run chmod go-w on it, then sign in again.",
                )
            return SignIn(**json.load(source))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise NotSignedIn(
            f"The stored sign-in in {file()} cannot be read ({type(error).__name__}).",
            code="sign-in-file-unreadable",
            hint=_AGAIN,
        ) from None


def write(settings: AzureSettings, record: Any, note: str) -> None:
    """Keep who signed in. Raises OSError."""
    bound = {name: getattr(settings, name) for name in BOUND}
    atomic_write.write(file(), dataclasses.asdict(SignIn(**bound, record=record.serialize(), note=note)))


def cache(*, allow_file: bool) -> Any:
    """Return azure-identity's options of the cache. ``allow_file``: a file will do where there is no keyring.

    Raises NotSignedIn where somebody else could read or change the file.
    """
    from azure.identity import TokenCachePersistenceOptions

    _secure()
    return TokenCachePersistenceOptions(name=NAME, allow_unencrypted_storage=allow_file)


def forget() -> None:
    """Drop who signed in and their tokens, for all processes.

    The cache is emptied and not deleted: a process that has it in memory reads it again when the file has changed.
    """
    file().unlink(missing_ok=True)
    path = _cache_file()
    if not path.exists():
        return
    import msal_extensions

    _secure()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(
            msal_extensions.LockError
        ):  # A sign-out waits some seconds for a writer, not for ever.
            stack.enter_context(msal_extensions.CrossPlatLock(_lock_file()))
        for persistence in _persistences(path):
            persistence.save("{}")


def wait() -> None:
    """Wait until no process writes the cache; some seconds at most."""
    import msal_extensions

    with contextlib.suppress(OSError, msal_extensions.LockError), msal_extensions.CrossPlatLock(_lock_file()):
        pass


def _lock_file() -> str:
    return f"{_cache_file()}.lockfile"


def _persistences(path: Path) -> Iterator[Any]:
    """Yield where azure-identity 1.27 keeps tokens (azure/identity/_persistent_cache.py): keyring and file."""
    import msal_extensions

    label = "Microsoft.Developer.IdentityService"
    with contextlib.suppress(Exception):  # A keyring that is not there keeps nothing.
        if sys.platform == "darwin":
            yield msal_extensions.KeychainPersistence(str(path), label, path.name)
        else:
            yield msal_extensions.LibsecretPersistence(str(path), path.name, {"MsalClientID": label}, label="MSALCache")
    yield msal_extensions.FilePersistence(str(path))


def _cache_file() -> Path:
    """Return the file of tokens; with a keyring it is empty and tells by its time that they have changed."""
    return Path.home() / ".IdentityService" / f"{NAME}.nocae"


def _secure() -> None:
    """Let nobody else read what is kept, whatever the umask was. Raises NotSignedIn when it is another user's."""
    path = _cache_file()
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        for one, mode in ((path.parent, 0o700), (path, 0o600)):
            if one.exists():
                _check_own(one, one.stat())
                one.chmod(mode)
    except OSError as error:
        raise NotSignedIn(
            f"The sign-in cannot be stored in {path.parent} ({error.strerror or error}).",
            code="sign-in-not-kept",
            hint=_ELSEWISE,
        ) from None


def _check_own(path: Path, seen: os.stat_result) -> None:
    if seen.st_uid != os.geteuid():
        raise NotSignedIn(
            f"{path} belongs to another user (uid {seen.st_uid}).",
            code="sign-in-file-of-another-user",
            hint=_ELSEWISE,
        )
