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
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import parse_qs

from distdl_jupyter.node.staging.failure import Failure

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

T = TypeVar("T")
#: Seconds that an answer with a signature may take: someone may have to sign in first.
_TIMEOUT = 600.0
#: Seconds before its end at which a signature is renewed; a quarter of its life where that is less.
_AHEAD = 120.0
#: Signatures in a row that may be refused before nothing was read with one.
_REFUSALS = 3
#: What may stand in one; anything else would change the request that it becomes a part of.
_WRITTEN = re.compile(r"[A-Za-z0-9%&=+/:.,_~-]+")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
#: Statuses after which the same request may succeed.
BUSY = {408, 429, 500, 502, 503, 504}
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


class Answer(NamedTuple):
    """An error of obstore: the HTTP status (0 without an answer), the store's code or the reason, and its certificate.

    ``untrusted`` is why the certificate is not trusted, "" when it is.
    """

    status: int
    code: str
    untrusted: str = ""

    @property
    def refused(self) -> bool:
        """Whether the credentials were not accepted."""
        return self.status in (401, 403)

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later."""
        return not self.untrusted and (not self.status or self.status in BUSY)


def answer(error: BaseException) -> Answer:
    """Return what an error of obstore tells. Its text is never shown: it holds what the server answered."""
    text = str(error)
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    if isinstance(error, FileNotFoundError):
        status = 404
    if found := _CERTIFICATE.search(text):
        return Answer(0, found[1], found[1])
    if status:
        return Answer(status, code[1] if (code := _CODE.search(text)) else "")
    if "Range request not supported" in text:
        return Answer(416, "RangesNotSupported")
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


def errors() -> tuple[type[BaseException], ...]:
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
    """The right to read one source: ``store`` opens it, ``refused`` says that it was not let in.

    ``ways`` yields stores with other credentials, the last refusal is sent to it; it raises Failure at its end.
    """

    def __init__(
        self, ways: Callable[[], Iterator[tuple[ObjectStore, float]]], end: Callable[[Answer], Failure], kind: str
    ) -> None:
        self._kind = kind
        self._ways = ways()
        self._end = end
        self._lock = threading.Lock()
        self._store: ObjectStore | None = None
        self._until = float("inf")
        self._last = Answer(0, "")
        self._refused = 0
        self._worked = False
        #: Counts up with each store that was opened.
        self.number = 0

    def store(self) -> tuple[ObjectStore, int]:
        """Return the store, and its number. Raises Failure when there is none."""
        with self._lock:
            if self._store is None or time.monotonic() > self._until:
                self._open()
            assert self._store is not None
            return self._store, self.number

    def refused(self, number: int, answer: Answer) -> None:
        """Take that the store of that number was refused. Raises Failure when another one will not help."""
        with self._lock:
            if number == self.number:
                self._last = answer if answer.status or not self._last.status else self._last
                self._refused += 1
                if self._refused >= _REFUSALS:
                    raise self._end(answer)
                self._open()

    def refuses(self, number: int, answer: Answer) -> bool:
        """Whether an answer of the store of that number is about its credentials.

        The role of a machine that has none, which is what a bucket is tried with last, gives no answer at all.
        """
        last = self._kind in ("s3", "gs") and number > 1 and not self._worked
        return answer.refused or (last and not answer.status)

    def worked(self) -> None:
        """Take that the store let something be read."""
        self._refused, self._worked = 0, True

    def use(self, call: Callable[[ObjectStore], T]) -> T:
        """Return what a call on the store gives, with other credentials where it was not let in.

        Raises Failure, and what obstore raises.
        """
        while True:
            store, number = self.store()
            try:
                found = call(store)
            except errors() as error:
                said = answer(error)
                if not self.refuses(number, said):
                    raise
                self.refused(number, said)
            else:
                self.worked()
                return found

    def _open(self) -> None:
        try:
            self._store, self._until = next(self._ways)
        except StopIteration:
            raise self._end(self._last) from None
        except ImportError:
            raise Failure("obstore is not installed in the Python that runs the ranks.",
                          "Install it on the node: python -m pip install obstore") from None  # fmt: skip
        except errors() as error:  # half of a pair of keys, for example
            raise self._end(Answer(0, f"its credentials cannot be used ({type(error).__name__})")) from None
        self.number += 1


def access(
    source: str, kind: str, address: str, *, ca: str = "", settings: Mapping[str, str] | None = None,
    ask: Callable[[float], dict[str, Any]] | None = None, retries: int = 0,
) -> Access:  # fmt: skip
    """Return the access to a source at ``address`` (see the package); ``ask`` asks for a signature of Blob.

    ``retries`` are those of obstore; a reader that counts its attempts wants none.
    """
    more: dict[str, Any] = {"max_retries": retries, "retry_timeout": dt.timedelta(seconds=60)}

    def end(answer: Answer) -> Failure:
        if kind == "blob":
            return Failure(f"Azure Blob denied access to {source} ({answer.status} {answer.code}).",
                           _REMEDIES.get(answer.code, _RIGHTS), source)  # fmt: skip
        if not answer.status:
            return Failure(f"Cannot read {address}: {answer.code}.", _REMEDIES[kind], source)
        return Failure(f"No permission to read {address} ({answer.status} {answer.code}).".replace(" )", ")"),
                       _REMEDIES[kind], source)  # fmt: skip

    def ways() -> Iterator[tuple[ObjectStore, float]]:
        if kind == "blob":
            assert ask is not None
            return _signed(source, address, ca, ask, more)
        if kind == "https":
            return _web(address, ca, more)
        return _bucket(kind, address.partition("://")[2], ca, settings or {}, more)

    return Access(ways, end, kind)


def _signed(
    source: str, address: str, ca: str, ask: Callable[[float], dict[str, Any]], retry: Any
) -> Iterator[tuple[ObjectStore, float]]:
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
        life = _life(sas)
        # A provider, because before a signature AzureStore would take an app that stands in the environment.
        given: Any = {"sas_token": sas, "expires_at": None}
        provider: Any = functools.partial(dict, given)
        store = AzureStore(container, account_name=account, endpoint=endpoint, retry_config=retry,
                           credential_provider=provider,
                           client_options=cast("Any", client(ca)))  # fmt: skip
        # Where the clocks differ the end is not known, and the service's refusal has to tell.
        yield store, time.monotonic() + life - min(_AHEAD, life / 4) if life > 0 else float("inf")


def _life(sas: str) -> float:
    """Return for how many seconds a signature is good by this machine's clock; 0 when it cannot be told."""
    try:
        end = dt.datetime.fromisoformat(parse_qs(sas)["se"][0])
    except (KeyError, ValueError):
        return 0.0
    return (end.replace(tzinfo=end.tzinfo or dt.UTC) - dt.datetime.now(dt.UTC)).total_seconds()


def _web(address: str, ca: str, retry: Any) -> Iterator[tuple[ObjectStore, float]]:
    from obstore.store import HTTPStore

    yield HTTPStore(address, client_options=cast("Any", client(ca)), retry_config=retry), float("inf")


def _bucket(
    kind: str, bucket: str, ca: str, settings: Mapping[str, str], retry: Any
) -> Iterator[tuple[ObjectStore, float]]:
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
        yield made(bucket, **own, skip_signature=anonymous, client_options=options, retry_config=retry), float("inf")


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
