"""A sign-in that was kept on disk, because the user chose ``token_cache``: which one it was, and how to forget it.

azure-identity keeps the tokens (``token_cache=keyring`` in the machine's keyring, ``token_cache=plain`` in
``~/.IdentityService``); this file keeps beside the settings who it was (an ``AuthenticationRecord``: names and ids).
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import settings as settled

if TYPE_CHECKING:
    from distdl_jupyter.azure.settings import AzureSettings

FILE = "distdl_azure_account.json"
#: The name that azure-identity's cache is kept under: ours alone, not that of other tools.
NAME = "distdl_jupyter"
_SUFFIXES = (".nocae", ".cae")


def record_file() -> Path:
    """Return where it is written who was signed in."""
    return settled.file().with_name(FILE)


def options(settings: AzureSettings) -> dict[str, Any]:
    """Return what a credential is told about its cache: {} keeps tokens in memory."""
    if not settings.token_cache:
        return {}
    from azure.identity import TokenCachePersistenceOptions

    _narrow()
    plain = settings.token_cache == "plain"  # noqa: S105 - where tokens go
    return {"cache_persistence_options": TokenCachePersistenceOptions(name=NAME, allow_unencrypted_storage=plain)}


def write(record: Any) -> None:
    """Keep who was signed in, for their own eyes."""
    path = record_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(record.serialize())
    _narrow()


def read() -> Any | None:
    """Return who was signed in, None when nobody was kept."""
    from azure.identity import AuthenticationRecord

    try:
        return AuthenticationRecord.deserialize(record_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def there() -> bool:
    """Say whether a sign-in was kept."""
    return record_file().exists()


def forget() -> None:
    """Drop the tokens that were kept, and who it was."""
    if not there():
        return
    for suffix in _SUFFIXES:
        with contextlib.suppress(Exception):  # A keyring that is not there keeps nothing.
            _keyring(NAME + suffix).save("{}")
        _file(suffix).unlink(missing_ok=True)
    record_file().unlink(missing_ok=True)


def _file(suffix: str) -> Path:
    return Path.home() / ".IdentityService" / (NAME + suffix)


def _keyring(name: str) -> Any:
    """Return the keyring's entry as azure-identity 1.27 names it (azure/identity/_persistent_cache.py)."""
    import msal_extensions

    path, label = str(Path.home() / ".IdentityService" / name), "Microsoft.Developer.IdentityService"
    if sys.platform == "darwin":
        return msal_extensions.KeychainPersistence(path, label, name)
    return msal_extensions.LibsecretPersistence(path, name, {"MsalClientID": label}, label="MSALCache")


def _narrow() -> None:
    """Let nobody else read what is kept, whatever the umask was."""
    folder = _file("").parent
    folder.mkdir(mode=0o700, exist_ok=True)
    for suffix in _SUFFIXES:
        path = _file(suffix)
        if path.exists():
            path.chmod(0o600)
