"""The check of elastic Horovod jobs: code and options speak of the same thing."""

from __future__ import annotations

from collections.abc import Iterator

from distdl_jupyter.core.names import backend_label
from distdl_jupyter.preflight.model import Check, Finding, Request
from distdl_jupyter.preflight.reading import Code


def elastic(code: Code, request: Request) -> Check | None:
    """Code with ``hvd.elastic.run`` runs as an elastic job, and an elastic job has such code; None without Horovod."""
    label = backend_label(request.distributed_backend)
    asked = request.backend_options.get("elastic") is True
    written = code.needs("horovod") and code.uses("elastic")
    if not label.startswith("horovod") or request.process_count == 1 or not (asked or written):
        return None
    says = "processes that fail are replaced" if asked else "all processes end when one fails"
    return Check("Elastic", says, tuple(_findings(code, request, asked=asked, written=written)))


def _findings(code: Code, request: Request, *, asked: bool, written: bool) -> Iterator[Finding]:
    if written and not asked:
        yield Finding(
            "info",
            "not-elastic-job",
            "The code uses hvd.elastic, but the job is not elastic: when one process fails, all of them end.",
            "Set elastic=True and max_restarts=3 on the backend horovod-gloo to replace processes that fail.",
        )
    if asked and code.read and not written:
        yield Finding(
            "warning",
            "not-elastic-code",
            "elastic=True is set, but the code does not use hvd.elastic.run: who loses another process ends too.",
            "Train in a function with @hvd.elastic.run and a state of hvd.elastic, or leave elastic out.",
        )
    if asked and not request.max_restarts:
        yield Finding(
            "warning",
            "elastic-without-restarts",
            "elastic=True replaces processes that fail up to max_restarts times, which is 0.",
            "Set max_restarts, for example max_restarts=3.",
        )
