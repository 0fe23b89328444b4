"""``python -m distdl_jupyter.form``: print the form of a text as this Python would run it, for another process.

Standard input holds ``{"request": FormRequest, "directory"}`` as JSON, the last line on standard output the FormState,
or ``{"error": {"type", "code", "message", "hint", "field", "output"}}``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import msgspec

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.form.schema import FormRequest, FormState
from distdl_jupyter.form.state import cell_state
from distdl_jupyter.views.wire import encode

#: Seconds for a cluster of other machines; another request starts from nothing.
_TIMEOUT = 5.0


def main() -> None:
    """Read a request and write the response."""
    question = json.load(sys.stdin)
    answer: FormState | dict[str, object]
    try:
        request = msgspec.convert(question["request"], FormRequest)
        answer = cell_state(request, directory=question["directory"], timeout=_TIMEOUT)
        # Nothing is polled any more when this process is gone.
        answer = replace(answer, place=answer.place and replace(answer.place, looking=False))
    except DistDLError as error:
        answer = {"error": error.to_json()}
    print(encode(answer).decode(), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
