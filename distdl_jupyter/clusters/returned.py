"""Which values are taken from other machines. They are unpickled here, so each must be of a rank that ran there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from distdl_jupyter.core.humanize import size

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import PurePath

#: Bytes that the value of one rank may have; what is larger belongs into the job's outputs.
LARGEST = 4 * 2**30
_VALUE = re.compile(r"rank-(0|[1-9]\d{0,8})\.pkl")


def refusal(name: PurePath, bytes_: int, ranks: Collection[int]) -> str:
    """Return why a file of the folder ``results`` is not taken, "" when it is; ``ranks`` are those that ran there."""
    match = _VALUE.fullmatch(str(name))
    if match is None:
        return f"results/{name} is not the value of a rank"
    if int(match[1]) not in ranks:
        return f"results/{name} is the value of a rank that did not run on this host"
    if bytes_ > LARGEST:
        return (
            f"results/{name} has {size(bytes_)}, but the limit for a value is {size(LARGEST)}; save it in "
            "outputs/ instead"
        )
    return ""
