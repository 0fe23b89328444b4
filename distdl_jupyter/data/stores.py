"""Object stores as obstore opens them: with which credentials they are read, and what their refusals mean.

Blob is read with signatures that are asked for. S3 and Google Cloud Storage are read with what this machine has:
variables of the environment, else no credentials at all (public data), else the role of the machine. A web server is
read as everybody reads it. obstore's own words for errors hold no signature, and only codes are taken from them.
"""

from __future__ import annotations

import configparser
import datetime as dt
import functools
import os
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from distdl_jupyter.node.data_cache import Failure

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

T = TypeVar("T")
#: Seconds that an answer with a signature may take: someone may have to sign in first.
_TIMEOUT = 600.0
#: Stores in a row that may refuse before nothing was read.
_ATTEMPTS = 3
#: What may stand in one; anything else would change the request that it becomes a part of.
_WRITTEN = re.compile(r"[A-Za-z0-9%&=+/:.,_~-]+")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
#: A part of obstore's text: the reason that is shown for it.
_REASONS = {
    "failed to lookup address": "its name cannot be resolved",
    "Connection refused": "Connection refused",
    "TimedOut": "no more data arrives",
    "without LOCATION": "the bucket is in another region: set AWS_REGION",
    "UnexpectedEof": "the connection was closed",
    "ConnectionReset": "the connection was closed",
    "169.254.169.254": "this machine has no role",
}
#: Statuses after which the same request may succeed.
_BUSY = {408, 429, 500, 502, 503, 504}
READER, WRITER = "Storage Blob Data Reader", "Storage Blob Data Contributor"
_FIREWALL = (
    "The storage account blocks requests from this network",
    "Allow this machine's network in the account's networking settings, or use a private endpoint.",
)
#: Azure's error code: (what is wrong, the remedy). ``{role}`` is the role that is needed.
AZURE_REFUSALS = {
    "AuthorizationPermissionMismatch": (
        "The signed-in account does not have permission",
        "Assign it the role {role} (and Storage Blob Delegator, to sign) on the account, and wait a few minutes.",
    ),
    "AuthorizationFailure": _FIREWALL,
    "AuthorizationSourceIPMismatch": _FIREWALL,
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
    "https": "Use a public file, or a file in a store: blob://, s3:// or gs://.",
}
#: HTTP status: (what is wrong, the remedy).
_REFUSALS = {
    404: (
        "{name!r} of {source} no longer exists ({code}).",
        "Check whether the file was deleted, then submit the job again.",
    ),
    409: (
        "{name!r} of {source} cannot be read now ({code}).",
        "If the blob is in the archive tier, rehydrate it first.",
    ),
    412: (
        "{name!r} of {source} changed or was deleted during the download.",
        "Submit the job again when no program writes there. Unchanged files are not downloaded again.",
    ),
}


class StoreError(Exception):
    """An error of obstore: the HTTP status (0 without a response) and the store's code, or the reason.

    ``untrusted`` is why the certificate is not trusted, "" when it is. No field holds a signature.
    """

    def __init__(self, status: int, code: str, untrusted: str = "") -> None:
        super().__init__(f"{status} {code}".removeprefix("0 ").strip())
        self.status, self.code, self.untrusted = status, code, untrusted


def _store_error(error: BaseException) -> StoreError:
    """Return what an error of obstore tells. Its text is never shown: it holds what the server answered."""
    text = str(error)
    if match := _CERTIFICATE.search(text):
        return StoreError(0, match[1], match[1])
    match = _STATUS.search(text)
    if status := 404 if isinstance(error, FileNotFoundError) else int(match[1]) if match else 0:
        return StoreError(status, code[1] if (code := _CODE.search(text)) else "")
    reasons = (reason for sign, reason in _REASONS.items() if sign in text)
    return StoreError(0, next(reasons, type(error).__name__))


def refusal(source: str, address: str, name: str, error: StoreError) -> Failure:
    """Return the failure to read an object."""
    host = address.split("/")[2] if address.startswith("https:") else address
    if error.untrusted:
        return Failure(
            f"The certificate of {host} is not trusted ({error.untrusted}).",
            "Set SSL_CERT_FILE to the certificate of your proxy or service.",
            source,
        )
    if not error.status or error.status in _BUSY:
        return Failure(
            f"The download of {name!r} from {host} is incomplete ({error}).",
            "Check the network of this node, then submit the job again. Complete files are not downloaded again.",
            source,
        )
    text, remedy = _REFUSALS.get(error.status, ("Cannot read {name!r} of {source} ({status} {code}).", ""))
    code = error.code or error.status
    return Failure(text.format(name=name, source=source, status=error.status, code=code), remedy, source)


def _errors() -> tuple[type[BaseException], ...]:
    """Return what obstore raises."""
    from obstore.exceptions import BaseError

    return (BaseError, FileNotFoundError, ValueError)


def version(meta: ObjectMeta) -> str:
    """Return what tells one version of an object from another: its ETag without quotes, else when it was changed.

    "" where the server tells neither.
    """
    if meta["e_tag"]:
        return meta["e_tag"].replace('"', "")
    changed = meta["last_modified"].timestamp()
    return f"time-{changed:.0f}" if changed else ""


def condition(kind: str, version_: str) -> dict[str, Any]:
    """Return the options of a request that reads this version only, where the store knows such a condition."""
    weak = version_.startswith(("W/", "time-"))  # RFC 9110, 13.1.1: If-Match compares strong ETags only
    return {} if kind == "https" and weak else {"if_match": f'"{version_}"'}


# opening --------------------------------------------------------------------------------------------


def certificates() -> str:
    """Return the certificates that the environment names, as PEM text; "" for none."""
    paths = {os.environ.get(name) for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")}
    files = [Path(path) for path in sorted(filter(None, paths)) if os.access(path, os.R_OK)]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def client(ca: str, *, http: bool = False) -> dict[str, Any]:
    """Return the options of connections: certificates to trust besides those of this machine, and timeouts.

    Raises Failure for invalid certificates.
    """
    if ca:
        try:
            ssl.create_default_context().load_verify_locations(cadata=ca)
        except ssl.SSLError as error:
            raise Failure(f"Cannot read the certificates of the staging order ({error.reason}).") from None
    trusted = f"{ca}\n{certificates()}"
    options: dict[str, Any] = {
        "timeout": "1h",
        "read_timeout": "30s",
        "connect_timeout": "10s",
        "allow_http": http,
        "user_agent": "distdl-jupyter",
    }
    return {**options, "root_certificate": trusted} if "BEGIN CERTIFICATE" in trusted else options


class Access:
    """The right to read one source. ``use`` calls with an open store, and with other credentials where it is refused.

    ``stores`` yields open stores; ``denied`` makes the failure when none of them helps.
    """

    def __init__(self, stores: Iterator[ObjectStore], denied: Callable[[StoreError], Failure], kind: str) -> None:
        self._stores = stores
        self._denied = denied
        self._is_bucket = kind in ("s3", "gs")
        self._lock = threading.Lock()
        self._store: ObjectStore | None = None
        self._last = StoreError(0, "")
        self._refused = 0
        self._worked = False
        #: Counts up with each store that was opened.
        self.number = 0

    def use(self, call: Callable[[ObjectStore], T]) -> T:
        """Return what a call on the store returns. Raises Failure, StoreError, and what the call raises."""
        while True:
            with self._lock:
                if self._store is None:
                    self._open()
                assert self._store is not None
                store, number = self._store, self.number
            try:
                result = call(store)
            except _errors() as caught:
                error = _store_error(caught)
                # The last attempt with a bucket, the role of the machine, may give no status.
                is_role = self._is_bucket and number > 1 and not self._worked
                if error.status not in (401, 403) and (error.status or not is_role):
                    raise error from None
                self.replace(number, error)
            else:
                self._refused, self._worked = 0, True
                return result

    def replace(self, number: int, error: StoreError) -> None:
        """Open another store in place of the one of that number, which was refused. Raises Failure without one."""
        with self._lock:
            if number == self.number:
                self._last = error if error.status or not self._last.status else self._last
                self._refused += 1
                if self._refused >= _ATTEMPTS:
                    raise self._denied(error)
                self._open()

    def _open(self) -> None:
        try:
            self._store = next(self._stores)
        except StopIteration:
            raise self._denied(self._last) from None
        except ImportError:
            raise Failure(
                "obstore is not installed in the Python that runs the ranks.",
                "Install it on the node: python -m pip install obstore",
            ) from None
        except _errors() as error:  # half of a pair of keys, for example
            raise self._denied(StoreError(0, f"its credentials cannot be used ({type(error).__name__})")) from None
        self.number += 1


def access(
    source: str,
    kind: str,
    address: str,
    *,
    ca: str = "",
    settings: Mapping[str, str] | None = None,
    ask: Callable[[float], dict[str, Any]] | None = None,
    retries: int = 12,
) -> Access:
    """Return the access to a source at ``address`` (see the package); ``ask`` requests a signature of Blob."""
    retry: Any = {
        "max_retries": retries,
        "retry_timeout": dt.timedelta(minutes=3),
        "backoff": {"init_backoff": dt.timedelta(seconds=0.2), "max_backoff": dt.timedelta(seconds=20), "base": 2},
    }

    def denied(error: StoreError) -> Failure:
        if kind == "blob":
            advice = AZURE_REFUSALS.get(error.code) or AZURE_REFUSALS["AuthorizationPermissionMismatch"]
            text = f"Azure Blob denied access to {source} ({error})."
            return Failure(text, advice[1].format(role=READER), source)
        text = f"No permission to read {address} ({error})." if error.status else f"Cannot read {address}: {error}."
        return Failure(text, _REMEDIES[kind], source)

    if kind == "blob":
        assert ask is not None
        return Access(_signed(source, address, ca, ask, retry), denied, kind)
    if kind == "https":
        return Access(_web(address, ca, retry), denied, kind)
    return Access(_bucket(kind, address.partition("://")[2], ca, settings or {}, retry), denied, kind)


def _signed(
    source: str, address: str, ca: str, ask: Callable[[float], dict[str, Any]], retry: Any
) -> Iterator[ObjectStore]:
    from obstore.store import AzureStore

    endpoint, _, container = address.rpartition("/")
    account = endpoint.rpartition("/")[2].partition(".")[0]
    while True:
        try:
            answer = ask(_TIMEOUT)
        except TimeoutError:
            raise Failure(
                f"The access token for {source} was not renewed within {_TIMEOUT / 60:.0f} minutes.",
                "Sign in to Azure again, and submit the job again.",
                source,
            ) from None
        if answer.get("refused"):
            raise Failure(str(answer["refused"]), str(answer.get("remedy") or ""), source)
        sas = str(answer.get("sas") or "").removeprefix("?")
        if not _WRITTEN.fullmatch(sas):
            raise Failure("The shared access signature is not valid.", source=source)
        yield AzureStore(
            container,
            account_name=account,
            endpoint=endpoint,
            retry_config=retry,
            # A provider, because AzureStore prefers an app in the environment to a signature. It is used until the
            # service refuses it: the clocks of two machines differ.
            credential_provider=cast("Any", functools.partial(dict, sas_token=sas, expires_at=None)),
            client_options=cast("Any", client(ca)),
        )


def _web(address: str, ca: str, retry: Any) -> Iterator[ObjectStore]:
    from obstore.store import HTTPStore

    yield HTTPStore(address, client_options=cast("Any", client(ca)), retry_config=retry)


def _bucket(kind: str, bucket: str, ca: str, settings: Mapping[str, str], retry: Any) -> Iterator[ObjectStore]:
    """Yield the bucket with what the environment gives, without credentials, and with the role of the machine."""
    from obstore.store import GCSStore, S3Store

    store: Any = S3Store if kind == "s3" else GCSStore
    options: dict[str, str] = {}
    if kind == "s3":
        options = _profile()
        has_credentials = bool(options) or any(map(os.environ.get, _AMAZON))
        options |= {name: settings[name] for name in ("region", "endpoint") if settings.get(name)}
    else:
        has_credentials = any(map(os.environ.get, _GOOGLE)) or _WELL_KNOWN.expanduser().is_file()
    connection = client(ca, http=options.get("endpoint", "").startswith("http://"))
    for anonymous in (False,) if has_credentials else (True, False):
        yield store(bucket, **options, skip_signature=anonymous, client_options=connection, retry_config=retry)


#: Variables that give credentials, as object_store reads them.
_AMAZON = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_GOOGLE = (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)
_WELL_KNOWN = Path("~/.config/gcloud/application_default_credentials.json")


def _profile() -> dict[str, str]:
    """Return the keys of the user's profile in the file that the AWS tools write, which obstore does not read."""
    if any(map(os.environ.get, _AMAZON)):
        return {}
    file = configparser.ConfigParser(interpolation=None)
    try:
        file.read(Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser())
        profile = file[os.environ.get("AWS_PROFILE") or "default"]
        keys = {"access_key_id": profile["aws_access_key_id"], "secret_access_key": profile["aws_secret_access_key"]}
    except (configparser.Error, KeyError, OSError):
        return {}
    return {**keys, **({"session_token": token} if (token := profile.get("aws_session_token")) else {})}
