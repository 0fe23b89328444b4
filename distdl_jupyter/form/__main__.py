"""``python -m distdl_jupyter.form``: the form of a text, as this Python would run it; asked for by another process.

Standard input holds ``{"request": FormRequest, "directory"}`` as JSON, the last line on standard output the FormState,
or ``{"error": {"type", "code", "message", "hint", "field", "output"}}``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import msgspec

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.form import datanow
from distdl_jupyter.form.cell import cell_state
from distdl_jupyter.form.schema import FormRequest, FormState
from distdl_jupyter.form.state import Timeouts
from distdl_jupyter.views.wire import encode

#: Seconds for a cluster of other machines and for places of data; another request starts from nothing.
_TIMEOUT = 5.0


def main() -> None:
    """Read a request, answer it."""
    asked = json.load(sys.stdin)
    answer: object
    try:
        request = msgspec.convert(asked["request"], FormRequest)
        timeouts = Timeouts(_TIMEOUT, _TIMEOUT)
        answer = _given_up(cell_state(request, directory=asked["directory"], timeouts=timeouts))
    except DistDLError as error:
        answer = {"error": error.to_json()}
    print(encode(answer).decode(), flush=True)  # noqa: T201 - the answer


def _given_up(found: FormState) -> FormState:
    """Return the form without promises: nobody looks any more when this process is gone."""
    return replace(
        found,
        place=found.place and replace(found.place, looking=False),
        data_now=datanow.given_up(found.data_now, _TIMEOUT),
    )


if __name__ == "__main__":
    main()
