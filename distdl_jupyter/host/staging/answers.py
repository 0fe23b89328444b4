"""What the Blob service answers, as values, and as sentences where it refuses.

The headers of Get Blob and the codes of errors: learn.microsoft.com/rest/api/storageservices/get-blob and
.../blob-service-error-codes.
"""

from __future__ import annotations

import base64
import binascii
import email.utils
import http.client
import re
import socket
import ssl
import time

from distdl_jupyter.host.staging.failure import Failure, masked

#: Statuses after which the same request may succeed.
BUSY = {408, 429, 500, 502, 503, 504}
#: Seconds that one Retry-After may ask for at most.
_PATIENCE = 120.0
#: Bytes of a refusal that are read.
_BODY = 2**16
_CODE = re.compile(rb"<Code>([A-Za-z0-9]+)</Code>")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_RULES = {
    404: ("{name!r} of {source} is not there any more ({code}).",
          "Look whether it was deleted, then start the job again."),
    409: ("{name!r} of {source} cannot be read now ({code}).",
          "A blob in the archive tier can be read when it was rehydrated."),
    412: ("{name!r} of {source} was changed or deleted while it was fetched.",
          "Start the job again when nobody writes there; what has not changed is not fetched again."),
}  # fmt: skip


def fits(answer: http.client.HTTPResponse, start: int, end: int, size: int) -> bool:
    """Return whether the bytes from ``start`` to ``end`` come, of a blob of ``size`` bytes."""
    if answer.length != end - start:
        return False
    found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if found is None:
        return answer.status == 200 and start == 0 and end == size
    return found.groups() == (str(start), str(end - 1), str(size))


def md5(answer: http.client.HTTPResponse) -> bytes:
    """Return the MD5 of the bytes that come, b"" where it is not told."""
    try:
        found = base64.b64decode(answer.headers.get("Content-MD5", ""), validate=True)
    except binascii.Error:
        return b""
    return found if len(found) == 16 else b""


def code(answer: http.client.HTTPResponse) -> str:
    """Return the service's code of an error, reading its body."""
    body = answer.read(_BODY)
    found = _CODE.search(body)
    return str(answer.headers.get("x-ms-error-code") or (found.group(1).decode() if found else answer.reason))


def patience(answer: http.client.HTTPResponse) -> float:
    """Return the seconds that the service asks to wait, 0 where it says nothing of it."""
    if (milliseconds := answer.headers.get("x-ms-retry-after-ms", "")).isdigit():
        return min(int(milliseconds) / 1000, _PATIENCE)
    told = answer.headers.get("Retry-After", "")
    if told.isdigit():
        return min(float(told), _PATIENCE)
    try:
        return max(0.0, min(email.utils.parsedate_to_datetime(told).timestamp() - time.time(), _PATIENCE))
    except ValueError:
        return 0.0


def refusal(source: str, name: str, status: int, told: str) -> Failure:
    """Return the failure that a status means after which nothing can be tried."""
    text, remedy = _RULES.get(status, ("Azure Blob answered {status} {code} for {name!r} of {source}.", ""))
    return Failure(text.format(name=name, source=source, status=status, code=told), remedy, source)


def mistaken(source: str, name: str) -> Failure:
    """Return the failure that a blob's content is, again and again, not what its checksum says."""
    return Failure(f"{name!r} of {source} came with another checksum than it should, several times.",
                   "Upload the blob again, or mend its Content-MD5.", source)  # fmt: skip


def untrusted(source: str, host: str, error: ssl.SSLCertVerificationError) -> Failure:
    """Return the failure that a host is not who it says."""
    return Failure(f"{host} shows a certificate that is not trusted ({error.verify_message}).",
                   "Name the certificate of your proxy, or your own service, in SSL_CERT_FILE.", source)  # fmt: skip


def silent(source: str, host: str, name: str, error: BaseException) -> Failure:
    """Return the failure that nothing comes, after all attempts."""
    return Failure(f"{host} could not be read ({why(error)}), so {name!r} is not whole.",
                   "Look at this node's network, then start the job again: it goes on from there.", source)  # fmt: skip


def why(error: BaseException) -> str:
    """Return in few words why a request had no answer."""
    if isinstance(error, socket.gaierror):
        return "its name is not known here"
    if isinstance(error, TimeoutError):
        return "nothing comes any more"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return masked(text or type(error).__name__)[:200]
