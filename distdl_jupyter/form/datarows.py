"""The launch form's rows of data: as they are typed, as a job takes them, and back. Pure text and values.

A row that cannot be read stays as it was typed, but for a signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from distdl_jupyter.core import data
from distdl_jupyter.core.data import DataSource
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.form.schema import DataRow

#: The name of a source that was given none.
UNNAMED = "data"
#: Stores that list a folder, of which a node can take its part.
_LISTED = ("blob://", "s3://", "gs://")
_SIGNED = re.compile(r"[?&](?:sig|se|sp|sv|x-(?:amz|goog)-[a-z-]+)=", re.IGNORECASE)
_MASK = "?sig=\N{BULLET}\N{BULLET}\N{BULLET}"


def row(source: DataSource) -> DataRow:
    """Return the row of a source."""
    return DataRow(source.name, data.place(source), source.shard, source.mode)


def begun(given: Any) -> list[DataRow]:
    """Return rows for ``data=`` in any of its forms; an invalid source becomes a row with its text unchanged.

    Raises InvalidSpec for a value without names and paths.
    """
    return [_begun(name, where) for name, where in data.pairs(given)]


def _begun(name: str, where: Any) -> DataRow:
    try:
        return row(data.source(name, where))
    except InvalidSpec:
        text = where.get("url", "") if isinstance(where, Mapping) else where
        return DataRow(name, unsigned(str(text)))


def kept(typed: Iterable[DataRow]) -> tuple[DataRow, ...]:
    """Return rows of a page without signatures."""
    return tuple(msgspec.structs.replace(one, place=unsigned(one.place)) for one in typed)


def unsigned(place: str) -> str:
    """Return a place whose shared access signature, if it has one, is masked; it is refused for it nevertheless."""
    return place.partition("?")[0] + _MASK if _SIGNED.search(place) else place


def is_blank(one: DataRow) -> bool:
    """Return whether a row is empty."""
    return not (one.name.strip() or one.place.strip())


def name(one: DataRow) -> str:
    """Return the name by which the code asks for a row's folder."""
    return one.name.strip() or UNNAMED


def place(one: DataRow) -> str:
    """Return a row's path with its mode keywords."""
    text = one.place.strip()
    if not text.startswith(_LISTED):
        return text
    words = (["shard"] if one.shard else []) + (["mode=mount"] if one.mode == "mount" else [])
    return text + ("&" if "?" in text else "?") + "&".join(words) if words else text


def source(one: DataRow) -> DataSource:
    """Return the source that a row means. Raises InvalidSpec."""
    if not one.place.strip():
        raise InvalidSpec(
            f"{name(one)} has no address.",
            code="data-row-without-place",
            field="data",
            hint="Enter its address or remove the row.",
        )
    return data.source(name(one), place(one))


def words(rows: Sequence[DataRow]) -> list[str]:
    """Return ``name=place`` of each row that was filled in, right or wrong: what ``submit`` takes as ``data``."""
    return [f"{name(one)}={place(one)}" for one in rows if not is_blank(one)]


def readable(rows: Sequence[DataRow]) -> list[str]:
    """Return ``name=path`` of the valid rows, as a magic line expresses them."""
    return [text for one in rows if _is_source(one) for text in words([one])]


def readable_target(outputs: str) -> str | None:
    """Return the place for outputs, None when there is none or it cannot be read."""
    try:
        data.blob_place(outputs.strip(), "outputs")
    except InvalidSpec:
        return None
    return outputs.strip()


def _is_source(one: DataRow) -> bool:
    try:
        source(one)
    except InvalidSpec:
        return False
    return True
