"""What a job's panel answers when its page asks where the ranks stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import stacks as kept
from distdl_jupyter.core.errors import DistDLError, JobNotFound
from distdl_jupyter.views import stacks
from distdl_jupyter.views.to_json import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.client import Job
    from distdl_jupyter.core.store import JobFolder
    from distdl_jupyter.views.schema import Stacks


def answer(job: Job, question: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the ranks (``ask`` is take), or read stacks by their ``number``; return ``value`` or ``error``.

    Never raises. Asking does not wait: the job's card tells when the stacks are there.
    """
    try:
        if question.get("ask") == "take":
            job.ask_stacks()
            return {"value": None}
        return {"value": to_json(stacks.stacks(_read(job, question.get("number"))))}
    except DistDLError as error:
        return {"error": error.to_json()}
    except OSError as error:
        return {"error": JobNotFound(f"The job's folder cannot be used: {error.strerror or error}.").to_json()}


def newest(folder: JobFolder) -> Stacks | None:
    """Return the stacks that were taken last, None when there are none."""
    taken = kept.read(folder)
    return None if taken is None else stacks.stacks(taken)


def _read(job: Job, number: object) -> kept.Taken:
    taken = kept.read(job.folder, number) if isinstance(number, int) else None
    if taken is None:
        raise JobNotFound("These stacks are not there any more.", hint="Take them again while the ranks run.")
    return taken
