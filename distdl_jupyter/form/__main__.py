"""``python -m distdl_jupyter.form``: the form of a text, as this Python would run it; asked for by another process.

Standard input holds one ``form.answer.Question`` as JSON, the last line on standard output the answer, or
``{"error": {"type", "message", "hint", "field", "output"}}``.
"""

from __future__ import annotations

import json
import sys

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.form import datanow
from distdl_jupyter.form.answer import PageForm, Question, answer

#: Seconds for a cluster of other machines, and for places of data, to answer; another question starts from nothing.
_PATIENCE = 5.0


def main() -> None:
    """Read a question, answer it."""
    try:
        PageForm.patience = PageForm.blink = PageForm.glance = _PATIENCE
        told = answer(Question(**json.load(sys.stdin)))
        told["place"].pop("looking", None)  # nobody looks any more when this process is gone
        told["cost"].pop("looking", None)
        datanow.given_up(told["data_now"], _PATIENCE)
    except DistDLError as error:
        told = {"error": error.to_json()}
    print(json.dumps(told), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
