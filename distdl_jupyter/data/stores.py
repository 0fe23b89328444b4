"""Opens object stores with obstore, selects credentials and translates errors.

Azure Blob Storage is read with SAS tokens from the supervisor. S3 and Google Cloud Storage are read with the user's
credentials in environment variables or files; without credentials, first anonymously (public data), then with the role
of the machine. Web servers are read anonymously. Only codes of obstore's errors are shown, because their texts may
contain the server's response.
"""

from __future__ import annotations

import configparser
import datetime as dt
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from distdl_jupyter.node.data_cache import StagingFailed

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

T = TypeVar("T")
#: The maximum number of credentials to try for one request.
_MAX_ATTEMPTS = 3
_STATUS_PATTERN = re.compile(r"status code: (\d{3})")
_CODE_PATTERN = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_CERTIFICATE_PATTERN = re.compile(r"InvalidCertificate\(\s*(\w+)")
#: Substring of an obstore error: reason to show.
_REASONS = {
    "failed to lookup address": "its name cannot be resolved",
    "Connection refused": "Connection refused",
    "TimedOut": "the connection timed out",
    "without LOCATION": "the bucket is in another region: set AWS_REGION",
    "UnexpectedEof": "the connection was closed",
    "ConnectionReset": "the connection was closed",
    "169.254.169.254": "this machine has no role",
}
#: HTTP statuses that may be temporary.
_TEMPORARY_STATUSES = {408, 429, 500, 502, 503, 504}
#: Azure roles for reading data and for uploading outputs.
READER_ROLE, WRITER_ROLE = "Storage Blob Data Reader", "Storage Blob Data Contributor"
_FIREWALL_ERROR = (
    "The storage account blocks requests from this network",
    "Allow this machine's network in the account's networking settings, or use a private endpoint.",
)
#: Azure error code: (problem, remedy). ``{role}`` is the required role.
AZURE_ERRORS = {
    "AuthorizationPermissionMismatch": (
        "The signed-in account does not have permission",
        "Assign it the role {role} (and Storage Blob Delegator, to sign) on the account, and wait a few minutes.",
    ),
    "AuthorizationFailure": _FIREWALL_ERROR,
    "AuthorizationSourceIPMismatch": _FIREWALL_ERROR,
    "AuthenticationFailed": (
        "Azure rejected the sign-in for this storage account",
        "Sign in to Azure again, and check the clock of this machine.",
    ),
    "ContainerNotFound": ("The container does not exist", "Check the names of the container and the storage account."),
}
_REMEDIES = {
    "s3": "Set credentials with permission to list and read: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "a profile in ~/.aws/credentials, or a role.",
    "gs": "Set credentials with permission to list and read: GOOGLE_APPLICATION_CREDENTIALS with the path of "
    "a key, or a service account.",
    "https": "Use a public file, or a file in an object store: blob://, s3:// or gs://.",
}
#: HTTP status: (problem, remedy).
_STATUS_ERRORS = {
    404: ("no longer exists", "Check whether the file was deleted, then submit the job again."),
    409: ("cannot be read now", "If the blob is in the archive tier, rehydrate it first."),
    412: (
        "changed or was deleted during the download",
        "Submit the job again when no program writes there. Unchanged files are not downloaded again.",
    ),
}


class StoreError(Exception):
    """An obstore error: the HTTP status and the store's error code, or 0 and the reason if no response arrived."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}".removeprefix("0 ").strip())
        self.status, self.code = status, code


def _to_store_error(error: BaseException) -> StoreError:
    text = str(error)
    if match := _CERTIFICATE_PATTERN.search(text):
        return StoreError(0, f"its certificate is not trusted: {match[1]}")
    match = _STATUS_PATTERN.search(text)
    if status := 404 if isinstance(error, FileNotFoundError) else int(match[1]) if match else 0:
        return StoreError(status, code[1] if (code := _CODE_PATTERN.search(text)) else "")
    reasons = (reason for substring, reason in _REASONS.items() if substring in text)
    return StoreError(0, next(reasons, type(error).__name__))


def make_read_error(source: str, address: str, name: str, error: StoreError) -> StagingFailed:
    """Return the error for an object that cannot be read."""
    if error.status and error.status not in _TEMPORARY_STATUSES:
        problem, remedy = _STATUS_ERRORS.get(error.status, ("cannot be read", ""))
        return StagingFailed(f"{name!r} of {source} {problem} ({error}).", remedy, source)
    host = address.split("/")[2] if address.startswith("https:") else address
    return StagingFailed(
        f"The download of {name!r} from {host} is incomplete ({error}).",
        "Check the network of this node, and that SSL_CERT_FILE contains the certificate of your proxy or service. "
        "Then submit the job again. Complete files are not downloaded again.",
        source,
    )


def _get_error_types() -> tuple[type[BaseException], ...]:
    """Return the exception types that obstore raises."""
    from obstore.exceptions import BaseError

    return (BaseError, FileNotFoundError, ValueError)


def get_version(meta: ObjectMeta) -> str:
    """Return the version of an object: its ETag without quotes, its modification time, or "" if both are missing."""
    if meta["e_tag"]:
        return meta["e_tag"].replace('"', "")
    modified_at = meta["last_modified"].timestamp()
    return f"time-{modified_at:.0f}" if modified_at else ""


def build_condition(scheme: str, version: str) -> dict[str, Any]:
    """Return the options of a request that reads only this version, or {} if the store cannot check it."""
    is_weak = version.startswith(("W/", "time-"))  # RFC 9110, 13.1.1: If-Match compares strong ETags only
    return {} if scheme == "https" and is_weak else {"if_match": f'"{version}"'}


def read_certificates() -> str:
    """Return the CA certificates that environment variables name, as PEM text, or "" if there are none."""
    paths = {os.environ.get(name) for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")}
    files = [Path(path) for path in sorted(filter(None, paths)) if os.access(path, os.R_OK)]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


# opening stores -------------------------------------------------------------------------------------


class Reader:
    """Reads one source at ``address`` (see ``stager``).

    ``sign`` returns a new SAS token for Azure Blob Storage; ``ca`` contains additional CA certificates (PEM).
    """

    def __init__(
        self,
        source: str,
        scheme: str,
        address: str,
        *,
        ca: str = "",
        settings: Mapping[str, str] | None = None,
        sign: Callable[[], str] = str,
        retries: int = 12,
    ) -> None:
        self._source = source
        self._scheme = scheme
        self._address = address
        self._stores = _iter_stores(scheme, address, f"{ca}\n{read_certificates()}", settings or {}, sign, retries)
        self._lock = threading.Lock()
        self._store: ObjectStore | None = None

    def use(self, operation: Callable[[ObjectStore], T]) -> T:
        """Return ``operation(store)`` with an open store; if access is denied, try other credentials.

        Thread-safe. Raises StagingFailed, StoreError, and any exception of ``operation``.
        """
        store: ObjectStore | None = None
        denial = StoreError(0, "")
        for _ in range(_MAX_ATTEMPTS):
            with self._lock:
                if self._store is store:  # else another thread has already opened the next store
                    self._store = self._open(denial)
                store = self._store
            assert store is not None
            try:
                return operation(store)
            except _get_error_types() as caught:
                error = _to_store_error(caught)
                if error.status in (401, 403):
                    denial = error
                elif error.status or not denial.status:  # without a machine role, the error has no status
                    raise error from None
        raise self._to_denial(denial)

    def _open(self, denial: StoreError) -> ObjectStore:
        try:
            return next(self._stores)
        except StopIteration:
            raise self._to_denial(denial) from None
        except ImportError:
            raise StagingFailed(
                "obstore is not installed in the Python that runs the ranks.",
                "Install it on the node: python -m pip install obstore",
            ) from None
        except _get_error_types() as error:  # for example, if one of two keys is missing
            raise self._to_denial(StoreError(0, f"its credentials cannot be used ({type(error).__name__})")) from None

    def _to_denial(self, error: StoreError) -> StagingFailed:
        if self._scheme == "blob":
            problem = AZURE_ERRORS.get(error.code) or AZURE_ERRORS["AuthorizationPermissionMismatch"]
            text = f"Azure Blob denied access to {self._source} ({error})."
            return StagingFailed(text, problem[1].format(role=READER_ROLE), self._source)
        text = f"No permission to read {self._address}" if error.status else f"Cannot read {self._address}"
        return StagingFailed(f"{text} ({error}).", _REMEDIES[self._scheme], self._source)


def _iter_stores(
    scheme: str, address: str, certificates: str, settings: Mapping[str, str], sign: Callable[[], str], retries: int
) -> Iterator[ObjectStore]:
    """Yield the stores to try for a source, each with different credentials."""
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    client_options: dict[str, Any] = {
        "timeout": "1h",
        "read_timeout": "30s",
        "connect_timeout": "10s",
        "user_agent": "distdl-jupyter",
        "allow_http": settings.get("endpoint", "").startswith("http://"),
    }
    if "BEGIN CERTIFICATE" in certificates:
        client_options["root_certificate"] = certificates
    backoff = {"init_backoff": dt.timedelta(seconds=0.2), "max_backoff": dt.timedelta(seconds=20), "base": 2}
    retry_config = {"max_retries": retries, "retry_timeout": dt.timedelta(minutes=3), "backoff": backoff}
    options: Any = {"client_options": client_options, "retry_config": retry_config}
    endpoint, _, container = address.rpartition("/")
    if scheme == "https":
        yield HTTPStore(address, **options)
    elif scheme == "gs":
        has_credentials = any(map(os.environ.get, _GOOGLE_VARIABLES)) or _GOOGLE_KEY_FILE.expanduser().is_file()
        for is_anonymous in (False,) if has_credentials else (True, False):
            yield GCSStore(container, skip_signature=is_anonymous, **options)
    elif scheme == "s3":
        keys = _read_aws_profile()
        has_credentials = bool(keys) or any(map(os.environ.get, _AWS_VARIABLES))
        options |= {**keys, **{name: value for name, value in settings.items() if value}}
        for is_anonymous in (False,) if has_credentials else (True, False):
            yield S3Store(container, skip_signature=is_anonymous, **options)
    while scheme == "blob":
        # Use a credential provider, because AzureStore prefers a service principal in the environment to a SAS token.
        # Use each token until the service rejects it, because clocks may differ.
        provider: Any = functools.partial(dict, sas_token=sign(), expires_at=None)
        account = endpoint.rpartition("/")[2].partition(".")[0]
        yield AzureStore(container, account_name=account, endpoint=endpoint, credential_provider=provider, **options)


#: Credential variables that object_store reads.
_AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_GOOGLE_VARIABLES = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)
_GOOGLE_KEY_FILE = Path("~/.config/gcloud/application_default_credentials.json")


def _read_aws_profile() -> dict[str, str]:
    """Return the keys of the profile in the AWS credentials file, which obstore does not read."""
    if any(map(os.environ.get, _AWS_VARIABLES)):
        return {}
    file = configparser.ConfigParser(interpolation=None)
    try:
        file.read(Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser())
        profile = file[os.environ.get("AWS_PROFILE") or "default"]
        keys = {"access_key_id": profile["aws_access_key_id"], "secret_access_key": profile["aws_secret_access_key"]}
    except (configparser.Error, KeyError, OSError):
        return {}
    return {**keys, **({"session_token": token} if (token := profile.get("aws_session_token")) else {})}
