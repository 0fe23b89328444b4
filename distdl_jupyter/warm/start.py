"""The submitter's side: hand a job to the template, or start it cold, say why, and see to a template for the next."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import atomic_write
from distdl_jupyter.core.events import EventWriter
from distdl_jupyter.supervisor import control
from distdl_jupyter.warm import settings, template_client, template_files
from distdl_jupyter.worker import import_recorder

if TYPE_CHECKING:
    from distdl_jupyter.core.events import JobLock
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder

#: The code of the note that says why a job was started cold.
COLD = "cold-start"


def begin(folder: JobFolder, lock: JobLock, secret_variables: Mapping[str, str], *, python: str = "") -> str:
    """Start the supervisor of a published job and give it the lock; warm where that is possible.

    Returns why it was started cold, one sentence that stands in the job's log as a note too; "" for a warm start and
    where warm starts do not apply: on other machines, inside of a rank, switched off. Raises OSError when no
    supervisor can be started.
    """
    spec = folder.spec()
    if not _applies(spec):
        control.start_supervisor(folder, lock, secret_variables, python=python)
        return ""
    where = template_files.of(python)
    import_recorder.folder_of(folder.path).mkdir(mode=0o700, exist_ok=True)
    reason = template_client.start(where, folder, lock, secret_variables, spec)
    if not reason:
        lock.release()
        return ""
    _note(folder, where, reason)
    control.start_supervisor(folder, lock, secret_variables, python=python)
    with contextlib.suppress(OSError):
        template_client.make(where, folder)
    return reason


def _applies(spec: JobSpec) -> bool:
    # Elsewhere a forked rank could not be found by its job's mark (see ``process_marker``). A job inside of a rank is
    # one of that rank's processes and must not live on elsewhere.
    return (
        sys.platform == "linux"
        and spec.cluster == "local"
        and "DISTDL_JOB_ID" not in os.environ
        and not settings.switched_off()
    )


def _note(folder: JobFolder, where: template_files.TemplateFiles, reason: str) -> None:
    writer = EventWriter(folder.events)
    try:
        writer.write("note", level="info", text=reason, code=COLD)
    finally:
        writer.close()
    with contextlib.suppress(OSError):
        atomic_write.write(where.last_cold, {"job": folder.id, "time": time.time(), "reason": reason})


def last_cold(where: template_files.TemplateFiles) -> dict[str, Any]:
    """Return ``{"job", "time", "reason"}`` of the last job that was started cold, {} when there was none."""
    try:
        data = json.loads(where.last_cold.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
