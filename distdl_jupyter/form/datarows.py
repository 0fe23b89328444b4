"""Convert the data rows of the launch form to a job's ``data=`` option and back. Pure functions.

A row that cannot be parsed is not changed, except that a signature is masked.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from distdl_jupyter.core import data
from distdl_jupyter.core.data import DataSource
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.form.schema import DataRow

#: The default name of a source.
UNNAMED = "data"
#: Stores that can list a folder, so that each node can get a part of it.
_LISTED = ("blob://", "s3://", "gs://")
_SIGNED = re.compile(r"[?&](?:sig|se|sp|sv|x-(?:amz|goog)-[a-z-]+)=", re.IGNORECASE)
_MASK = "?sig=\N{BULLET}\N{BULLET}\N{BULLET}"


def rows(option: Any) -> Iterator[DataRow]:
    """Yield rows for ``data=`` in any of its forms; an invalid source becomes a row with its text unchanged.

    Raises InvalidSpec for a value without names and paths.
    """
    for name, where in data.pairs(option):
        try:
            source = data.source(name, where)
        except InvalidSpec:
            yield DataRow(name, unsigned(str(where.get("url", "") if isinstance(where, Mapping) else where)))
        else:
            yield DataRow(source.name, data.place(source), source.shard, source.mode)


def all_unsigned(typed: Iterable[DataRow]) -> tuple[DataRow, ...]:
    """Return the rows of a page without signatures."""
    return tuple(msgspec.structs.replace(row, place=unsigned(row.place)) for row in typed)


def unsigned(address: str) -> str:
    """Return an address with its shared access signature masked; such an address is still rejected."""
    return address.partition("?")[0] + _MASK if _SIGNED.search(address) else address


def is_blank(row: DataRow) -> bool:
    """Return whether a row is empty."""
    return not (row.name.strip() or row.place.strip())


def address(row: DataRow) -> str:
    """Return a row's address with the options of its source."""
    text = row.place.strip()
    options = "&".join((["shard"] if row.shard else []) + (["mode=mount"] if row.mode == "mount" else []))
    return f"{text}{'&' if '?' in text else '?'}{options}" if options and text.startswith(_LISTED) else text


def option(row: DataRow) -> str:
    """Return ``name=address`` for ``submit``, also if the address is invalid."""
    return f"{row.name.strip() or UNNAMED}={address(row)}"


def source(row: DataRow) -> DataSource:
    """Return the source of a row. Raises InvalidSpec."""
    name = row.name.strip() or UNNAMED
    if not row.place.strip():
        raise InvalidSpec(
            f"{name} has no address.",
            code="data-row-without-place",
            field="data",
            hint="Enter its address or remove the row.",
        )
    return data.source(name, address(row))


def valid_options(typed: Iterable[DataRow], outputs: str) -> dict[str, Any]:
    """Return ``data`` and ``outputs`` without invalid entries, in the format of a magic line."""
    options: dict[str, Any] = {"data": [], "outputs": None}
    for row in typed:
        with contextlib.suppress(InvalidSpec):
            source(row)
            options["data"].append(option(row))
    with contextlib.suppress(InvalidSpec):
        data.blob_place(outputs.strip(), "outputs")
        options["outputs"] = outputs.strip()
    return options
