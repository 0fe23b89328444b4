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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

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
#: Statuses after which the same request may succeed.
_BUSY = {408, 429, 500, 502, 503, 504}
_RIGHTS = ("Assign the signed-in account the role Storage Blob Data Reader and, for signatures, "
           "Storage Blob Delegator.")  # fmt: skip
_REMEDIES = {
    "AuthorizationPermissionMismatch": _RIGHTS,
    "AuthorizationFailure": "Allow this machine in the firewall of the storage account, or use a private endpoint.",
    "AuthorizationSourceIPMismatch": "Allow this machine in the firewall of the storage account.",
    "AuthenticationFailed": "Check the clock of this machine, and sign in to Azure again.",
    "s3": "Set credentials with permission to list and read: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
          "a profile in ~/.aws/credentials, or a role.",
    "gs": "Set credentials with permission to list and read: GOOGLE_APPLICATION_CREDENTIALS with the path of "
          "a key, or a service account.",
    "https": "Use a public file, or a file in a store: blob://, s3:// or gs://.",
}  # fmt: skip
#: HTTP status: (what is wrong, the remedy).
_REFUSALS = {
    404: ("{name!r} of {source} no longer exists ({code}).",
          "Check whether the file was deleted, then submit the job again."),
    409: ("{name!r} of {source} cannot be read now ({code}).",
          "If the blob is in the archive tier, rehydrate it first."),
    412: ("{name!r} of {source} changed or was deleted during the download.",
          "Submit the job again when no program writes there. Unchanged files are not downloaded again."),
}  # fmt: skip


class Answer(NamedTuple):
    """An error of obstore: the HTTP status (0 without an answer), the store's code or the reason, and its certificate.

    ``untrusted`` is why the certificate is not trusted, "" when it is.
    """

    status: int
    code: str
    untrusted: str = ""


class StoreError(Exception):
    """A store did not give what was asked for; ``answer`` tells why, and no signature."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status} {answer.code}")
        self.answer = answer


def answer_of(error: BaseException) -> Answer:
    """Return what an error of obstore tells. Its text is never shown: it holds what the server answered."""
    text = str(error)
    if match := _CERTIFICATE.search(text):
        return Answer(0, match[1], match[1])
    match = _STATUS.search(text)
    if status := 404 if isinstance(error, FileNotFoundError) else int(match[1]) if match else 0:
        return Answer(status, code[1] if (code := _CODE.search(text)) else "")
    for sign, reason in (
        ("failed to lookup address", "its name cannot be resolved"),
        ("Connection refused", "Connection refused"),
        ("TimedOut", "no more data arrives"),
        ("without LOCATION", "the bucket is in another region: set AWS_REGION"),
        ("UnexpectedEof", "the connection was closed"),
        ("ConnectionReset", "the connection was closed"),
        ("169.254.169.254", "this machine has no role"),
    ):
        if sign in text:
            return Answer(0, reason)
    return Answer(0, type(error).__name__)


def refusal(source: str, address: str, name: str, answer: Answer) -> Failure:
    """Return the failure to read an object."""
    host = address.split("/")[2] if address.startswith("https:") else address
    if answer.untrusted:
        return Failure(f"The certificate of {host} is not trusted ({answer.untrusted}).",
                       "Set SSL_CERT_FILE to the certificate of your proxy or service.", source)  # fmt: skip
    if not answer.status or answer.status in _BUSY:
        why = f"{answer.status} {answer.code}" if answer.status else answer.code
        return Failure(f"The download of {name!r} from {host} is incomplete ({why}).",
                       "Check the network of this node, then submit the job again. Complete files are not downloaded "
                       "again.", source)  # fmt: skip
    text, remedy = _REFUSALS.get(answer.status, ("Cannot read {name!r} of {source} ({status} {code}).", ""))
    code = answer.code or answer.status
    return Failure(text.format(name=name, source=source, status=answer.status, code=code), remedy, source)


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


def client(ca: str, *, http: bool = False) -> dict[str, Any]:
    """Return how connections are made: whom to trust, besides this machine's certificates, and how long to wait.

    Raises Failure for certificates that are none.
    """
    found = ca
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        if (file := Path(os.environ.get(name) or "/nowhere")).is_file():
            found += "\n" + file.read_text(encoding="utf-8", errors="replace")
    if ca:
        try:
            ssl.create_default_context().load_verify_locations(cadata=ca)
        except ssl.SSLError as error:
            raise Failure(f"Cannot read the certificates of the staging order ({error.reason}).") from None
    made: dict[str, Any] = {"timeout": "1h", "read_timeout": "30s", "connect_timeout": "10s", "allow_http": http,
                            "user_agent": "distdl-jupyter"}  # fmt: skip
    return {**made, "root_certificate": found} if "BEGIN CERTIFICATE" in found else made


#: The answer that means another version than the one that was listed.
CHANGED = Answer(412, "")


class Access:
    """The right to read one source. ``use`` calls with an open store, and with other credentials where it is refused.

    ``stores`` yields open stores; ``denied`` makes the failure when none of them helps.
    """

    def __init__(self, stores: Iterator[ObjectStore], denied: Callable[[Answer], Failure], kind: str) -> None:
        self._stores = stores
        self._denied = denied
        self._is_bucket = kind in ("s3", "gs")
        self._lock = threading.Lock()
        self._store: ObjectStore | None = None
        self._last = Answer(0, "")
        self._refused = 0
        self._worked = False
        #: Counts up with each store that was opened.
        self.number = 0

    def use(self, call: Callable[[ObjectStore], T]) -> T:
        """Return what a call on the store returns. Raises Failure, StoreError, and what the call raises."""
        while True:
            store, number = self._current()
            try:
                result = call(store)
            except _errors() as error:
                answer = answer_of(error)
                if not self._is_denied(number, answer):
                    raise StoreError(answer) from None
                self.replace(number, answer)
            else:
                self._refused, self._worked = 0, True
                return result

    def _current(self) -> tuple[ObjectStore, int]:
        with self._lock:
            if self._store is None:
                self._open()
            assert self._store is not None
            return self._store, self.number

    def replace(self, number: int, answer: Answer) -> None:
        """Open another store in place of the one of that number, which was refused. Raises Failure without one."""
        with self._lock:
            if number == self.number:
                self._last = answer if answer.status or not self._last.status else self._last
                self._refused += 1
                if self._refused >= _ATTEMPTS:
                    raise self._denied(answer)
                self._open()

    def _is_denied(self, number: int, answer: Answer) -> bool:
        """Whether an answer is about credentials. The last try, a machine's role, may give no status."""
        is_role = self._is_bucket and number > 1 and not self._worked
        return answer.status in (401, 403) or (is_role and not answer.status)

    def _open(self) -> None:
        try:
            self._store = next(self._stores)
        except StopIteration:
            raise self._denied(self._last) from None
        except ImportError:
            raise Failure("obstore is not installed in the Python that runs the ranks.",
                          "Install it on the node: python -m pip install obstore") from None  # fmt: skip
        except _errors() as error:  # half of a pair of keys, for example
            raise self._denied(Answer(0, f"its credentials cannot be used ({type(error).__name__})")) from None
        self.number += 1


def access(
    source: str, kind: str, address: str, *, ca: str = "", settings: Mapping[str, str] | None = None,
    ask: Callable[[float], dict[str, Any]] | None = None, retries: int = 12,
) -> Access:  # fmt: skip
    """Return the access to a source at ``address`` (see the package); ``ask`` asks for a signature of Blob."""
    retry: Any = {
        "max_retries": retries, "retry_timeout": dt.timedelta(minutes=3),
        "backoff": {"init_backoff": dt.timedelta(seconds=0.2), "max_backoff": dt.timedelta(seconds=20), "base": 2},
    }  # fmt: skip

    def denied(answer: Answer) -> Failure:
        if kind == "blob":
            return Failure(f"Azure Blob denied access to {source} ({answer.status} {answer.code}).",
                           _REMEDIES.get(answer.code, _RIGHTS), source)  # fmt: skip
        if not answer.status:
            return Failure(f"Cannot read {address}: {answer.code}.", _REMEDIES[kind], source)
        return Failure(f"No permission to read {address} ({answer.status} {answer.code}).".replace(" )", ")"),
                       _REMEDIES[kind], source)  # fmt: skip

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
            raise Failure(f"The access token for {source} was not renewed within {_TIMEOUT / 60:.0f} minutes.",
                          "Sign in to Azure again, and submit the job again.", source) from None  # fmt: skip
        if answer.get("refused"):
            raise Failure(str(answer["refused"]), str(answer.get("remedy") or ""), source)
        sas = str(answer.get("sas") or "").removeprefix("?")
        if not _WRITTEN.fullmatch(sas):
            raise Failure("The shared access signature is not valid.", source=source)
        # A provider, because before a signature AzureStore would take an app that stands in the environment.
        provider: Any = functools.partial(dict, sas_token=sas, expires_at=None)
        # It is used until the service refuses it: the clocks of two machines differ.
        yield AzureStore(container, account_name=account, endpoint=endpoint, retry_config=retry,
                         credential_provider=provider, client_options=cast("Any", client(ca)))  # fmt: skip


def _web(address: str, ca: str, retry: Any) -> Iterator[ObjectStore]:
    from obstore.store import HTTPStore

    yield HTTPStore(address, client_options=cast("Any", client(ca)), retry_config=retry)


def _bucket(kind: str, bucket: str, ca: str, settings: Mapping[str, str], retry: Any) -> Iterator[ObjectStore]:
    """Yield the bucket with what the environment gives, without credentials, and with the role of the machine."""
    from obstore.store import GCSStore, S3Store

    if kind == "gs":
        own, given = {}, any(os.environ.get(name) for name in _GOOGLE) or _WELL_KNOWN.expanduser().is_file()
        made: Any = GCSStore
    else:
        own = _profile()
        given = bool(own) or any(os.environ.get(name) for name in _AMAZON)
        own |= {name: settings[name] for name in ("region", "endpoint") if settings.get(name)}
        made = S3Store
    options = client(ca, http=str(own.get("endpoint", "")).startswith("http://"))
    for anonymous in (False,) if given else (True, False):
        yield made(bucket, **own, skip_signature=anonymous, client_options=options, retry_config=retry)


#: Variables that give credentials, as object_store reads them.
_AMAZON = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
           "AWS_CONTAINER_CREDENTIALS_FULL_URI")  # fmt: skip
_GOOGLE = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH",
           "GOOGLE_SERVICE_ACCOUNT_KEY")  # fmt: skip
_WELL_KNOWN = Path("~/.config/gcloud/application_default_credentials.json")


def _profile() -> dict[str, Any]:
    """Return the keys of the user's profile in the file that the AWS tools write, which obstore does not read."""
    if any(os.environ.get(name) for name in _AMAZON):
        return {}
    file = configparser.ConfigParser(interpolation=None)
    try:
        file.read(Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser())
        profile = file[os.environ.get("AWS_PROFILE") or "default"]
        keys = {"access_key_id": profile["aws_access_key_id"], "secret_access_key": profile["aws_secret_access_key"]}
    except (configparser.Error, KeyError, OSError):
        return {}
    return {**keys, **({"session_token": token} if (token := profile.get("aws_session_token")) else {})}
