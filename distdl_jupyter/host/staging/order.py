"""The order of one node as values, checked before anything is done with it."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from distdl_jupyter.host.staging.failure import Failure

#: Files and ranges that are fetched at once where the order does not say.
WORKERS = 8
_JOB = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,200}")
_ETAG = re.compile(r"[!#-~]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class Item(NamedTuple):
    """One blob: ``etag`` without quotes, ``md5`` of its content as 16 bytes, or b"" where the service has none."""

    name: str
    size: int
    etag: str
    md5: bytes


@dataclass(frozen=True, slots=True)
class Source:
    """One source of a node: blobs below ``prefix`` at ``address``, or a ``path`` that is there."""

    name: str
    variable: str
    kind: str
    address: str = ""
    prefix: str = ""
    items: list[Item] = field(default_factory=list)
    path: str = ""
    fingerprint: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """What one node is to have."""

    job: str
    node: int
    sources: list[Source]
    base: str = ""
    limit: int | None = None
    workers: int = WORKERS
    ca: str = ""


def order(told: Any) -> Order:
    """Return the order that JSON data tells. Raises Failure for what cannot be followed."""
    try:
        limit = told.get("limit_bytes")
        return Order(
            job=job(told["job"]),
            node=int(told.get("node", 0)),
            sources=[_source(one) for one in told["sources"]],
            base=str(told.get("base") or ""),
            limit=None if limit is None else int(limit),
            workers=int(told.get("workers") or WORKERS),
            ca=str(told.get("ca") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Failure(f"The order cannot be read ({type(error).__name__}: {error}).") from None


def job(told: Any) -> str:
    """Return the id of a job, which names a folder. Raises Failure when it could lead elsewhere."""
    if not _JOB.fullmatch(str(told)):
        raise Failure(f"{told!r} is no id of a job.")
    return str(told)


def _source(told: dict[str, Any]) -> Source:
    name = str(told["name"])
    if not _NAME.fullmatch(name):
        raise Failure(f"{name!r} is no name of a source.")
    variable, kind = str(told["variable"]), str(told["kind"])
    if kind == "path":
        return Source(name, variable, kind, path=str(told["path"]), fingerprint=told.get("fingerprint"))
    if kind != "blob":
        raise Failure(f"{kind!r} is no kind of source.", source=name)
    items = [Item(str(one[0]), int(one[1]), _etag(str(one[2])), _md5(one[3])) for one in told["items"]]
    address = _address(str(told["address"]), name)
    return Source(name, variable, kind, address=address, prefix=str(told["prefix"]), items=items)


def _address(told: str, source: str) -> str:
    split = urlsplit(told)
    if split.scheme != "https" or not split.hostname or split.query or split.fragment or "@" in split.netloc:
        raise Failure(f"{told.split('?', maxsplit=1)[0]!r} is no https address of a container.", source=source)
    return told.rstrip("/")


def _etag(told: str) -> str:
    found = told.removeprefix("W/").strip('"')
    if not _ETAG.fullmatch(found):
        raise Failure(f"{told!r} is no ETag.")
    return found


def _md5(told: str) -> bytes:
    try:
        found = base64.b64decode(told, validate=True)
    except binascii.Error:
        return b""
    return found if len(found) == 16 else b""
